"""ONNX Runtime's runner: what it takes, what it executes, and what it says of what it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="package onnxruntime is not installed: nothing was run by it")
np = pytest.importorskip("numpy")

import onnx_models as models  # noqa: E402

from probes.contract import DeviceKind, Status  # noqa: E402
from runners import onnxruntime as runner  # noqa: E402
from runners.contract import (  # noqa: E402
    ModelRejected,
    OpenOptions,
    Placement,
    PlacementPart,
    RuntimeUnavailable,
)
from runners.model import ModelInfo  # noqa: E402
from runners.ort_session import translated  # noqa: E402
from runners.tiny import make_onnx  # noqa: E402

CPU = OpenOptions(backend="cpu")
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_the_cpu_gives_the_known_answer_and_proves_its_nodes() -> None:
    finding = runner.check("cpu")
    assert finding.status is Status.WORKS, finding.reason
    assert finding.device_kind is DeviceKind.CPU
    assert finding.evidence[0].value == "46, -4"
    assert finding.facts["nodes"] == 4
    assert finding.version == onnxruntime.__version__


def test_the_bundled_model_is_what_its_program_writes() -> None:
    assert runner.TINY.read_bytes() == make_onnx.tiny()


def part(device: str, nodes: int) -> PlacementPart:
    return PlacementPart(device=device, device_kind=DeviceKind.GPU, nodes=nodes)


@pytest.mark.parametrize(
    "parts",
    [(), (part("TensorrtExecutionProvider", 3), part("CUDAExecutionProvider", 1))],
)
def test_a_right_answer_of_another_provider_proves_nothing_for_this_one(parts: tuple[PlacementPart, ...]) -> None:
    finding = runner._judged("tensorrt", "1", make_onnx.ANSWER, 0.1, Placement(parts=parts))
    assert (finding.status, finding.device_kind) == (Status.BROKEN, DeviceKind.UNKNOWN)


def test_all_nodes_on_the_own_provider_are_proof() -> None:
    placement = Placement(parts=(part("TensorrtExecutionProvider", 4),))
    finding = runner._judged("tensorrt", "1", make_onnx.ANSWER, 0.1, placement)
    assert (finding.status, finding.device_kind) == (Status.WORKS, DeviceKind.GPU)


def test_a_strict_run_on_tensorrt_may_leave_nodes_to_cuda_but_none_to_the_cpu() -> None:
    options = OpenOptions(backend="tensorrt", device_index=1)
    names = [item if isinstance(item, str) else item[0] for item in runner._providers(options, strict=True)]
    assert names == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    assert runner._providers(options, strict=False)[-1] == "CPUExecutionProvider"


@pytest.mark.parametrize(
    "said", ["CUDA failure 700: an illegal memory access was encountered", "CUDNN failure 4: INTERNAL_ERROR"]
)
def test_a_failing_gpu_is_not_held_against_the_model(said: str) -> None:
    model = ModelInfo(path="net.onnx", format="onnx", size_bytes=1)
    assert type(translated(RuntimeError(said), model, "run")) is RuntimeUnavailable
    assert type(translated(RuntimeError("Unexpected input data type"), model, "run")) is ModelRejected


def test_a_type_that_numpy_lacks_leaves_the_placement_to_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runner, "_can_record", lambda library: False)
    path = tmp_path / "text.onnx"
    text = 8  # TensorProto.STRING
    nodes = [make_onnx.node("Identity", ["x"], ["y"])]
    ends = [make_onnx.value_info(name, [1], text) for name in ("x", "y")]
    path.write_bytes(make_onnx.model(nodes, ends[:1], ends[1:]))
    session = runner.open(ModelInfo(path=str(path), format="onnx", size_bytes=1), CPU)
    assert session.placement().parts == ()
    assert session.run({"x": np.array(["a"], object)})["y"].tolist() == ["a"]
    assert session.placement().all_on(DeviceKind.CPU)
    session.close()


def test_a_crash_while_a_model_is_loaded_is_still_told() -> None:
    code = (
        "import faulthandler, os; from runners import ort_library; faulthandler.enable();"
        "told = ort_library.captured_stderr(); told.__enter__(); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "Fatal Python error: Aborted" in done.stderr


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA: its absence could not be shown")
@pytest.mark.parametrize("backend", ["cuda", "tensorrt"])
def test_a_wheel_without_the_provider_is_absent_and_not_a_cpu_success(backend: str) -> None:
    finding = runner.check(backend)
    assert finding.status is Status.ABSENT
    assert runner.PROVIDERS[backend] in finding.reason
    assert finding.remedy
    assert finding.device_kind is DeviceKind.UNKNOWN


@pytest.mark.skipif(not HAS_CUDA, reason="this onnxruntime has no CUDA provider: its failure could not be provoked")
def test_a_provider_without_its_libraries_names_the_missing_one_or_works() -> None:
    finding = runner.check("cuda")
    if finding.status is Status.WORKS:
        assert finding.device_kind is DeviceKind.GPU
    else:
        assert ".so" in finding.reason or "CUDA" in finding.reason
        assert finding.device_kind is DeviceKind.UNKNOWN


def test_a_wrong_answer_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "tiny.onnx"
    data = make_onnx.tiny()
    wrong.write_bytes(data.replace(bytes.fromhex("000070c1"), bytes.fromhex("000060c1")))  # bias -15 -> -14
    assert wrong.read_bytes() != data
    monkeypatch.setattr(runner, "TINY", wrong)
    finding = runner.check("cpu")
    assert finding.status is Status.BROKEN
    assert "48" in finding.reason
    assert "46" in finding.reason


def test_without_the_package_the_check_says_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    finding = runner.check("cpu")
    assert finding.status is Status.ABSENT
    assert "onnxruntime is not installed" in finding.reason


# --- accepts ---


def test_a_usual_model_is_taken(tmp_path: Path) -> None:
    assert runner.accepts(models.relu(tmp_path)).accepted


def test_another_format_is_refused_by_name() -> None:
    verdict = runner.accepts(ModelInfo(path="m.gguf", format="gguf", size_bytes=1))
    assert not verdict.accepted
    assert "gguf" in verdict.reason


def test_an_ir_version_that_is_too_new_is_told_apart_from_the_opset(tmp_path: Path) -> None:
    verdict = runner.accepts(models.relu(tmp_path, ir_version=99))
    assert not verdict.accepted
    assert "IR version 99" in verdict.reason
    assert "up to 14" in verdict.reason
    assert "ai.onnx 13" in verdict.reason
    assert "ir_version" in verdict.remedy


@pytest.mark.parametrize("ir_version", [8, 12, 13])
def test_ir_versions_that_are_read_are_taken(tmp_path: Path, ir_version: int) -> None:
    assert runner.accepts(models.relu(tmp_path, ir_version=ir_version)).accepted


def test_too_new_too_old_and_custom_are_three_answers(tmp_path: Path) -> None:
    new = runner.accepts(models.relu(tmp_path, opset=99))
    old = runner.accepts(models.relu(tmp_path, opset=3))
    custom = runner.accepts(models.relu(tmp_path, domains={"com.acme": 1}))
    assert not any(verdict.accepted for verdict in (new, old, custom))
    assert "too new" in new.reason
    assert "too old" in old.reason
    assert "com.acme" in custom.reason
    assert "custom-op library" in custom.remedy
    assert len({new.remedy, old.remedy, custom.remedy}) == 3


def test_each_operator_set_is_judged(tmp_path: Path) -> None:
    verdict = runner.accepts(models.relu(tmp_path, domains={"ai.onnx.ml": 99, "com.acme": 1}))
    assert "ai.onnx.ml 99" in verdict.reason
    assert "com.acme" in verdict.reason


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.preview.training", "pkg.onnxscript.torch_lib"])
def test_domains_that_exporters_add_are_no_custom_operators(tmp_path: Path, domain: str) -> None:
    assert runner.accepts(models.relu(tmp_path, domains={domain: 1})).accepted


# --- open and run ---


def test_a_run_answers_by_name(tmp_path: Path) -> None:
    session = runner.open(models.relu(tmp_path), CPU)
    answer = session.run({"x": np.array([[-1, 0, 2, -3]], np.float32)})
    assert answer["y"].tolist() == [[0, 0, 2, 0]]
    session.close()


def test_the_placement_counts_nodes_before_any_run(tmp_path: Path) -> None:
    session = runner.open(models.relu(tmp_path), CPU)
    placement = session.placement()
    assert placement.all_on(DeviceKind.CPU)
    assert [(part.device, part.nodes) for part in placement.parts] == [("CPUExecutionProvider", 1)]
    session.close()


def test_an_older_release_proves_the_placement_by_a_profile_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runner, "_can_record", lambda library: False)
    session = runner.open(models.relu(tmp_path), CPU)
    placement = session.placement()
    assert placement.all_on(DeviceKind.CPU)
    assert "profile" in placement.source
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].sum() == 4
    session.close()
    assert not list(tmp_path.glob("edge-agent-ort-*"))


def test_a_failed_load_leaves_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runner, "_can_record", lambda library: False)
    with pytest.raises(ModelRejected):
        runner.open(models.relu(tmp_path, ir_version=99), CPU)
    assert not list(tmp_path.glob("edge-agent-ort-*"))


def refusal(model: ModelInfo, options: OpenOptions = CPU) -> str:
    with pytest.raises(ModelRejected) as caught:
        runner.open(model, options)
    return caught.value.reason


def test_a_refused_load_gives_the_cause_without_source_lines(tmp_path: Path) -> None:
    reason = refusal(models.relu(tmp_path, ir_version=99))
    assert "Unsupported model IR version: 99" in reason
    assert "onnxruntime_src" not in reason
    assert "ModelProto" not in reason


def test_an_operator_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "Relu(1)" in refusal(models.relu(tmp_path, opset=3))


def test_a_file_that_is_no_protobuf_is_said_to_be_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "page.onnx"
    path.write_text("<!DOCTYPE html><html>404</html>")
    reason = refusal(ModelInfo(path=str(path), format="onnx", size_bytes=31))
    assert reason.startswith("page.onnx is not a readable ONNX file")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    assert "no such file" in refusal(ModelInfo(path=str(tmp_path / "none.onnx"), format="onnx", size_bytes=1))


def test_a_wrong_shape_is_a_sentence_and_the_session_lives_on(tmp_path: Path) -> None:
    session = runner.open(models.relu(tmp_path), CPU)
    with pytest.raises(ModelRejected, match=r"could not run relu\.onnx: .*[Ii]nvalid dimensions"):
        session.run({"x": np.ones((1, 5), np.float32)})
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].sum() == 4
    session.close()


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA: its absence could not be shown")
@pytest.mark.parametrize("strict", [True, False])
def test_a_backend_that_is_not_there_never_falls_back(tmp_path: Path, strict: bool) -> None:
    with pytest.raises(RuntimeUnavailable, match="CUDAExecutionProvider"):
        runner.open(models.relu(tmp_path), OpenOptions(backend="cuda", strict=strict))


@pytest.fixture
def idle_provider(monkeypatch: pytest.MonkeyPatch) -> str:
    """A real provider that registers and takes no node, in CUDA's place: what a silent fallback looks like."""
    name = "AzureExecutionProvider"
    if name not in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {name}: no silent fallback could be provoked")
    monkeypatch.setitem(runner.PROVIDERS, "cuda", name)
    return name


