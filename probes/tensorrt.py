"""TensorRT: the Python bindings build an engine that adds two vectors, the GPU runs it, and each number is compared.

Bindings and libraries are two things: NVIDIA's packages give the bindings to the system's Python alone, so on a Jetson
a virtual environment made without --system-site-packages, or with another Python, can't import them.

Not yet seen working on a device: no GPU was at hand. Written for TensorRT 8.5 to 11.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys

import msgspec

from probes import l4t, saxpy, tensorrt_engine
from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = (
    "driver",
    "l4t",
    "nodes",
    "libcuda",
    "cuda_libraries",
    "cudnn_libraries",
    "tensorrt",
    "tensorrt_libraries",
    "python",
)
USES_GPU = True
COST_S = 10.0  # importing loads hundreds of megabytes, building times each kernel
DEADLINE_S = 120.0
# The builder's kernels alone take 1.2 to 1.4 GiB (logs in OE4T/meta-tegra#2120 and NVIDIA/TensorRT#3359).
MEMORY_MIB = 6144
LIBRARY_GLOBS = (
    "/usr/lib/*-linux-gnu/libnvinfer.so.*",
    "/usr/local/tensorrt*/lib/libnvinfer.so.*",
    "/opt/tensorrt*/lib/libnvinfer.so.*",
    "/usr/lib64/libnvinfer.so.*",
)
_finding = functools.partial(saxpy.finding, "tensorrt", LAYER)
PIP_WARNING = "'pip install tensorrt' brings a build for servers, not for a Jetson"


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What lies on the disk.

    Attributes:
        libraries: paths of libnvinfer.so.*, placeholders of size 0 left out.
        placeholders: libnvinfer files of size 0: a container without the NVIDIA runtime has those.
        binding_pythons: "3.10" for each Python whose bindings are installed as a system package.
        trtexec: its path, or None.
    """

    libraries: list[str]
    placeholders: list[str]
    binding_pythons: list[str]
    trtexec: str | None
    is_jetson: bool


def read_installed(host: Host) -> Installed:
    """Look at the files; nothing is loaded."""
    found = [path for pattern in LIBRARY_GLOBS for path in host.glob(pattern)]
    empty = [path for path in found if host.text(path) == ""]
    bindings = host.glob("/usr/lib/python3*/dist-packages/tensorrt/tensorrt*.so")
    if not bindings:
        bindings = host.glob("/usr/lib/python3*/dist-packages/tensorrt")
    trtexec = "/usr/src/tensorrt/bin/trtexec"
    return Installed(
        libraries=[path for path in found if path not in empty],
        placeholders=empty,
        binding_pythons=sorted({python for path in bindings if (python := binding_python(path))}),
        trtexec=trtexec if host.exists(trtexec) else None,
        is_jetson=l4t.is_jetson(host),
    )


def binding_python(path: str) -> str | None:
    """The Python that a binding is for, by its file name's ABI tag or by its folder; None when neither says."""
    match = re.search(r"cpython-3(\d+)", path) or re.search(r"/python3\.(\d+)/", path)
    return f"3.{match[1]}" if match else None


def library_version(path: str) -> str:
    """The version in a file name: "10.3.0" of "libnvinfer.so.10.3.0"."""
    return path.rpartition("libnvinfer.so.")[2]


def judge_not_importable(said: str, missing: bool, installed: Installed, python: str) -> tuple[Status, str, str]:
    """Why `import tensorrt` failed: (status, reason, remedy).

    Args:
        said: the exception's text.
        missing: there is no module of that name at all.
        installed: what lies on the disk.
        python: "3.10", the one that runs this.
    """
    if installed.placeholders:
        reason = f"{installed.placeholders[0]} is empty: the container was started without the NVIDIA runtime"
        return Status.ABSENT, reason, "start the container with --runtime nvidia"
    versions = ", ".join(sorted({library_version(path) for path in installed.libraries}))
    if not missing:
        remedy = "install the libraries of the bindings' version"
        if installed.is_jetson:
            remedy = "sudo apt install libnvinfer-bin python3-libnvinfer, of the release's own version; " + PIP_WARNING
        if "libnvdla_compiler" in said:
            remedy = "sudo apt install nvidia-l4t-dla-compiler, of the same version as nvidia-l4t-core"
        found = f"; libnvinfer here: {versions}" if versions else ""
        return Status.BROKEN, f"the bindings are there, but don't load: {said}{found}", remedy
    if installed.binding_pythons:
        others = ", ".join(installed.binding_pythons)
        reason = f"{said}; the bindings are installed for the system's Python {others}, this is Python {python}"
        if python in installed.binding_pythons:
            reason += " in an environment that does not see system packages"
        remedy = (
            f"make the virtual environment with python{installed.binding_pythons[-1]} -m venv --system-site-packages"
        )
        return Status.UNKNOWN, reason, remedy
    if versions:
        return Status.UNKNOWN, f"{said}; libnvinfer {versions} is installed without Python bindings", _apt(installed)
    return Status.ABSENT, f"{said}; no libnvinfer on this machine either", _apt(installed)


def _apt(installed: Installed) -> str:
    if installed.is_jetson:
        return (
            "sudo apt install python3-libnvinfer (part of nvidia-jetpack), and a virtual environment made with "
            f"--system-site-packages and the system's Python; {PIP_WARNING}"
        )
    return "with an NVIDIA GPU: install TensorRT from NVIDIA's apt repository; without one there is nothing to install"


def check(host: Host) -> Finding:
    """Import the bindings, build an engine, run it and compare.

    Returns: WORKS when every number is right; BROKEN when bindings don't load, no engine comes about or numbers are
        wrong; UNKNOWN when libraries are there and this Python can't reach them, when CUDA does not start, and for a
        recorded device; ABSENT without any TensorRT.
    """
    installed = read_installed(host)
    facts: dict[str, Fact] = {
        "libnvinfer_files": installed.libraries,
        "binding_pythons": installed.binding_pythons,
        "trtexec": installed.trtexec,
    }
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        trt = importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:  # the wheels open libnvinfer by ctypes: OSError
        missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorrt"
        return _finding(*judge_not_importable(str(error), missing, installed, python), facts=facts)
    version = tensorrt_engine.version_of(trt)
    if tensorrt_engine.is_older(version, (8, 5)):
        reason = f"TensorRT {version} has no execute_async_v3: this check is written for 8.5 and later"
        return _finding(Status.UNKNOWN, reason, version=version, facts=facts)
    return tensorrt_engine.execute(_finding, f"TensorRT {version}", trt, host, facts)
