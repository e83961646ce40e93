"""Builds small GGUF and ONNX files, right and wrong ones, for the tests of the readers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

MODELS = Path(__file__).parent.parent / "fixtures" / "models"


class Numbers(list):
    """An array of whole numbers of 32 bits."""


class Texts(list):
    """An array of strings."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(given: object) -> bytes:
    """A GGUF value with its type in front."""
    if isinstance(given, bool):
        return struct.pack("<IB", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    if isinstance(given, Numbers):
        return struct.pack("<IIQ", 9, 5, len(given)) + struct.pack(f"<{len(given)}i", *given)
    if isinstance(given, Texts):
        return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(map(text, given))
    return struct.pack("<I", 8) + text(given)


def gguf(
    keys: dict[str, object], tensors: Sequence[tuple[str, tuple[int, ...], int, int, int]] = (), data: int = 0
) -> bytes:
    """A GGUF file of version 3.

    Args:
        tensors: name, axes, type number, offset, (unused) size.
        data: bytes of zeros after the header.
    """
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    parts += [text(key) + value(given) for key, given in keys.items()]
    for name, axes, kind, offset, _ in tensors:
        parts.append(text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset))
    head = b"".join(parts)
    return head + bytes(-len(head) % 32 + data)


LLAMA = {
    "general.architecture": "llama",
    "general.name": "little",
    "llama.block_count": 2,
    "llama.context_length": 8192,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}
ONE_TENSOR = (("a.weight", (32, 2), 0, 0, 256),)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, content: int | str | bytes) -> bytes:
    """A protocol-buffers field: a varint, or a text or message."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor_type(name: str, axes: Sequence[int | str | None], dtype: int = 1) -> bytes:
    dims = b""
    for axis in axes:
        dims += field(1, b"" if axis is None else field(1 if isinstance(axis, int) else 2, axis))
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, dims)))


def tensor(name: str, axes: Sequence[int], dtype: int, raw: bytes | None = None, more: bytes = b"") -> bytes:
    content = b"".join(field(1, axis) for axis in axes) + field(2, dtype) + field(8, name)
    return content + (field(9, raw) if raw is not None else b"") + more


def external(location: str, offset: int, length: int) -> bytes:
    """external_data and data_location of a tensor."""
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    return b"".join(field(13, field(1, key) + field(2, text)) for key, text in entries.items()) + field(14, 1)


def onnx(graph: bytes, properties: dict[str, str] | None = None, opset: int = 13) -> bytes:
    told = b"".join(field(14, field(1, key) + field(2, text)) for key, text in (properties or {}).items())
    return field(1, 8) + field(7, graph) + field(8, field(2, opset)) + told


def classifier(axes: Sequence[int | str | None] = ("N", 3, 8, 8), classes: int | str = 4) -> bytes:
    """The graph of one picture in, one row of scores out."""
    node = field(1, field(1, "x") + field(2, "y") + field(4, "MatMul"))
    return node + field(11, tensor_type("x", axes)) + field(12, tensor_type("y", ("N", classes)))
