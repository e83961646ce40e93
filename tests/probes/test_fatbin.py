"""The reader of device code against what NVIDIA's ptxas and fatbinary write, and against bytes of any kind."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import fatbin
from probes.fatbin import DeviceCode
from probes.host import Host
from tests.probes.nvidia_tools import pack

ENTRY = struct.Struct("<HHIQIIHHI8xQ16x")


def parsed(data: bytes) -> DeviceCode | None:
    return fatbin.parse(io.BytesIO(data))


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<4sHHQ", fatbin.FATBIN_MAGIC, 1, 16, len(body)) + body


def entry(kind: int, number: int, payload: bytes = b"", header: int = 64) -> bytes:
    return ENTRY.pack(kind, 0x101, header, len(payload), 0, 0, 0, 0, number, 0) + payload


def library(folder: Path, *fatbins: Path) -> Path:
    """A shared library with these fat binaries in its section, as nvcc makes one."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler: no library with device code was made")
    lines = "".join(
        f'__asm__(".section .nv_fatbin, \\"a\\"\\n.align 8\\n.incbin \\"{path}\\"\\n");\n' for path in fatbins
    )
    output = folder / "libkernels.so"
    command = [gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", str(output)]
    subprocess.run(command, input=lines.encode() + b"int nothing;\n", check=True, capture_output=True)
    return output


# What NVIDIA's tools write


@pytest.mark.parametrize("flags", [(), ("--compress-all",), ("--compress-all", "--concat"), ("--compress=false",)])
def test_a_fat_binary_of_nvidias_tool_is_read_whole(tmp_path: Path, flags: tuple[str, ...]) -> None:
    file = pack(tmp_path, ("80", "87", "90a", "100f", "110", "120a"), ("50", "90a"), *flags)
    assert parsed(file.read_bytes()) == DeviceCode(
        cubins=("sm_80", "sm_87", "sm_90a", "sm_100f", "sm_110", "sm_120a"), ptx=("compute_50", "compute_90a")
    )


def test_a_library_with_several_fat_binaries_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = pack(tmp_path / "a", ("87",), ()), pack(tmp_path / "b", ("110",), ("75",))
    path = library(tmp_path, first, second)
    assert fatbin.read(Host(), str(path)) == DeviceCode(cubins=("sm_87", "sm_110"), ptx=("compute_75",))


def test_a_library_of_a_recorded_device_is_read_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib").mkdir(parents=True)
    (tmp_path / "root/usr/lib/libx.so").write_bytes(library(tmp_path, pack(tmp_path, ("87",), ())).read_bytes())
    (tmp_path / "root/usr/lib/libx.so.1").symlink_to("/usr/lib/libx.so")
    code = fatbin.read(Host(root=tmp_path / "root"), "/usr/lib/libx.so.1")
    assert code == DeviceCode(cubins=("sm_87",))


def test_a_program_without_device_code_has_none_and_a_text_is_no_such_file(tmp_path: Path) -> None:
    assert fatbin.read(Host(), os.path.realpath("/bin/sh")) == DeviceCode()
    (tmp_path / "x.so").write_text("INPUT(libx.so.1) and more of it")
    assert fatbin.read(Host(), str(tmp_path / "x.so")) is None
    assert fatbin.read(Host(), str(tmp_path / "missing.so")) is None
    assert fatbin.read(Host(), str(tmp_path)) is None
    assert fatbin.read(Host(), "a\0b") is None


def test_a_pipe_is_no_library_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libx.so")
    assert fatbin.read(Host(), str(tmp_path / "libx.so")) is None


# Which GPU may run it


@pytest.mark.parametrize(
    ("cubins", "ptx", "capability", "answer"),
    [
        (("sm_80",), (), "8.7", True),  # torch on JetPack 7.2
        (("sm_86",), (), "8.7", True),
        (("sm_87",), (), "8.6", False),
        (("sm_89", "sm_90", "sm_120", "sm_121"), (), "8.7", False),  # onnxruntime-gpu 1.31.1 on Orin
        (("sm_89", "sm_90", "sm_120", "sm_121"), (), "11.0", False),  # and on Thor
        (("sm_101",), (), "11.0", False),  # Thor's old name is another number
        (("sm_110",), (), "11.0", True),
        ((), ("compute_50",), "11.0", True),
        ((), ("compute_90",), "8.7", False),
        (("sm_90a",), (), "9.0", True),
        (("sm_100a",), (), "10.3", False),
        (("sm_100f",), (), "10.3", True),
        ((), ("compute_90a",), "10.0", False),
        ((), ("compute_100f",), "12.0", False),
        ((), (), "8.7", False),
        (("sm_87",), (), "?", None),
        (("sm_87",), (), "", None),
    ],
)
def test_what_runs_where(cubins: tuple[str, ...], ptx: tuple[str, ...], capability: str, answer: bool | None) -> None:
    assert DeviceCode(cubins=cubins, ptx=ptx).runs_on(capability) is answer


def test_what_was_not_read_whole_does_not_say_no() -> None:
    assert DeviceCode(cubins=("sm_80",), complete=False).runs_on("11.0") is None
    assert DeviceCode(cubins=("sm_80",), complete=False).runs_on("8.7") is True


# Bytes of any kind


def test_zeros_between_containers_are_stepped_over() -> None:
    data = container(entry(2, 87)) + bytes(4096 * 3 + 40) + container(entry(1, 50, b"12345678"))
    assert parsed(data) == DeviceCode(cubins=("sm_87",), ptx=("compute_50",))


@pytest.mark.parametrize(
    "data",
    [
        container(entry(2, 87), entry(2, 110, header=0)),  # would never end
        container(entry(2, 87), entry(2, 110, header=1 << 31)),
        container(entry(2, 87)) + b"garbage!" * 4,
        container(entry(2, 87)) + container(entry(2, 87), entry(2, 110))[:-64],
    ],
)
def test_broken_headers_are_told_as_incomplete(data: bytes) -> None:
    assert parsed(data) == DeviceCode(cubins=("sm_87",), complete=False)


def test_a_file_of_nothing_but_headers_ends_in_time() -> None:
    started_s = time.monotonic()
    code = parsed(container(*[entry(2, 87)] * (fatbin.STEPS_LIMIT + 10)))
    assert code == DeviceCode(cubins=("sm_87",), complete=False)
    assert time.monotonic() - started_s < 5


@given(st.binary(max_size=400))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    for head in (b"", fatbin.FATBIN_MAGIC, fatbin.ELF_MAGIC + b"\x02\x01"):
        code = parsed(head + data)
        assert code is None or all(name.isascii() for name in code.cubins + code.ptx)


@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=8)), max_size=6))
@settings(max_examples=300)
def test_a_damaged_library_has_an_answer(damages: list[tuple[int, bytes]]) -> None:
    data = bytearray(_elf_with(container(entry(2, 87, b"x" * 40), entry(1, 50), entry(0x100, 0, header=64))))
    for place, piece in damages:
        place %= len(data)
        data[place : place + len(piece)] = piece
    started_s = time.monotonic()
    parsed(bytes(data))
    assert time.monotonic() - started_s < 2


def test_the_library_that_is_damaged_above_is_a_good_one() -> None:
    assert parsed(_elf_with(container(entry(2, 87), entry(1, 50)))) == DeviceCode(
        cubins=("sm_87",), ptx=("compute_50",)
    )


def _elf_with(fat: bytes) -> bytes:
    """The smallest library with one section of device code. Source: elf(5)."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at_names = 64 + len(fat)
    table = at_names + len(names)
    head = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH", fatbin.ELF_MAGIC, 2, 1, 1, 0, 0, 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2
    )
    row = struct.Struct("<IIQQQQIIQQ")
    rows = row.pack(*[0] * 10)
    rows += row.pack(1, 1, 0, 0, 64, len(fat), 0, 0, 8, 0) + row.pack(12, 3, 0, 0, at_names, len(names), 0, 0, 1, 0)
    return head + fat + names + rows
