"""GGUF files: header, metadata and tensor list, read within limits whatever the file claims.

Every length is compared with the bytes that are left before anything is done with it; texts of the vocabulary are
counted, not decoded. `gguf_model` interprets what is found.
Source: GGUF specification in ggml's docs/gguf.md (versions 1 to 3), and what llama.cpp refuses.
"""

from __future__ import annotations

import math
import re
import struct
from typing import NamedTuple

from runners.contract import ModelRejected
from runners.formats.ggml_types import TYPES, tensor_bytes, type_name
from runners.formats.source import Source

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Limits far above what models have (about 50 keys, 2000 tensors, 600 000 strings), and cheap to reach.
KEYS_LIMIT = 8192
TENSORS_LIMIT = 1 << 16
STRINGS_LIMIT = 4 << 20
KEY_LIMIT_BYTES = 1024
TENSOR_NAME_LIMIT_BYTES = 128  # llama.cpp takes 63
TEXT_KEPT_BYTES = 512  # longer texts are skipped, except the chat template
TEMPLATE_LIMIT_BYTES = 1 << 20
ARRAY_KEPT = 4096  # longer arrays of numbers are skipped
NUMBERS_KEPT = 1 << 17  # in all arrays together
AXES_LIMIT = 4
ODD_TOLD = 8  # tensors of odd types named in warnings
ALIGNMENT = 32
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TEMPLATE_KEY = "tokenizer.chat_template"
ALIGNMENT_KEY = "general.alignment"
STRING, ARRAY, BOOL, U32 = 8, 9, 7, 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}

Scalar = str | int | float | bool
Numbers = tuple[int | float, ...]
Value = Scalar | Numbers


class Header(NamedTuple):
    """Metadata of a file.

    Attributes:
        values: what was kept: scalars, short texts, short arrays of numbers.
        lengths: key -> number of elements of each array.
    """

    version: int
    tensors: int
    values: dict[str, Value]
    lengths: dict[str, int]


class Tensor(NamedTuple):
    """One tensor; `offset` is from the beginning of the data, `size_bytes` None when its type does not tell."""

    name: str
    type_number: int
    elements: int
    offset: int
    size_bytes: int | None


class Tensors(NamedTuple):
    """All tensors of a file.

    Attributes:
        bytes_by_type: type name -> bytes.
        elements: of all tensors.
        warnings: sentences on tensors whose type is unknown, does not fit its shape, and the like.
    """

    bytes_by_type: dict[str, int]
    elements: int
    warnings: tuple[str, ...]


def read_header(source: Source) -> Header:
    """Read magic, version and metadata; the source is then at the tensor list.

    Raises:
        ModelRejected: truncated, damaged, hostile, big-endian, or of a version that runtimes don't read.
    """
    source.take(4, "the magic number")
    raw = source.take(4, "the version")
    little, big = (int.from_bytes(raw, order) for order in ("little", "big"))
    if 1 <= big <= 3:
        raise _big_endian(source, big)
    if little == 1:
        raise ModelRejected(
            f"{source.name} is GGUF version 1, which runtimes no longer read (they read version 2 and 3)",
            "convert the original model again with a current llama.cpp, or download a newer file",
        )
    if little not in VERSIONS:
        raise ModelRejected(
            f"{source.name} says GGUF version {little}; versions 2 and 3 are known here",
            "upgrade edge-agent if the version is that new, else download the file again",
        )
    return _Reader(source, "<").header(little)


def _big_endian(source: Source, version: int) -> ModelRejected:
    told = ""
    if version in VERSIONS:
        try:
            values = _Reader(source, ">").header(version).values
            facts = (f"{key}: {values[key]}" for key in ("general.architecture", "general.name") if key in values)
            told = f" ({', '.join(facts)})"
        except ModelRejected as error:
            told = f" (and damaged: {error.reason})"
    return ModelRejected(
        f"{source.name} is a big-endian GGUF of version {version}{told}; runtimes here need little-endian",
        "convert it with gguf_convert_endian.py of the gguf package, or download the little-endian file",
    )


