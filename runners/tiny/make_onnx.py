"""Writes `tiny.onnx`: convolution, ReLU and matrix product in small integers; its answer can be worked out by hand.

Run `python -m runners.tiny.make_onnx [FILE]` to make it again; the result is the same bytes every time.

How it works. The input is a 4x4 picture of the numbers 1 to 16. Two 3x3 filters without padding give 2x2 each:

- filter 0 takes the centre:                6  7 10 11
- filter 1 takes twice the centre minus 15: -3 -1  5  7, and ReLU makes 0 0 5 7 of it

The eight numbers times the matrix [1, ±1] give their sum 46 and their alternating sum -4. All are small integers,
exact in every format that a GPU computes in (TF32, FP16), so a wrong digit is a wrong kernel and not rounding.

The functions below write protobuf messages by ONNX's field numbers (onnx.proto3, IR version 8), without a library.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

INPUT = tuple(float(n) for n in range(1, 17))  # float32, (1, 1, 4, 4), row by row
ANSWER = (46.0, -4.0)  # float32, (1, 2)

FLOAT, UINT8, INT64 = 1, 2, 7  # TensorProto.DataType
Axis = int | str | None  # size, name of a dynamic axis, or not stated


def varint(value: int) -> bytes:
    """`value` as a protobuf varint; negative numbers as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of wire type 0."""
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes | str) -> bytes:
    """A field of wire type 2: bytes, text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def tensor(name: str, shape: Sequence[int], values: Sequence[float], kind: int = FLOAT) -> bytes:
    """A TensorProto with raw data, for an initializer.

    Args:
        name: what nodes call it.
        shape: axis sizes.
        values: row by row; as many as `shape` says.
        kind: FLOAT or INT64.
    """
    code = "f" if kind == FLOAT else "q"
    numbers = values if kind == FLOAT else [int(v) for v in values]
    raw = struct.pack(f"<{len(values)}{code}", *numbers)
    return b"".join(number(1, size) for size in shape) + number(2, kind) + data(8, name) + data(9, raw)


def value_info(name: str, shape: Sequence[Axis], kind: int = FLOAT) -> bytes:
    """A ValueInfoProto: an input or output of the graph."""
    dims = b""
    for axis in shape:
        stated = number(1, axis) if isinstance(axis, int) else data(2, axis) if axis else b""
        dims += data(1, stated)
    return data(1, name) + data(2, data(1, number(1, kind) + data(2, dims)))


def ints(name: str, values: Sequence[int]) -> bytes:
    """An AttributeProto of type INTS."""
    return data(1, name) + b"".join(number(8, value) for value in values) + number(20, 7)


def integer(name: str, value: int) -> bytes:
    """An AttributeProto of type INT."""
    return data(1, name) + number(3, value) + number(20, 2)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Sequence[bytes] = (), domain: str = ""
) -> bytes:
    """A NodeProto named after its first output."""
    return (
        b"".join(data(1, name) for name in inputs)
        + b"".join(data(2, name) for name in outputs)
        + data(3, f"{op}_{outputs[0]}")
        + data(4, op)
        + b"".join(data(5, attribute) for attribute in attributes)
        + (data(7, domain) if domain else b"")
    )


def model(
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    initializers: Sequence[bytes] = (),
    *,
    metadata: Mapping[str, str] | None = None,
    ir_version: int = 8,
    opsets: Mapping[str, int] | None = None,
) -> bytes:
    """A whole ModelProto, as it goes into a file."""
    graph = (
        b"".join(data(1, one) for one in nodes)
        + data(2, "graph")
        + b"".join(data(5, one) for one in initializers)
        + b"".join(data(11, one) for one in inputs)
        + b"".join(data(12, one) for one in outputs)
    )
    imports = (opsets or {"": 13}).items()
    return (
        number(1, ir_version)
        + data(2, "edge-agent")
        + data(7, graph)
        + b"".join(data(8, data(1, domain) + number(2, version)) for domain, version in imports)
        + b"".join(data(14, data(1, key) + data(2, text)) for key, text in (metadata or {}).items())
    )


def tiny() -> bytes:
    """The bytes of `tiny.onnx`."""
    centre = (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    sums = [sign for row in range(8) for sign in (1.0, 1.0 if row % 2 == 0 else -1.0)]
    return model(
        nodes=[
            node("Conv", ["x", "filters", "bias"], ["features"], [ints("kernel_shape", [3, 3])]),
            node("Relu", ["features"], ["positive"]),
            node("Flatten", ["positive"], ["flat"], [integer("axis", 1)]),
            node("MatMul", ["flat", "sums"], ["y"]),
        ],
        inputs=[value_info("x", [1, 1, 4, 4])],
        outputs=[value_info("y", [1, 2])],
        initializers=[
            tensor("filters", [2, 1, 3, 3], [*centre, *(2 * value for value in centre)]),
            tensor("bias", [2], [0.0, -15.0]),
            tensor("sums", [8, 2], sums),
        ],
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("tiny.onnx")
    target.write_bytes(tiny())
