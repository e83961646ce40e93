"""ONNX files: what the reader says about right, odd, cut and contradictory ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from model_files import MODELS, classifier, external, field, onnx, tensor, tensor_type, varint

from runners.contract import ModelRejected
from runners.formats.onnx import dynamic_axes
from runners.inspect import inspect
from runners.model import ModelInfo, TensorInfo


def read(tmp_path: Path, data: bytes, name: str = "model.onnx") -> ModelInfo:
    path = tmp_path / name
    path.write_bytes(data)
    return inspect(str(path))


def test_a_real_classifier_is_described(known_orientation: Path) -> None:
    model = inspect(str(known_orientation))
    assert (model.format, model.format_version, model.opsets, model.task) == ("onnx", 10, {"": 15}, "classification")
    assert model.inputs == (TensorInfo(name="x", shape=("DynamicDimension.0", 3, 224, 224), dtype="float32"),)
    assert [output.shape[-1] for output in model.outputs] == [4]
    assert model.labels == ("0", "90", "180", "270")
    assert 0.98 * model.size_bytes < model.tensors_bytes < model.size_bytes
    assert model.parameters == pytest.approx(model.tensors_bytes / 4, rel=0.01)
    assert (model.quantisation, model.metadata["nodes"], model.warnings) == ("float32", 115, ())


@pytest.mark.parametrize("version", [8, 12, 13, 99])
def test_the_ir_version_is_not_the_operator_set(version: int) -> None:
    model = inspect(str(MODELS / "MF-23" / f"ir{version}.onnx"))
    assert (model.format_version, model.opsets) == (version, {"": 13})


def test_operator_sets_are_told_per_domain() -> None:
    assert inspect(str(MODELS / "MF-24" / "domains.onnx")).opsets == {"": 13, "ai.onnx.ml": 99, "com.acme": 1}
    assert inspect(str(MODELS / "MF-24" / "opset3.onnx")).opsets == {"": 3}


def test_operators_of_other_domains_are_told_with_them() -> None:
    assert "com.acme::MyOp 1" in str(inspect(str(MODELS / "MF-24" / "domains.onnx")).metadata["operators"])


@pytest.mark.parametrize(
    ("name", "batch"), [("batch64", 64), ("fake-dynamic", "batch"), ("dim0", None), ("dim-minus1", None)]
)
def test_a_batch_is_a_number_a_name_or_open(name: str, batch: int | str | None) -> None:
    assert inspect(str(MODELS / "MF-28" / f"{name}.onnx")).inputs[0].shape[0] == batch


def test_an_input_without_axes_has_an_empty_shape() -> None:
    assert inspect(str(MODELS / "MF-28" / "scalar.onnx")).inputs[0].shape == ()


def test_dynamic_axes_are_listed_per_input() -> None:
    model = inspect(str(MODELS / "MF-29" / "dynamic.onnx"))
    assert dynamic_axes(model.inputs) == {"images": (0, 2, 3)}
    assert model.metadata["dynamic_axes"] == "images: 0, 2, 3"


def test_an_integer_beyond_32_bits_is_counted_and_told() -> None:
    model = inspect(str(MODELS / "MF-29" / "int64-big.onnx"))
    assert model.metadata["int64_out_of_int32"] == 1
    assert "1099511627776" in model.warnings[0]


def test_an_integer_within_32_bits_is_no_warning(tmp_path: Path) -> None:
    index = tensor("i", [2], 7, struct.pack("<2q", -(1 << 31), (1 << 31) - 1))
    assert read(tmp_path, onnx(classifier() + field(5, index))).warnings == ()


@pytest.mark.parametrize(("value", "out"), [(-(1 << 31), 0), (1 << 31, 1), (-(1 << 31) - 1, 1)])
def test_packed_and_loose_integers_are_compared_with_32_bits(tmp_path: Path, value: int, out: int) -> None:
    packed = tensor("i", [1], 7, more=field(7, varint(value)))
    loose = tensor("j", [1], 7, more=field(7, value))
    model = read(tmp_path, onnx(classifier() + field(5, packed) + field(5, loose)))
    assert model.metadata.get("int64_out_of_int32", 0) == 2 * out


def test_a_clip_with_a_limit_from_an_input_names_the_node() -> None:
    warning = inspect(str(MODELS / "MF-29" / "clip-max-input.onnx")).warnings[0]
    assert "clip6" in warning
    assert "mx" in warning
    assert "Clip" in warning


def test_an_initializer_is_no_input(tmp_path: Path) -> None:
    weights = field(5, tensor("w", [2, 2], 1, bytes(16))) + field(11, tensor_type("w", [2, 2]))
    model = read(tmp_path, onnx(weights + classifier()))
    assert [one.name for one in model.inputs] == ["x"]
    assert (model.parameters, model.tensors_bytes) == (4, 16)


def test_weights_in_constants_and_inner_graphs_are_counted(tmp_path: Path) -> None:
    constant = field(1, field(4, "Constant") + field(5, field(5, tensor("", [8], 1, bytes(32)))))
    inner = field(1, field(4, "If") + field(5, field(6, field(5, tensor("w", [4], 10, bytes(8))))))
    model = read(tmp_path, onnx(classifier() + constant + inner))
    assert (model.parameters, model.tensors_bytes) == (12, 40)


def test_the_dtype_with_most_bytes_is_the_quantisation(tmp_path: Path) -> None:
    weights = field(5, tensor("a", [2], 1, bytes(8))) + field(5, tensor("b", [64], 3, bytes(64)))
    assert read(tmp_path, onnx(classifier() + weights)).quantisation == "int8"


@pytest.mark.parametrize(
    ("properties", "labels"),
    [
        ({"names": "{0: 'cat', 1: \"dog's\", 2: 'x\\'y'}"}, ("cat", "dog's", "x'y")),
        ({"names": '["a, b", "c"]'}, ("a, b", "c")),
        ({"labels": "one,two, three"}, ("one", "two", "three")),
        ({"character": "0\n90\n180"}, ("0", "90", "180")),
        ({"id2label": '{"0": "no", "1": "yes"}'}, ("no", "yes")),
        ({"names": "{0: 'a', 2: 'c'}"}, ()),  # a gap would shift names
        ({"names": "{0: __import__('os').system('true')}"}, ()),
        ({}, ()),
    ],
)
def test_class_names_are_read_as_exporters_write_them(
    tmp_path: Path, properties: dict[str, str], labels: tuple[str, ...]
) -> None:
    assert read(tmp_path, onnx(classifier(classes=3), properties)).labels == labels


@pytest.mark.parametrize(
    ("graph", "properties", "task"),
    [
        (classifier(), {}, "classification"),
        (classifier(classes="C"), {}, ""),
        (classifier(axes=["N", 128]), {}, ""),
        (classifier(), {"names": "['a', 'b', 'c', 'd', 'e']"}, ""),  # five names for four scores
        (classifier(), {"task": "detect"}, "detection"),
    ],
)
def test_a_classifier_is_told_by_its_shapes(
    tmp_path: Path, graph: bytes, properties: dict[str, str], task: str
) -> None:
    assert read(tmp_path, onnx(graph, properties)).task == task


def test_a_missing_external_file_is_named(tmp_path: Path) -> None:
    weights = field(5, tensor("w", [4], 1, more=external("model.data", 0, 16)))
    with pytest.raises(ModelRejected, match=r"missing beside it: model\.data"):
        read(tmp_path, onnx(classifier() + weights))


def test_external_weights_are_measured_and_counted(tmp_path: Path) -> None:
    (tmp_path / "model.data").write_bytes(bytes(48))
    weights = field(5, tensor("w", [4], 1, more=external("model.data", 32, 16)))
    data = onnx(classifier() + weights)
    model = read(tmp_path, data)
    assert (model.tensors_bytes, model.parameters, model.size_bytes) == (16, 4, len(data) + 48)


def test_an_external_file_that_is_too_short_says_by_how_much(tmp_path: Path) -> None:
    (tmp_path / "model.data").write_bytes(bytes(47))
    weights = field(5, tensor("w", [4], 1, more=external("model.data", 32, 16)))
    with pytest.raises(ModelRejected, match="47 of 48 bytes"):
        read(tmp_path, onnx(classifier() + weights))


def test_an_external_file_that_is_an_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "model.data").write_bytes((MODELS / "MF-03" / "decoder.onnx").read_bytes())
    weights = field(5, tensor("w", [1000], 1, more=external("model.data", 0, 4000)))
    with pytest.raises(ModelRejected, match=r"LFS pointer.*614400123"):
        read(tmp_path, onnx(classifier() + weights))


@pytest.mark.parametrize("location", ["../model.data", "/etc/passwd", "a/../../b", ""])
def test_external_data_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    weights = field(5, tensor("w", [4], 1, more=external(location, 0, 16)))
    with pytest.raises(ModelRejected, match="leaves its folder"):
        read(tmp_path, onnx(classifier() + weights))


def test_a_cut_file_says_how_much_is_missing(tmp_path: Path) -> None:
    graph = classifier() + field(5, tensor("w", [1000], 1, bytes(4000)))
    data = onnx(graph)
    with pytest.raises(ModelRejected, match=rf"incomplete: it has 2000 of at least {5 + len(graph)}"):
        read(tmp_path, data[:2000])


def test_a_file_without_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="no graph"):
        read(tmp_path, field(1, 8) + field(8, field(2, 13)))


@pytest.mark.parametrize("axes", [[1 << 40, 1 << 40], [-5, 2]])
def test_an_impossible_shape_of_weights_names_the_tensor(tmp_path: Path, axes: list[int]) -> None:
    with pytest.raises(ModelRejected, match=r"tensor w .*impossible shape"):
        read(tmp_path, onnx(classifier() + field(5, tensor("w", axes, 1, bytes(4)))))


def test_weights_of_another_size_than_their_shape_are_a_warning(tmp_path: Path) -> None:
    model = read(tmp_path, onnx(classifier() + field(5, tensor("w", [4], 1, bytes(12)))))
    assert model.warnings == ("tensor w has 12 bytes of data, and its shape says 16",)


def test_graphs_nested_too_deep_are_refused(tmp_path: Path) -> None:
    graph = b""
    for _ in range(200):
        graph = field(1, field(5, field(6, graph)))
    with pytest.raises(ModelRejected, match="graphs in graphs"):
        read(tmp_path, onnx(graph))
