"""DLA: where the module has one, TensorRT builds a tiny engine for it without any fallback, runs it and compares.

Three parts must be there: the nodes, `libnvdla_compiler.so` (a package of its own from L4T 36 on) and a TensorRT whose
builder counts DLA cores; the builds for servers (TensorRT 11 from PyPI or an SBSA archive) count none, whatever the
nodes say. Modules without a DLA are refused, see `refused_checks.toml`.

Not yet seen working on a device: none was at hand.

Source: NVIDIA's cudla.h; paths of L4T 32 to 39; NVIDIA, Working with DLA (TensorRT 10 and 11).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

import msgspec

from probes import jetson_modules, l4t, refused, saxpy, tensorrt_engine
from probes.contract import Fact, Finding, Status
from probes.cudadriver import CudaError, SymbolMissing
from probes.devicetree import read_device_tree
from probes.host import Host
from probes.tensorrt_engine import EngineFailed

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
    "dla_libraries",
    "python",
)
USES_GPU = True
COST_S = 10.0
DEADLINE_S = 120.0
MEMORY_MIB = 6144

NODES = "/dev/nvhost-*nvdla*"
COMPILER = "libnvdla_compiler.so"
LIBRARIES = (COMPILER, "libcudla.so.1", "libnvcudla.so")
OF_CUDA = "/usr/local/cuda*/targets/*/lib/{}"  # libcudla is the toolkit's, whose folder a loader need not know
_finding = functools.partial(saxpy.finding, "dla", LAYER)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the DLA before TensorRT is asked.

    Attributes:
        count: cores by the module's data sheet; None when the module is not known.
        nodes: paths in /dev.
        compiler: "loads", or the loader's words; None when nothing was loaded.
        l4t_major: 36; None when not known.
        in_container: whether this is one.
    """

    count: int | None = None
    nodes: tuple[str, ...] = ()
    compiler: str | None = None
    l4t_major: int | None = None
    in_container: bool = False


def judge_parts(parts: Parts) -> tuple[Status, str, str] | None:
    """Why TensorRT need not be asked: (status, reason, remedy); None when it should be."""
    if not parts.nodes:
        known = (
            f"the module has {parts.count} DLA by its data sheet" if parts.count else "the module is not in our table"
        )
        if parts.in_container:
            return Status.ABSENT, f"{known}; no node {NODES} in this container", "start it with --runtime nvidia"
        if not parts.count:
            return Status.ABSENT, f"{known}, and there is no node {NODES}", "run the model on the GPU"
        return Status.UNKNOWN, f"{known}, but there is no node {NODES}", "see whether the kernel has the driver nvdla"
    if parts.compiler not in (None, "loads"):
        remedy = "reinstall the packages nvidia-l4t-*: the file comes with L4T itself before L4T 36"
        if parts.l4t_major is None or parts.l4t_major >= 36:
            remedy = "sudo apt install nvidia-l4t-dla-compiler, of the same version as nvidia-l4t-core"
        return Status.BROKEN, f"the nodes are there, but the compiler does not load: {parts.compiler}", remedy
    return None


def judge_cores(cores: int, version: str) -> tuple[Status, str, str] | None:
    """What it means that TensorRT's builder counts so many cores; None when there is one to run on."""
    if cores > 0:
        return None
    reason = f"the DLA's nodes are there, but this TensorRT {version} counts no core: a build for servers has no DLA"
    return Status.UNKNOWN, reason, "use JetPack's own TensorRT (apt, python3-libnvinfer), not one from pip"


def cudla_count(library: ctypes.CDLL) -> int | None:
    """DLA cores by cuDLA; None when it does not answer."""
    number = ctypes.c_uint64()
    try:
        failed = library.cudlaDeviceGetCount(ctypes.byref(number))
    except AttributeError:
        return None
    return None if failed else number.value


def _load(host: Host, name: str) -> ctypes.CDLL | str:
    """The library, or the loader's words: those of the plain name when no file works either."""
    problem = ""
    for path in (name, *host.glob(OF_CUDA.format(name))):
        try:
            return host.load_library(path)
        except OSError as error:
            problem = problem or str(error)
    return problem


def _read_libraries(host: Host, facts: dict[str, Fact]) -> str | None:
    """Load what a DLA needs; returns the state of the compiler."""
    if not host.executes:
        return None
    for name in LIBRARIES:
        found = _load(host, name)
        facts[name.partition(".")[0]] = found if isinstance(found, str) else "loads"
        if name.startswith("libcudla") and not isinstance(found, str):
            facts["cudla_device_count"] = cudla_count(found)
    return str(facts[COMPILER.partition(".")[0]])


def _execute(host: Host, facts: dict[str, Fact]) -> Finding:
    try:
        trt: Any = importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:
        reason = f"the DLA's nodes and compiler are there, but TensorRT, which drives it, is not: {error}"
        return _finding(Status.UNKNOWN, reason, "see the finding about tensorrt", facts)
    version = tensorrt_engine.version_of(trt)
    tell = functools.partial(_finding, version=version)
    try:
        driver, info = tensorrt_engine.start_driver(host)
    except (OSError, SymbolMissing, CudaError) as error:
        return tell(Status.UNKNOWN, f"CUDA does not start: {error}", "see the finding about cuda", facts)
    cores = int(trt.Builder(tensorrt_engine.make_logger(trt, [])).num_DLA_cores)
    facts["tensorrt_dla_cores"] = cores
    judged = judge_cores(cores, version)
    if judged:
        return tell(*judged, facts)
    try:
        ran = tensorrt_engine.build_and_run(host, trt, driver, info, dla_core=0)
    except EngineFailed as error:
        return tell(Status.BROKEN, f"TensorRT {version} on the DLA, without fallback: {error}", "", facts)
    status = Status.WORKS if ran.evidence.is_right else Status.BROKEN
    told = functools.partial(tell, devices=(ran.device,), evidence=(ran.evidence,), witnesses=ran.witnesses)
    return told(status, ran.reason, "", facts)


def check(host: Host) -> Finding:
    """Look for the parts, then build an engine for core 0, run it and compare.

    Returns: ABSENT where the module has none; WORKS when every number is right; BROKEN when the compiler is missing,
        the build fails or numbers are wrong; UNKNOWN when TensorRT can't reach it, and for a recorded device.
    """
    tree, release = read_device_tree(host), l4t.read_release(host)
    refusal = refused.find(host, "dla")
    module = jetson_modules.identify_module(tree, None, jetson_modules.read_table())
    count = module.dla_count if module else None
    nodes = tuple(host.glob(NODES))
    facts: dict[str, Fact] = {"datasheet_dla_count": 0 if refusal else count, "dla_nodes": list(nodes)}
    if refusal:
        return _finding(Status.ABSENT, refusal.text, refusal.remedy, facts)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    if not l4t.is_jetson(host):
        return _finding(Status.ABSENT, "no Jetson: a DLA is part of Xavier's and Orin's SoC", "", facts)
    parts = Parts(
        count=count,
        nodes=nodes,
        compiler=_read_libraries(host, facts),
        l4t_major=l4t.major(release),
        in_container=host.in_container(),
    )
    judged = judge_parts(parts)
    return _finding(*judged, facts) if judged else _execute(host, facts)
