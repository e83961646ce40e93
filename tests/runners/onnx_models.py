"""Small ONNX files for tests, written by our own writer, each with what a reader would say of it."""

from __future__ import annotations

from pathlib import Path

from runners.model import ModelInfo, TensorInfo
from runners.tiny import make_onnx as onnx

PLAIN = '{"scale": 0.00392156862745098, "mean": [0, 0, 0], "std": [1, 1, 1], "resize": "stretch"}'
Axes = list["int | str | None"]


def write(
    path: Path, data: bytes, inputs: dict[str, Axes], outputs: dict[str, Axes], dtype: str = "float32"
) -> ModelInfo:
    path.write_bytes(data)
    return ModelInfo(
        path=str(path),
        format="onnx",
        size_bytes=len(data),
        format_version=8,
        opsets={"": 13},
        inputs=tuple(TensorInfo(name=n, shape=tuple(s), dtype=dtype) for n, s in inputs.items()),
        outputs=tuple(TensorInfo(name=n, shape=tuple(s), dtype="float32") for n, s in outputs.items()),
    )


def sidecar(model: ModelInfo, text: str = PLAIN) -> ModelInfo:
    Path(f"{model.path}.json").write_text(text)
    return model


def channel_means(
    folder: Path, batch: int | str = "N", side: int | str = 8, before: list[bytes] | None = None, name: str = "means"
) -> ModelInfo:
    """Three classes: the mean of each channel. `before` may make "changed" of "images"."""
    source = "changed" if before else "images"
    shape: Axes = [batch, 3, side, side]
    data = onnx.model(
        nodes=[
            *(before or []),
            onnx.node("GlobalAveragePool", [source], ["pooled"]),
            onnx.node("Flatten", ["pooled"], ["scores"], [onnx.integer("axis", 1)]),
        ],
        inputs=[onnx.value_info("images", shape)],
        outputs=[onnx.value_info("scores", [batch, 3])],
        initializers=[
            onnx.tensor("zero", [1], [0], onnx.INT64),
            onnx.tensor("one", [1], [1], onnx.INT64),
            onnx.tensor("ten", [1], [10.0]),
        ],
    )
    return write(folder / f"{name}.onnx", data, {"images": shape}, {"scores": [batch, 3]})


def first_item_only(folder: Path) -> ModelInfo:
    """Dynamic in name only: whatever the batch, one row comes out (MF-28)."""
    cut = onnx.node("Slice", ["images", "zero", "one", "zero"], ["changed"])
    return channel_means(folder, before=[cut], name="first-only")


def mixes_rows(folder: Path) -> ModelInfo:
    """The right number of rows, but each depends on its neighbours."""
    mean = onnx.node("ReduceMean", ["images"], ["mean"], [onnx.ints("axes", [0])])
    return channel_means(folder, before=[mean, onnx.node("Sub", ["images", "mean"], ["changed"])], name="mixes")


def logits(folder: Path) -> ModelInfo:
    """Ten times the means of what the sidecar makes -1 to 1 of: numbers that softmax is needed for."""
    return channel_means(folder, before=[onnx.node("Mul", ["images", "ten"], ["changed"])], name="logits")


def not_a_number(folder: Path) -> ModelInfo:
    """Answers NaN to everything."""
    nothing = onnx.node("Sub", ["images", "images"], ["nothing"])
    return channel_means(folder, before=[nothing, onnx.node("Div", ["nothing", "nothing"], ["changed"])], name="nan")


def channels_last_bytes(folder: Path) -> ModelInfo:
    """uint8, (N, height, width, 3): the mean of each channel, 0 to 255."""
    shape: Axes = ["N", 8, 8, 3]
    axes = [onnx.ints("axes", [1, 2]), onnx.integer("keepdims", 0)]
    data = onnx.model(
        nodes=[
            onnx.node("Cast", ["images"], ["floats"], [onnx.integer("to", onnx.FLOAT)]),
            onnx.node("ReduceMean", ["floats"], ["scores"], axes),
        ],
        inputs=[onnx.value_info("images", shape, onnx.UINT8)],
        outputs=[onnx.value_info("scores", ["N", 3])],
    )
    return write(folder / "last.onnx", data, {"images": shape}, {"scores": ["N", 3]}, "uint8")


def relu(
    folder: Path, ir_version: int = 8, opset: int = 13, name: str = "relu", domains: dict[str, int] | None = None
) -> ModelInfo:
    """One ReLU with the versions asked for."""
    opsets = {"": opset, **(domains or {})}
    data = onnx.model(
        nodes=[onnx.node("Relu", ["x"], ["y"])],
        inputs=[onnx.value_info("x", [1, 4])],
        outputs=[onnx.value_info("y", [1, 4])],
        ir_version=ir_version,
        opsets=opsets,
    )
    info = write(folder / f"{name}.onnx", data, {"x": [1, 4]}, {"y": [1, 4]})
    return ModelInfo(
        path=info.path,
        format="onnx",
        size_bytes=info.size_bytes,
        format_version=ir_version,
        opsets=opsets,
        inputs=info.inputs,
        outputs=info.outputs,
    )
