"""Which GPUs a library, a fat binary or a cubin holds code for, read from its headers without NVIDIA's tools.

A library keeps its device code in the ELF sections `.nv_fatbin` and `__nv_relfatbin`: containers one after another,
each a row of entries (cubins for one sm_xx, PTX for one compute_xx or later). Only headers are read, never code: half a
gigabyte of cuBLAS takes a few thousand small reads and no memory.

Source: `fatbinary_section.h` of CUDA 13.5 (names of the sections); the layout of the headers is not documented, and is
read from what `fatbinary` and `ptxas` of CUDA 12.9 and 13.5 write, which the tests run. Compatibility rules: CUDA C++
Programming Guide, "Compute Capabilities" (a = this GPU only, f = this family); sm_80 and sm_86 code runs on Orin (8.7).
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from probes.host import LINKS_LIMIT, Host, open_without_waiting

ELF_MAGIC = b"\x7fELF"
FATBIN_MAGIC = b"\x50\xed\x55\xba"
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
CUDA_MACHINE = 190  # EM_CUDA: the file itself is a cubin
KIND_PTX, KIND_CUBIN, KIND_JOINED = 1, 2, 0x100  # joined: several compressed together, a header for each
FLAG_THIS_GPU_ONLY, FLAG_FAMILY = 1 << 20, 1 << 21  # "sm_90a", "sm_100f"
CUBIN_VERSION_WIDE = 8  # from here on the number of the GPU is in bits 8 to 23 of e_flags; before, in bits 0 to 7

STEPS_LIMIT = 200_000  # headers looked at in one file; cuBLASLt 13 has about 8,000
SECTIONS_LIMIT = 4096
NAMES_LIMIT_BYTES = 1 << 20
PADDING_BYTES = 4096  # zeros between two containers

_FILE = struct.Struct("<4sHHQ")  # magic, version, size of this header, size of what follows
_ENTRY = struct.Struct(
    "<HHIQIIHHI8xQ"
)  # kind, version, header, payload, compressed, options, minor, major, arch, flags
_JOINED = struct.Struct("<II")  # how many headers, and their size with these eight bytes
ENTRY_BYTES = 64
ENTRY_VERSION = 0x101


class DeviceCode(msgspec.Struct, frozen=True, kw_only=True):
    """The code for GPUs that a file holds.

    Attributes:
        cubins: ready code: "sm_87", "sm_90a", "sm_100f", in order of the GPUs.
        ptx: code that a driver translates: "compute_50" for that GPU and later ones.
        complete: whether all of it was read; with False there may be more.
    """

    cubins: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    complete: bool = True

    def runs_on(self, capability: str) -> bool | None:
        """Whether a GPU of this compute capability ("8.7") has code here; None when it can't be told."""
        wanted = re.fullmatch(r"(\d{1,3})\.(\d)", capability)
        if wanted is None:
            return None
        major, minor = int(wanted[1]), int(wanted[2])
        if any(_fits(name, major, minor, translated=False) for name in self.cubins):
            return True
        if any(_fits(name, major, minor, translated=True) for name in self.ptx):
            return True
        return False if self.complete else None


def _fits(name: str, major: int, minor: int, *, translated: bool) -> bool:
    match = re.search(r"_(\d+)(\d)([af]?)\Z", name)
    if match is None:
        return False
    has = (int(match[1]), int(match[2]))
    if match[3] == "a":
        return has == (major, minor)
    if translated and not match[3]:
        return has <= (major, minor)
    return has[0] == major and has[1] <= minor


class _Unreadable(Exception):
    """The bytes are not what they should be, or too many."""


class _Reader:
    """Reads pieces of a file, and gives up after too many of them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = STEPS_LIMIT

    def at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes.

        Raises:
            _Unreadable: the file ends before, or it was asked too often.
        """
        self._left -= 1
        if self._left < 0 or offset >= 1 << 62:
            raise _Unreadable
        self._file.seek(offset)
        data = self._file.read(size)
        if data is None or len(data) != size:
            raise _Unreadable
        return data


def read(host: Host, path: str) -> DeviceCode | None:
    """The device code of a file of the device, links followed; None when it can't be read or is nothing of the kind."""
    try:
        with open(_followed(host, path), "rb", buffering=0, opener=open_without_waiting) as file:
            return parse(file) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def _followed(host: Host, path: str) -> Path:
    """Where a file of the device lies, its last part followed as well."""
    for _ in range(LINKS_LIMIT):
        target = host.link(path) if host.recorded else None
        if target is None:
            break
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return host.path(path)


def parse(file: BinaryIO) -> DeviceCode | None:
    """The device code of an open file: ELF library or program, cubin, or bare fat binary.

    Returns: None when the file is none of these. A library without any device code has empty lists.
    """
    reader = _Reader(file)
    try:
        head = reader.at(0, 16)
    except _Unreadable:
        return None
    if head[:4] == FATBIN_MAGIC:
        file.seek(0, os.SEEK_END)
        return _collect(_containers(reader, 0, file.tell()))
    if head[:6] != ELF_MAGIC + b"\x02\x01":  # 64 bits, little endian
        return None
    try:
        header = reader.at(0, 64)
        if struct.unpack_from("<H", header, 18)[0] == CUDA_MACHINE:
            return DeviceCode(cubins=(_cubin_name(header),))
        regions = list(_sections(reader, header))
    except _Unreadable:
        return DeviceCode(complete=False)
    return _collect(entry for offset, size in regions for entry in _containers(reader, offset, size))


