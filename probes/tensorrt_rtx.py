"""TensorRT-RTX: on an RTX GPU the bindings build and run TensorRT's tiny engine; elsewhere the reason why not.

It is another product than TensorRT, for RTX PCs: its builder has no target for a Jetson's GPU or a server's. On those
it is refused before anything is loaded, see `refused_checks.toml`; a GPU that the table does not know is tried.

Importing and building were seen working with 1.7.1 on a machine without a GPU; executing was not, none was at hand.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from probes import cuda_libraries, pci, refused, saxpy, tensorrt_engine
from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "pci", "l4t", "nodes", "libcuda", "cuda_libraries", "python")
USES_GPU = True
COST_S = 6.0
DEADLINE_S = 120.0
MEMORY_MIB = 4096
MODULES = ("tensorrt_rtx", "tensorrt_rtx_bindings")  # the meta package's name, then what its wheels hold
INSTALL = "with an RTX GPU: pip install tensorrt-rtx-cu13-bindings tensorrt-rtx-cu13-libs"
_finding = functools.partial(saxpy.finding, "tensorrt_rtx", LAYER)


def judge_not_importable(said: str, missing: bool, has_nvidia_gpu: bool) -> tuple[Status, str, str]:
    """Why the import failed: (status, reason, remedy).

    Args:
        said: the exception's text.
        missing: there is no module of either name.
        has_nvidia_gpu: whether PCI shows one.
    """
    if not missing:
        return Status.BROKEN, f"the bindings are there, but don't load: {said}", f"reinstall both parts; {INSTALL}"
    if has_nvidia_gpu:
        return Status.ABSENT, said, INSTALL
    return Status.ABSENT, f"{said}; no NVIDIA GPU seen either", f"{INSTALL}; without one there is nothing to do"


def import_bindings() -> Any:
    """The bindings, by either name.

    Raises:
        ModuleNotFoundError: neither is there; its `name` is the first.
        ImportError, OSError: one is there, and something below it is not.
    """
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError(f"No module named {MODULES[0]!r}", name=MODULES[0])


def check(host: Host) -> Finding:
    """Import the bindings, build an engine, run it and compare.

    Returns: ABSENT on a Jetson and on a GPU without a target, both refused, and where it is not installed; WORKS when
        every number is right; BROKEN when bindings don't load, no engine comes about or numbers are wrong; UNKNOWN
        when CUDA does not start, and for a recorded device.
    """
    facts: dict[str, Fact] = {}
    refusal = refused.find(host, "tensorrt_rtx")
    if refusal:
        return _finding(Status.ABSENT, refusal.text, refusal.remedy, facts)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    try:
        trt = import_bindings()
    except (ImportError, OSError) as error:  # the wheels open their libraries by ctypes: OSError
        missing = isinstance(error, ModuleNotFoundError) and error.name == MODULES[0]
        has_gpu = any(gpu.vendor == pci.NVIDIA for gpu in pci.read_gpus(host))
        return _finding(*judge_not_importable(str(error), missing, has_gpu), facts)
    version = tensorrt_engine.version_of(trt)
    facts["module"] = str(trt.__name__)
    gpu = cuda_libraries.read_gpu(host)
    facts["compute_capability"] = gpu.capability
    refusal = refused.find(host, "tensorrt_rtx", gpu.capability)
    if refusal:
        return _finding(Status.ABSENT, refusal.text, refusal.remedy, facts, version=version)
    return tensorrt_engine.execute(_finding, f"TensorRT-RTX {version}", trt, host, facts)
