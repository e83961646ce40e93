"""The shipped PTX under NVIDIA's assemblers for every GPU from Maxwell (sm_50) to Spark (sm_121). None runs it here."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import fatbin
from tests.probes.nvidia_tools import ARCHITECTURES, PTX, assemble

JETSONS = {"53", "62", "72", "87", "101", "110"}  # Nano, TX2, Xavier, Orin, Thor under CUDA 12.9 and under CUDA 13
CASES = [(package, name) for package, names in ARCHITECTURES.items() for name in names.split()]


@pytest.mark.parametrize(("package", "architecture"), CASES)
def test_the_shipped_ptx_assembles(package: str, architecture: str, tmp_path: Path) -> None:
    cubin = assemble(architecture, tmp_path, package)
    with cubin.open("rb") as file:
        code = fatbin.parse(file)
    assert code == fatbin.DeviceCode(cubins=(f"sm_{architecture.rstrip('af')}",))


def test_every_jetson_is_among_them() -> None:
    assert JETSONS.issubset(name for names in ARCHITECTURES.values() for name in names.split())


def test_the_assembler_does_refuse_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.ptx"
    wrong.write_text(PTX.read_text("ascii").replace("mul.rn.f32", "mul.rn.f33"), "ascii")
    with pytest.raises(AssertionError, match="f33"):
        assemble("87", tmp_path, ptx=wrong)


def test_the_shipped_ptx_asks_for_nothing_newer_than_jetpack_4_knows() -> None:
    lines = PTX.read_text("ascii").splitlines()
    assert ".version 6.4" in lines
    assert ".target sm_50" in lines
