"""Weights of an ONNX file: counted and measured, not read; external data is looked for on the disk."""

from __future__ import annotations

import math
import os
from array import array
from pathlib import Path

import msgspec

from runners.contract import ModelRejected
from runners.formats.recognise import lfs_pointer
from runners.formats.wire import BYTES, VARINT, Wire, signed

TENSORS_LIMIT = 1 << 16
NAME_LIMIT_BYTES = 256
DIMS_LIMIT = 64
FILES_LIMIT = 4096
INT64 = 7
INT64_READ_BYTES = 1 << 16  # longer lists of integers are tables, no shapes or indices
INT64_BUDGET_BYTES = 1 << 20
# TensorProto.DataType as NumPy spells it. Source: onnx/onnx.proto
DTYPES = (
    *("", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "str", "bool", "float16"),
    *("float64", "uint32", "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1", "float8_e8m0"),
)
BITS = {  # TensorProto.DataType -> bits of an element; strings have no fixed size
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((21, 22, 23), 4),
    15: 128,
}


def dtype_name(number: int) -> str:
    """A TensorProto.DataType as NumPy spells it."""
    return DTYPES[number] if 0 < number < len(DTYPES) else f"type {number}"


class _Tensor(msgspec.Struct):
    """TensorProto while it is read."""

    name: str = ""
    dtype: int = 0
    dims: list[int] = []
    stored: int = 0
    external: dict[str, str] = {}
    is_external: bool = False
    raw_at: int = 0
    raw: int | None = None