def read_tensors(source: Source, header: Header) -> Tensors:
    """Read the tensor list that follows the metadata, and compare it with the size of the file.

    Raises:
        ModelRejected: data is missing, tensors overlap, or an entry is impossible.
    """
    alignment = _alignment(source, header)
    reader = _Reader(source, "<")
    seen: set[str] = set()
    tensors = []
    for index in range(header.tensors):
        tensor = reader.tensor(index)
        if tensor.name in seen:
            raise ModelRejected(f"{source.name}: two tensors are called {tensor.name!r}")
        if tensor.offset % alignment:
            raise ModelRejected(
                f"{source.name}: tensor {tensor.name!r} begins at {tensor.offset}, which is no multiple of the "
                f"alignment {alignment}"
            )
        seen.add(tensor.name)
        tensors.append(tensor)
    start = -(-source.position // alignment) * alignment
    return _measure(source, sorted(tensors, key=lambda tensor: tensor.offset), start, alignment)


def _alignment(source: Source, header: Header) -> int:
    value = header.values.get(ALIGNMENT_KEY, ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise ModelRejected(f"{source.name}: {ALIGNMENT_KEY} is {value}, not a power of 2")
    return value


def _measure(source: Source, tensors: list[Tensor], start: int, alignment: int) -> Tensors:
    """Sizes by type; tensors are in the order of their data.

    A size that the type does not tell is the way to the next tensor, or to the end of the file.
    """
    by_type: dict[str, int] = {}
    warnings: list[str] = []
    odd = end = total = 0
    available = max(0, source.size_bytes - start)
    for index, tensor in enumerate(tensors):
        if tensor.offset < end:
            raise ModelRejected(f"{source.name}: the data of tensor {tensor.name!r} overlaps the one before it")
        size = tensor.size_bytes
        if size is None:
            following = tensors[index + 1].offset if index + 1 < len(tensors) else max(available, tensor.offset)
            size = following - tensor.offset
            odd += 1
            if odd <= ODD_TOLD:
                warnings.append(_oddity(tensor, size))
        end = tensor.offset + size
        total += tensor.elements
        name = type_name(tensor.type_number)
        by_type[name] = by_type.get(name, 0) + size
    if tensors and start + end > source.size_bytes:
        raise ModelRejected(
            f"{source.name} is incomplete: it has {source.size_bytes} of {start + end} bytes "
            f"({start + end - source.size_bytes} missing)",
            "download or copy the rest of it, and compare its checksum",
        )
    if odd > ODD_TOLD:
        warnings.append(f"{odd - ODD_TOLD} more tensors are like these")
    extra = source.size_bytes - (start + -(-end // alignment) * alignment)
    if extra > 0:
        warnings.append(f"{extra} bytes follow the last tensor")
    return Tensors(by_type, total, tuple(warnings))


def _oddity(tensor: Tensor, size: int) -> str:
    known = TYPES.get(tensor.type_number)
    told = f"tensor {tensor.name!r} has ggml type {tensor.type_number}"
    if known is None:
        name = type_name(tensor.type_number)
        why = "which is not known here" if name.startswith("type ") else f"{name}, which runtimes have given up"
        return f"{told}, {why}: its size is taken as {size} bytes, up to the next tensor"
    return (
        f"{told} ({known.name}, blocks of {known.block}), which does not fit its shape: is the file from another "
        f"fork? Its size is taken as {size} bytes, up to the next tensor"
    )


def printable(text: str) -> str:
    """`text` with control characters spelled out: a file's name must not steer a terminal."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class _Reader:
    """The elements of the format, in one byte order ("<" or ">")."""

    def __init__(self, source: Source, order: str) -> None:
        self._source = source
        self._order = order
        self._u32 = struct.Struct(order + "I")
        self._u64 = struct.Struct(order + "Q")
        self._axes = [struct.Struct(f"{order}{count}QIQ") for count in range(AXES_LIMIT + 1)]
        self._strings = self._numbers = 0

    def u32(self, what: str) -> int:
        """An unsigned number of 32 bits."""
        return int(self._u32.unpack(self._source.take(4, what))[0])

    def u64(self, what: str) -> int:
        """An unsigned number of 64 bits."""
        return int(self._u64.unpack(self._source.take(8, what))[0])

    def text(self, limit: int, what: str) -> str | None:
        """A string, or None when it is longer than `limit` bytes and was skipped."""
        length = self.u64(what)
        if length > limit:
            self._source.skip(length, what)
            return None
        return self._source.take(length, what).decode("utf-8", "backslashreplace")

    def name(self, limit: int, what: str) -> str:
        """A key or a tensor's name."""
        length = self.u64(what)
        self._source.need(length, what)
        if length > limit:
            raise ModelRejected(f"{self._source.name}: {what} is longer than {limit} bytes")
        return printable(self._source.take(length, what).decode("utf-8", "backslashreplace"))

    def header(self, version: int) -> Header:
        """What follows the version, up to the tensor list."""
        tensors, keys = self.u64("the number of tensors"), self.u64("the number of keys")
        self._source.need(24 * tensors + 12 * keys, f"a list of {keys} keys and {tensors} tensors")
        if tensors > TENSORS_LIMIT or keys > KEYS_LIMIT:
            raise ModelRejected(
                f"{self._source.name} claims {keys} keys and {tensors} tensors; "
                f"{KEYS_LIMIT} and {TENSORS_LIMIT} are the most that is read"
            )
        header = Header(version, tensors, {}, {})
        seen: set[str] = set()
        for index in range(keys):
            key = self.name(KEY_LIMIT_BYTES, f"key {index + 1} of {keys}")
            if key in seen:
                raise ModelRejected(f"{self._source.name}: the key {key!r} is there twice")
            seen.add(key)
            self._value(key, header)
        return header

    def _value(self, key: str, header: Header) -> None:
        what = f"the value of {key!r}"
        kind = self.u32(what)
        if key == ALIGNMENT_KEY and kind != U32:
            raise ModelRejected(f"{self._source.name}: {key} is of type {kind}, not an unsigned 32-bit number")
        if kind == ARRAY:
            self._array(key, header)
        elif kind == STRING:
            text = self.text(TEMPLATE_LIMIT_BYTES if key == TEMPLATE_KEY else TEXT_KEPT_BYTES, what)
            if text is not None:
                header.values[key] = text if key == TEMPLATE_KEY else printable(text)
        else:
            header.values[key] = self._scalars(kind, 1, what)[0]

    def _scalars(self, kind: int, count: int, what: str) -> Numbers:
        form = self._form(kind, what)
        data = self._source.take(struct.calcsize(form) * count, what)
        values = struct.unpack(f"{self._order}{count}{form}", data)
        return tuple(value != 0 for value in values) if kind == BOOL else values

    def _form(self, kind: int, what: str) -> str:
        if kind not in SCALARS:
            raise ModelRejected(
                f"{self._source.name}: {what} is of type {kind}, which GGUF does not have (offset "
                f"{self._source.position})"
            )
        return SCALARS[kind]

    def _array(self, key: str, header: Header) -> None:
        what = f"the array {key!r}"
        kind, count = self.u32(what), self.u64(what)
        header.lengths[key] = count
        if kind == ARRAY:
            raise ModelRejected(f"{self._source.name}: {what} holds arrays, which no runtime reads")
        if kind == STRING:
            self._strings += count
            self._source.need(8 * count, f"{what} of {count} texts")
            if self._strings > STRINGS_LIMIT:
                raise ModelRejected(f"{self._source.name}: {what} holds {count} texts, more than any model has")
            self._skip_strings(count, what)
            return
        size = struct.calcsize(self._form(kind, what)) * count
        self._source.need(size, f"{what} of {count} numbers")
        if count > ARRAY_KEPT or self._numbers + count > NUMBERS_KEPT:
            self._source.skip(size, what)
        else:
            self._numbers += count
            header.values[key] = self._scalars(kind, count, what)

    def _skip_strings(self, count: int, what: str) -> None:
        if self._order == "<":
            self._source.skip_strings(count, what)
            return
        for _ in range(count):  # big-endian files are refused anyway: this only finds the names to tell
            self._source.skip(self.u64(what), what)

    def tensor(self, index: int) -> Tensor:
        """One entry of the tensor list."""
        name = self.name(TENSOR_NAME_LIMIT_BYTES, f"the name of tensor {index + 1}")
        count = self.u32(f"tensor {name!r}")
        if count > AXES_LIMIT:
            raise ModelRejected(
                f"{self._source.name}: tensor {name!r} has an invalid number of dimensions (n_dims): "
                f"{count} > {AXES_LIMIT}"
            )
        form = self._axes[count]
        *axes, kind, offset = form.unpack(self._source.take(form.size, f"tensor {name!r}"))
        elements = math.prod(axes)
        if elements >= 1 << 63:
            raise ModelRejected(f"{self._source.name}: tensor {name!r} of shape {axes} has more elements than 2^63")
        return Tensor(name, kind, elements, offset, tensor_bytes(kind, axes[0] if axes else 1, elements))