def test_a_strict_load_that_would_use_the_cpu_is_refused_with_the_number_of_nodes(
    tmp_path: Path, idle_provider: str
) -> None:
    with pytest.raises(RuntimeUnavailable) as caught:
        runner.open(models.relu(tmp_path), OpenOptions(backend="cuda", strict=True))
    assert f"not all of 1 nodes would run on {idle_provider} (CPUExecutionProvider 1)" in caught.value.reason
    assert "relu.onnx" in caught.value.reason


def test_a_fallback_that_is_allowed_is_told_by_the_placement(tmp_path: Path, idle_provider: str) -> None:
    session = runner.open(models.relu(tmp_path), OpenOptions(backend="cuda"))
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].sum() == 4
    assert [(part.device, part.nodes) for part in session.placement().parts] == [("CPUExecutionProvider", 1)]
    assert not session.placement().all_on(DeviceKind.GPU)
    session.close()


def test_a_check_whose_nodes_fell_back_is_broken_although_the_answer_would_be_right(idle_provider: str) -> None:
    finding = runner.check("cuda")
    assert finding.status is Status.BROKEN
    assert "CPUExecutionProvider 4" in finding.reason
    assert finding.device_kind is DeviceKind.UNKNOWN


def test_an_unknown_backend_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable) as caught:
        runner.open(models.relu(tmp_path), OpenOptions(backend="vulkan"))
    assert "tensorrt, cuda, cpu" in caught.value.remedy


def test_a_strict_run_on_the_cpu_is_no_contradiction(tmp_path: Path) -> None:
    runner.open(models.relu(tmp_path), OpenOptions(backend="cpu", strict=True)).close()


def test_stderr_is_given_back_after_a_load(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runner.open(models.relu(tmp_path), CPU).close()
    os.write(2, b"still there")
    assert "still there" in capfd.readouterr().err