class Initializers:
    """All tensors of a model.

    Attributes:
        names: of those that stand for inputs.
        elements: of all.
        bytes_by_type: dtype -> bytes.
        external: file name -> bytes that it must have.
        out_of_int32: integers of 64 bits that don't fit into 32.
    """

    def __init__(self, wire: Wire) -> None:
        self.names: set[str] = set()
        self.elements = 0
        self.bytes_by_type: dict[str, int] = {}
        self.external: dict[str, int] = {}
        self.out_of_int32 = 0
        self.warnings: list[str] = []
        self._wire = wire
        self._count = 0
        self._int64_left = INT64_BUDGET_BYTES

    def read(self, length: int, named: bool) -> None:
        """Read a TensorProto of `length` bytes: dims = 1, data_type = 2, name = 8, raw_data = 9, external_data = 13.

        Args:
            length: in bytes.
            named: whether it may stand for a graph input of its name.
        """
        self._count += 1
        if self._count > TENSORS_LIMIT:
            raise ModelRejected(f"{self._wire.source.name} has more than {TENSORS_LIMIT} tensors")
        tensor = _Tensor()
        end = self._wire.source.position + length
        for field in self._wire.fields(length, "a tensor"):
            if field.number == 1:
                self._dims(tensor, field.wire, field.value)
            elif field.number == 2 and field.wire == VARINT:
                tensor.dtype = field.value
            elif field.number == 14 and field.wire == VARINT:
                tensor.is_external = field.value == 1
            elif field.wire == VARINT:
                self._loose_number(tensor, field.number, signed(field.value))
            elif field.number == 8:
                tensor.name = self._wire.text(field.value, NAME_LIMIT_BYTES, "a tensor's name")
            elif field.number == 9:
                tensor.raw_at, tensor.raw = self._wire.source.position, field.value
            elif field.number == 13:
                self._external_entry(tensor, field.value)
            elif field.number == 7 and field.wire == BYTES:
                self._packed_int64(tensor, field.value)
            else:
                tensor.stored += field.value
        self._take(tensor)
        self._wire.source.position = end
        if named:
            self.names.add(tensor.name)

    def check_external(self) -> int:
        """See whether files with weights are there and long enough.

        Returns: their bytes together.

        Raises:
            ModelRejected: one is missing, too short, or outside of the model's folder.
        """
        folder = Path(self._wire.source.name).parent
        total, missing = 0, []
        for name, needed in sorted(self.external.items()):
            if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name or not name:
                raise ModelRejected(
                    f"{self._wire.source.name} wants external data from {name!r}, which leaves its folder: refused",
                    "put the data file beside the model and write the model again with that name",
                )
            try:
                size = (folder / name).stat().st_size
            except OSError:
                missing.append(name)
                continue
            if size < needed:
                raise self._too_short(folder / name, size, needed)
            total += size
        if missing:
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            raise ModelRejected(
                f"{self._wire.source.name} keeps its weights in other files, and these are missing beside it: "
                f"{', '.join(missing[:8])}{more}",
                "download them into the same folder",
            )
        return total

    def _too_short(self, path: Path, size: int, needed: int) -> ModelRejected:
        pointer = None
        if size < 1024 and path.is_file():
            pointer = lfs_pointer(path.read_bytes())
        if pointer:
            return ModelRejected(
                f"{path} is a git-LFS pointer: its {pointer[1]} bytes were not fetched (oid {pointer[0]})",
                "run git lfs pull in its repository, or download the file itself",
            )
        return ModelRejected(
            f"{path}, the external data of {self._wire.source.name}, is incomplete: it has {size} of {needed} bytes",
            "download or copy the rest of it",
        )

    def _dims(self, tensor: _Tensor, wire: int, value: int) -> None:
        if wire == VARINT:
            tensor.dims.append(signed(value))
        elif wire == BYTES:
            end = self._wire.source.position + value
            while self._wire.source.position < end and len(tensor.dims) <= DIMS_LIMIT:
                tensor.dims.append(signed(self._wire.varint("a shape")))
        if len(tensor.dims) > DIMS_LIMIT:
            raise self._wire.damaged(f"a tensor of more than {DIMS_LIMIT} axes")

    def _external_entry(self, tensor: _Tensor, length: int) -> None:
        """StringStringEntryProto: key = 1 (location, offset, length), value = 2."""
        key = value = ""
        for field in self._wire.fields(length, "an external data entry"):
            if field.number == 1 and field.wire == BYTES:
                key = self._wire.text(field.value, NAME_LIMIT_BYTES, "an external data key")
            elif field.number == 2 and field.wire == BYTES:
                value = self._wire.text(field.value, 4096, "an external data value")
        if key in ("location", "offset", "length"):
            tensor.external[key] = value

    def _loose_number(self, tensor: _Tensor, number: int, value: int) -> None:
        """A number of int32_data = 5, int64_data = 7 or uint64_data = 11 that is not packed with the others."""
        tensor.stored += number in (5, 7, 11)
        if number == 7:
            self._check_int64(tensor, value)

    def _packed_int64(self, tensor: _Tensor, length: int) -> None:
        source = self._wire.source
        tensor.stored += length
        if length > min(INT64_READ_BYTES, self._int64_left):
            return
        self._int64_left -= length
        end = source.position + length
        while source.position < end:
            self._check_int64(tensor, signed(self._wire.varint("an integer")))

    def _check_int64(self, tensor: _Tensor, value: int) -> None:
        if -(1 << 31) <= value < 1 << 31:
            return
        self.out_of_int32 += 1
        if self.out_of_int32 <= 4:
            self.warnings.append(
                f"tensor {tensor.name or '(unnamed)'} holds the 64-bit integer {value}: a runtime that casts to "
                "32 bits (older TensorRT) would clamp it and answer differently"
            )

    def _take(self, tensor: _Tensor) -> None:
        """Count a tensor whose fields are read."""
        shown = tensor.name or "(unnamed)"
        elements = math.prod(tensor.dims)
        if elements >= 1 << 63 or any(axis < 0 for axis in tensor.dims):
            raise self._wire.damaged(f"tensor {shown} has the impossible shape {tensor.dims[:8]}")
        size = -(-elements * BITS.get(tensor.dtype, 0) // 8) or tensor.stored
        if tensor.is_external or tensor.external:
            self._note_external(tensor, size)
        elif tensor.raw is not None:
            if tensor.dtype in BITS and tensor.raw != size and len(self.warnings) < 16:
                self.warnings.append(f"tensor {shown} has {tensor.raw} bytes of data, and its shape says {size}")
            size = tensor.raw
            self._raw_int64(tensor)
        else:
            size = min(size, tensor.stored * 8)  # a shape alone holds nothing
        self.elements += elements
        name = dtype_name(tensor.dtype)
        if len(self.bytes_by_type) < 64 or name in self.bytes_by_type:
            self.bytes_by_type[name] = self.bytes_by_type.get(name, 0) + size

    def _raw_int64(self, tensor: _Tensor) -> None:
        if tensor.dtype != INT64 or not tensor.raw or tensor.raw > min(INT64_READ_BYTES, self._int64_left):
            return
        self._int64_left -= tensor.raw
        self._wire.source.position = tensor.raw_at
        values = array("q", self._wire.source.take(tensor.raw // 8 * 8, "integers"))
        if min(values, default=0) < -(1 << 31) or max(values, default=0) >= 1 << 31:
            for value in values:
                self._check_int64(tensor, value)

    def _note_external(self, tensor: _Tensor, size: int) -> None:
        entries = tensor.external
        try:
            offset = int(entries.get("offset", "0")[:24])
            length = int(entries.get("length", str(size))[:24])
        except ValueError as error:
            raise self._wire.damaged(f"tensor {tensor.name} has external data at {entries}") from error
        if offset < 0 or length < 0:
            raise self._wire.damaged(f"tensor {tensor.name} has external data at {entries}")
        if len(self.external) >= FILES_LIMIT:
            raise ModelRejected(f"{self._wire.source.name} wants external data from more than {FILES_LIMIT} files")
        name = entries.get("location", "")
        self.external[name] = max(self.external.get(name, 0), offset + length)
