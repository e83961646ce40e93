"""Recorded Jetsons made of chosen parts: L4T, Ubuntu, kernel, Python, CUDA and the libraries above it."""

from __future__ import annotations

import json
from pathlib import Path

from probes import jetpack
from probes.contract import Finding
from probes.host import Host
from tests.recorded import build_files

LIB = "/usr/lib/aarch64-linux-gnu"
COMPAT = "/usr/local/cuda-{}/compat/libcuda.so.1.1"
COMPONENTS = ("ubuntu", "kernel", "python", "cuda", "cudnn", "tensorrt", "vpi", "opencv")
# JetPack 6.2 as it comes
WHOLE = {
    "ubuntu": "22.04",
    "kernel": "5.15.148-tegra",
    "python": "3.10",
    "cuda": "12.6.11",
    "cudnn": "9.3.0",
    "tensorrt": "10.3.0",
    "vpi": "3.2.4",
    "opencv": "4.8.0",
}


def jetson(root: Path, release: str = "36.4.3", extra: tuple[str, ...] = (), **parts: str) -> Host:
    """A recorded Jetson of this L4T with these parts, as their files say it; `extra` are further empty files."""
    major, _, revision = release.partition(".")
    files = {
        "/etc/nv_tegra_release": f"# R{major} (release), REVISION: {revision}, GCID: 1, BOARD: generic, DATE: x\n",
        "/proc/device-tree/compatible": "nvidia,p3767-0000\0nvidia,tegra234\0",
        **dict.fromkeys(extra, ""),
    }
    if ubuntu := parts.get("ubuntu"):
        files["/etc/os-release"] = (
            f'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="{ubuntu}"\nPRETTY_NAME="Ubuntu {ubuntu}.1 LTS"\n'
        )
    if kernel := parts.get("kernel"):
        files["/proc/version"] = f"Linux version {kernel} (builder@host) #1 SMP PREEMPT\n"
    if cuda := parts.get("cuda"):
        number = ".".join(cuda.split(".")[:2])
        files[f"/usr/local/cuda-{number}/version.json"] = json.dumps({"cuda": {"version": cuda}})
    for component, stem in (("cudnn", "libcudnn"), ("tensorrt", "libnvinfer"), ("opencv", "libopencv_core")):
        for version in parts.get(component, "").split():
            files[f"{LIB}/{stem}.so.{version}"] = ""
    if vpi := parts.get("vpi"):
        files[f"/opt/nvidia/vpi{vpi[0]}/lib/aarch64-linux-gnu/libnvvpi.so.{vpi}"] = ""
    host = build_files(root, files)
    if python := parts.get("python"):
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/python3").symlink_to(f"python{python}")
    return host


def check(root: Path, release: str = "36.4.3", extra: tuple[str, ...] = (), **parts: str) -> Finding:
    """What the probe finds on such a Jetson."""
    return jetpack.check(jetson(root, release, extra, **parts))


def differences(finding: Finding) -> list[tuple[object, ...]]:
    """(component, found, expected, meaning) of each difference that a finding tells."""
    found = finding.facts["differences"]
    assert isinstance(found, (list, tuple))
    assert all(isinstance(one, dict) and list(one) == ["component", "found", "expected", "meaning"] for one in found)
    return [tuple(one.values()) for one in found if isinstance(one, dict)]
