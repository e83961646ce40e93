"""ONNX files: what a model takes, gives and is made of, without the onnx package and without reading weights.

Source: onnx/onnx.proto of onnx 1.19; field numbers stand beside the names of the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from runners.contract import ModelRejected
from runners.formats.gguf import printable
from runners.formats.onnx_labels import read_labels
from runners.formats.onnx_tensors import Initializers, dtype_name
from runners.formats.source import Source
from runners.formats.wire import VARINT, Wire, signed
from runners.model import ModelInfo, TensorInfo

TEXT_LIMIT_BYTES = 512
LABELS_LIMIT_BYTES = 1 << 20
TENSORS_LIMIT = 4096  # inputs and outputs
AXES_LIMIT = 64
METADATA_LIMIT = 256
DEPTH_LIMIT = 32  # of graphs in graphs: protocol buffers' own limit of 100 messages allows no more
OPS_KEPT = 512  # names of operators
CLIPS_KEPT = 64
CLASSES_LIMIT = 100_000
TASKS = {"classify": "classification", "classification": "classification", "detect": "detection"}


def read(source: Source) -> ModelInfo:
    """Read an ONNX file, and see whether its external data is there.

    Raises:
        ModelRejected: cut off, damaged, hostile, without a graph; or external data is missing or outside of the folder.
    """
    return _Reader(source).model()


def dynamic_axes(tensors: Iterable[TensorInfo]) -> dict[str, tuple[int, ...]]:
    """Inputs with axes that the file leaves open: a TensorRT engine needs a profile with limits for these."""
    found = {
        tensor.name: tuple(index for index, axis in enumerate(tensor.shape) if not isinstance(axis, int))
        for tensor in tensors
    }
    return {name: axes for name, axes in found.items() if axes}


class _Reader:
    """Reads one file; what was found so far is in its attributes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._wire = Wire(source)
        self._initializers = Initializers(self._wire)
        self._texts: dict[str, str] = {}
        self._opsets: dict[str, int] = {}
        self._properties: dict[str, str] = {}
        self._inputs: list[TensorInfo] = []
        self._outputs: list[TensorInfo] = []
        self._ops: Counter[str] = Counter()
        self._clips: list[tuple[str, list[str]]] = []
        self._ir_version = self._graphs = 0

    def model(self) -> ModelInfo:
        """ModelProto."""
        for field in self._wire.fields(self._source.size_bytes, "the model"):
            if field.number == 1 and field.wire == VARINT:
                self._ir_version = min(field.value, 1 << 31)
            elif field.number in (2, 3) and field.wire != VARINT:
                name = "producer" if field.number == 2 else "producer_version"
                self._texts[name] = self._text(field.value, name)
            elif field.number == 7 and field.wire != VARINT:
                self._graphs += 1
                self._graph(field.value, 0)
            elif field.number == 8 and field.wire != VARINT:
                self._opset(field.value)
            elif field.number == 14 and field.wire != VARINT:
                self._property(field.value)
            elif field.number == 25 and field.wire != VARINT:
                self._function(field.value)
        if not self._graphs:
            raise ModelRejected(
                f"{self._source.name} has no graph: it is cut off, or no ONNX model",
                "download or copy the file again, and compare its size and checksum",
            )
        return self._told()

    def _text(self, length: int, what: str) -> str:
        return printable(self._wire.text(length, TEXT_LIMIT_BYTES, what))

    def _opset(self, length: int) -> None:
        """OperatorSetIdProto: domain = 1, version = 2."""
        domain, version = "", 0
        for field in self._wire.fields(length, "an operator set"):
            if field.number == 1 and field.wire != VARINT:
                domain = self._text(field.value, "a domain")
            elif field.number == 2 and field.wire == VARINT:
                version = signed(field.value)
        if len(self._opsets) < METADATA_LIMIT:
            self._opsets[domain] = version

    def _property(self, length: int) -> None:
        """StringStringEntryProto: key = 1, value = 2; a later entry of the same key counts."""
        key = value = ""
        for field in self._wire.fields(length, "a metadata property"):
            if field.number == 1 and field.wire != VARINT:
                key = self._text(field.value, "a metadata key")
            elif field.number == 2 and field.wire != VARINT:
                room = LABELS_LIMIT_BYTES - sum(map(len, self._properties.values()))
                value = self._wire.text(field.value, max(0, room), "a metadata value")
        if len(self._properties) < METADATA_LIMIT:
            self._properties[key] = value

    def _function(self, length: int) -> None:
        """FunctionProto: node = 7."""
        for field in self._wire.fields(length, "a function"):
            if field.number == 7 and field.wire != VARINT:
                self._node(field.value, 1)

    def _graph(self, length: int, depth: int) -> None:
        """GraphProto: node = 1, initializer = 5, input = 11, output = 12, sparse_initializer = 15."""
        if depth > DEPTH_LIMIT:
            raise ModelRejected(f"{self._source.name}: graphs in graphs, {depth} deep: no runtime reads that")
        for field in self._wire.fields(length, "the graph"):
            if field.wire == VARINT:
                continue
            if field.number == 1:
                self._node(field.value, depth)
            elif field.number == 2 and depth == 0:
                self._texts["graph"] = self._text(field.value, "the graph's name")
            elif field.number == 5:
                self._initializers.read(field.value, named=depth == 0)
            elif field.number == 15:
                self._sparse(field.value)
            elif field.number in (11, 12) and depth == 0:
                self._value_info(field.value, self._inputs if field.number == 11 else self._outputs)

    def _sparse(self, length: int) -> None:
        """SparseTensorProto: values = 1, indices = 2."""
        for field in self._wire.fields(length, "a sparse tensor"):
            if field.number in (1, 2) and field.wire != VARINT:
                self._initializers.read(field.value, named=field.number == 1)

    def _node(self, length: int, depth: int) -> None:
        """NodeProto: input = 1, name = 3, op_type = 4, attribute = 5, domain = 7."""
        operator = domain = name = ""
        inputs: list[tuple[int, int]] = []
        for field in self._wire.fields(length, "a node"):
            if field.wire == VARINT:
                continue
            if field.number == 1 and len(inputs) < 3:
                inputs.append((self._source.position, field.value))
            elif field.number == 3:
                name = self._text(field.value, "a node's name")
            elif field.number == 4:
                operator = self._text(field.value, "an operator")
            elif field.number == 5:
                self._attribute(field.value, depth)
            elif field.number == 7:
                domain = self._text(field.value, "a domain")
        end = self._source.position
        full = f"{domain}::{operator}" if domain not in ("", "ai.onnx") else operator
        if full in self._ops or len(self._ops) < OPS_KEPT:
            self._ops[full] += 1
        if operator == "Clip" and depth == 0 and len(self._clips) < CLIPS_KEPT:
            self._clips.append((name, [self._text_at(*place) for place in inputs[1:]]))
            self._source.position = end

    def _text_at(self, position: int, length: int) -> str:
        self._source.position = position
        return self._text(length, "an input's name")

    def _attribute(self, length: int, depth: int) -> None:
        """AttributeProto: t = 5, g = 6, tensors = 10, graphs = 11."""
        for field in self._wire.fields(length, "an attribute"):
            if field.wire == VARINT:
                continue
            if field.number in (5, 10):
                self._initializers.read(field.value, named=False)
            elif field.number in (6, 11):
                self._graph(field.value, depth + 1)

    def _value_info(self, length: int, into: list[TensorInfo]) -> None:
        """ValueInfoProto: name = 1, type = 2."""
        if len(into) >= TENSORS_LIMIT:
            raise ModelRejected(f"{self._source.name} has more than {TENSORS_LIMIT} inputs or outputs")
        name, dtype = "", ""
        shape: tuple[int | str | None, ...] = ()
        for field in self._wire.fields(length, "an input or output"):
            if field.number == 1 and field.wire != VARINT:
                name = self._text(field.value, "a tensor's name")
            elif field.number == 2 and field.wire != VARINT:
                dtype, shape = self._type(field.value)
        into.append(TensorInfo(name=name, dtype=dtype, shape=shape))

    def _type(self, length: int) -> tuple[str, tuple[int | str | None, ...]]:
        """TypeProto: tensor_type = 1 (elem_type = 1, shape = 2), sequence_type = 4, map_type = 5, optional_type = 9."""
        dtype, shape = "", []
        for kind in self._wire.fields(length, "a type"):
            if kind.wire == VARINT:
                continue
            if kind.number != 1:
                dtype = {4: "sequence", 5: "map", 8: "sparse", 9: "optional"}.get(kind.number, dtype)
                continue
            for field in self._wire.fields(kind.value, "a tensor type"):
                if field.number == 1 and field.wire == VARINT:
                    dtype = dtype_name(field.value)
                elif field.number == 2 and field.wire != VARINT:
                    shape = self._shape(field.value)
        return dtype, tuple(shape)

    def _shape(self, length: int) -> list[int | str | None]:
        """TensorShapeProto: dim = 1 (dim_value = 1, dim_param = 2); 0 and -1 are open axes, too."""
        axes: list[int | str | None] = []
        for dim in self._wire.fields(length, "a shape"):
            if dim.number != 1 or dim.wire == VARINT:
                continue
            if len(axes) >= AXES_LIMIT:
                raise ModelRejected(f"{self._source.name}: an input or output has more than {AXES_LIMIT} axes")
            axis: int | str | None = None
            for field in self._wire.fields(dim.value, "an axis"):
                if field.number == 1 and field.wire == VARINT:
                    axis = signed(field.value) if signed(field.value) > 0 else None
                elif field.number == 2 and field.wire != VARINT:
                    axis = self._text(field.value, "an axis' name") or None
            axes.append(axis)
        return axes

    def _told(self) -> ModelInfo:
        initializers = self._initializers
        external_bytes = initializers.check_external()
        inputs = tuple(one for one in self._inputs if one.name not in initializers.names)
        labels = read_labels(self._properties)
        properties = {key: printable(value) for key, value in self._properties.items() if len(value) <= 512}
        return ModelInfo(
            path=self._source.name,
            format="onnx",
            format_version=self._ir_version,
            size_bytes=self._source.size_bytes + external_bytes,
            name=self._texts.get("graph", ""),
            task=_task(inputs, self._outputs, labels, properties),
            parameters=initializers.elements,
            quantisation=max(initializers.bytes_by_type, key=lambda name: initializers.bytes_by_type[name], default=""),
            tensors_bytes=sum(initializers.bytes_by_type.values()),
            inputs=inputs,
            outputs=tuple(self._outputs),
            opsets=self._opsets,
            labels=labels,
            licence=properties.get("license", properties.get("licence", "")),
            metadata=self._metadata(inputs, properties),
            warnings=(*initializers.warnings, *self._warnings(inputs)),
        )

    def _metadata(
        self, inputs: tuple[TensorInfo, ...], properties: dict[str, str]
    ) -> dict[str, str | int | float | bool]:
        """The file's own properties, then what was counted."""
        told: dict[str, str | int | float | bool] = dict(list(properties.items())[:64])
        told.update({key: value for key, value in self._texts.items() if key != "graph" and value})
        told["nodes"] = sum(self._ops.values())
        told["operators"] = ", ".join(f"{name} {count}" for name, count in self._ops.most_common(32))
        if self._initializers.out_of_int32:
            told["int64_out_of_int32"] = self._initializers.out_of_int32
        if self._initializers.external:
            told["external_data"] = ", ".join(sorted(self._initializers.external)[:8])
        axes = dynamic_axes(inputs)
        if axes:
            listed = (f"{name}: {', '.join(map(str, indices))}" for name, indices in list(axes.items())[:8])
            told["dynamic_axes"] = "; ".join(listed)
        return told

    def _warnings(self, inputs: tuple[TensorInfo, ...]) -> list[str]:
        told = [] if self._opsets else ["the file states no operator set: runtimes refuse it"]
        names = {one.name for one in inputs}
        for name, limits in self._clips:
            for limit in limits:
                if limit in names:
                    told.append(
                        f"node {name or '(unnamed)'} (Clip) takes a limit from the input {limit}: TensorRT needs a "
                        "constant (an initializer) there"
                    )
        return told


def _task(
    inputs: tuple[TensorInfo, ...], outputs: list[TensorInfo], labels: tuple[str, ...], properties: Mapping[str, str]
) -> str:
    """What the exporter says, or "classification" for one picture in and one row of scores out."""
    said = TASKS.get(properties.get("task", ""))
    if said:
        return said
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        return ""
    for output in outputs:
        classes = output.shape[-1] if len(output.shape) == 2 else None
        if not isinstance(classes, int) or not output.dtype.startswith("float"):
            continue
        if classes == len(labels) or (not labels and 2 <= classes <= CLASSES_LIMIT):
            return "classification"
    return ""
