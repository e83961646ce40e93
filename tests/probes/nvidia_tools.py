"""NVIDIA's assembler and packer from their wheels on PyPI, which need no GPU; a test without them skips by name.

And bindings that a test puts in the place of installed ones.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PTX = Path(__file__).parents[2] / "probes/kernels/saxpy.ptx"
OLD, NEW = "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc"  # CUDA 12.9: sm_50 to sm_121; CUDA 13: sm_75 to sm_121
ARCHITECTURES = {
    OLD: "50 52 53 60 61 62 70 72 75 80 86 87 89 90 90a 100 100a 101 103 120 120a 121",
    NEW: "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 110 110a 110f 120 120a 120f 121 121a",
}


def importable(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Make a Python module of this name, in the place of an installed one, for the test that asks."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def tool(name: str, package: str = NEW) -> str:
    """The path of a program of a wheel; the test that asks is skipped when that is not installed."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return str(file.locate())
    pytest.skip(f"{package} is not installed (it has {name}): NOTHING was assembled or packed by NVIDIA's own tools")


def assemble(architecture: str, folder: Path, package: str = NEW, ptx: Path = PTX) -> Path:
    """A cubin of PTX for "87" or "90a", made by ptxas."""
    output = folder / f"sm_{architecture}.cubin"
    command = [tool("ptxas", package), f"-arch=sm_{architecture}", str(ptx), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def pack(folder: Path, cubins: tuple[str, ...], ptx: tuple[str, ...], *flags: str, package: str = NEW) -> Path:
    """A fat binary of the shipped kernel for these GPUs, made by fatbinary."""
    output = folder / "kernels.fatbin"
    images = [f"--image3=kind=elf,sm={name},file={assemble(name, folder, package)}" for name in cubins]
    images += [f"--image3=kind=ptx,sm={name},file={PTX}" for name in ptx]
    subprocess.run([tool("fatbinary"), "--64", f"--create={output}", *flags, *images], check=True, capture_output=True)
    return output