def _cubin_name(header: bytes) -> str:
    flags = struct.unpack_from("<I", header, 48)[0]
    number = flags >> 8 & 0xFFFF if header[8] >= CUBIN_VERSION_WIDE else flags & 0xFF
    return f"sm_{number}"


def _sections(reader: _Reader, header: bytes) -> Iterator[tuple[int, int]]:
    """(offset, size) of each section that holds device code. Source: elf(5)."""
    table = struct.unpack_from("<Q", header, 40)[0]
    row_bytes, count, names_index = struct.unpack_from("<HHH", header, 58)
    if table == 0 or count == 0:
        return
    if row_bytes < 64 or count > SECTIONS_LIMIT or names_index >= count:
        raise _Unreadable
    rows = [reader.at(table + index * row_bytes, 64) for index in range(count)]
    names_offset, names_size = struct.unpack_from("<QQ", rows[names_index], 24)
    names = reader.at(names_offset, min(names_size, NAMES_LIMIT_BYTES))
    for row in rows:
        name_at, kind = struct.unpack_from("<II", row)
        end = names.find(b"\0", name_at)
        if names[name_at:end] in SECTIONS and kind != 8:  # 8: takes no place in the file
            yield struct.unpack_from("<QQ", row, 24)


def _collect(entries: Iterator[tuple[int, str]]) -> DeviceCode:
    cubins: set[str] = set()
    ptx: set[str] = set()
    complete = True
    try:
        for kind, suffix in entries:
            if kind == KIND_CUBIN:
                cubins.add(f"sm_{suffix}")
            elif kind == KIND_PTX:
                ptx.add(f"compute_{suffix}")
    except _Unreadable:
        complete = False
    return DeviceCode(cubins=_ordered(cubins), ptx=_ordered(ptx), complete=complete)


def _ordered(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _containers(reader: _Reader, offset: int, size: int) -> Iterator[tuple[int, str]]:
    """(kind, "87" or "90a") of each entry in a region full of containers.

    Raises:
        _Unreadable: something there is no container.
    """
    end = offset + size
    while offset + _FILE.size <= end:
        magic, _, header_bytes, size_bytes = _FILE.unpack(reader.at(offset, _FILE.size))
        if magic == b"\0\0\0\0":
            offset = _after_padding(reader, offset, end)
            continue
        if magic != FATBIN_MAGIC or header_bytes < _FILE.size or offset + header_bytes + size_bytes > end:
            raise _Unreadable
        first = offset + header_bytes
        yield from _entries(reader, first, first + size_bytes)
        offset = (first + size_bytes + 7) & ~7


def _after_padding(reader: _Reader, offset: int, end: int) -> int:
    """Where the zeros at `offset` end, in steps of eight bytes; `end` when nothing else comes."""
    piece = reader.at(offset, min(PADDING_BYTES, end - offset))
    zeros = len(piece) - len(piece.lstrip(b"\0"))
    return offset + (zeros & ~7 if zeros < len(piece) else len(piece))


def _entries(reader: _Reader, offset: int, end: int) -> Iterator[tuple[int, str]]:
    while offset + ENTRY_BYTES <= end:
        row = reader.at(offset, ENTRY_BYTES)
        kind, _, header_bytes, payload_bytes = _ENTRY.unpack_from(row)[:4]
        if header_bytes < ENTRY_BYTES or offset + header_bytes + payload_bytes > end:
            raise _Unreadable
        if kind == KIND_JOINED:
            yield from _joined(reader, offset + ENTRY_BYTES, offset + header_bytes)
        else:
            yield kind, _suffix(row)
        offset += header_bytes + payload_bytes


def _joined(reader: _Reader, offset: int, end: int) -> Iterator[tuple[int, str]]:
    """The headers of entries that were compressed together; each is followed by its options, as in the first header."""
    count, _ = _JOINED.unpack(reader.at(offset, _JOINED.size))
    offset += _JOINED.size
    for _ in range(count):
        if offset + ENTRY_BYTES > end:
            raise _Unreadable
        row = reader.at(offset, ENTRY_BYTES)
        kind, version, _, _, _, options_at = _ENTRY.unpack_from(row)[:6]
        if version != ENTRY_VERSION or options_at not in (0, ENTRY_BYTES):
            raise _Unreadable
        yield kind, _suffix(row)
        offset += ENTRY_BYTES
        if options_at:  # two numbers, the second the options' length; the options; a name that ends with a NUL
            _, options_bytes = _JOINED.unpack(reader.at(offset, _JOINED.size))
            offset += (_JOINED.size + options_bytes + 1 + 7) & ~7


def _suffix(row: bytes) -> str:
    number, flags = _ENTRY.unpack_from(row)[-2:]
    return f"{number}{'a' if flags & FLAG_THIS_GPU_ONLY else 'f' if flags & FLAG_FAMILY else ''}"
