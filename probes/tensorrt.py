"""TensorRT: the Python bindings build an engine that adds two vectors, the GPU runs it, and each number is compared.

Bindings and libraries are two things: NVIDIA's packages give the bindings to the system's Python alone, so on a Jetson
a virtual environment made without --system-site-packages, or with another Python, can't import them.

Not yet seen working on a device: no GPU was at hand. Written for TensorRT 8.5 to 11; 11 dropped weak typing (the FP16
and INT8 flags) and the explicit-batch flag, neither of which a float32 addition needs.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from array import array
from contextlib import ExitStack
from ctypes import byref, c_uint, c_void_p
from typing import Any

import msgspec

from probes import cudadriver, devicetree, l4t, saxpy
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status, cut
from probes.cudadriver import CudaDriver, CudaError, DeviceInfo, SymbolMissing
from probes.host import Host
from probes.saxpy import describe

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "cuda_libraries", "cudnn_libraries", "tensorrt_libraries", "python")
USES_GPU = True
COST_S = 10.0  # importing loads hundreds of megabytes, building times each kernel
DEADLINE_S = 120.0
# The builder's kernels alone take 1.2 to 1.4 GiB (logs in OE4T/meta-tegra#2120 and NVIDIA/TensorRT#3359).
MEMORY_MIB = 6144
COUNT = 1024
WORKSPACE_BYTES = 16 << 20
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


class EngineFailed(Exception):
    """TensorRT said no without an exception of its own; the text ends with its log."""


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


def inputs() -> tuple[bytes, bytes, bytes]:
    """Two float32 vectors and their sum, all whole numbers: exact in any order, and in half precision up to 2048."""
    x, y = range(COUNT), range(COUNT, 0, -1)
    total = array("f", (a + b for a, b in zip(x, y, strict=True)))
    return array("f", x).tobytes(), array("f", y).tobytes(), total.tobytes()


def build_plan(trt: Any, logger: Any) -> Any:
    """Build the plan of z = x + y.

    TensorRT 10 made explicit batch the only mode and 11 removed its flag; earlier ones need it.

    Raises:
        EngineFailed: the builder gave no plan.
    """
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    is_old = int(trt.__version__.partition(".")[0]) < 10
    network = builder.create_network(1 << int(flag) if is_old and flag is not None else 0)
    x = network.add_input("x", trt.float32, (COUNT,))
    y = network.add_input("y", trt.float32, (COUNT,))
    layer = network.add_elementwise(x, y, trt.ElementWiseOperation.SUM)
    output = layer.get_output(0)
    output.name = "z"
    network.mark_output(output)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineFailed("the builder made no engine")
    return plan


def run_plan(trt: Any, logger: Any, plan: Any, driver: CudaDriver) -> tuple[bytes, float]:
    """Load the plan and run it on device 0, in its current context: (float32 answer, device seconds).

    Raises:
        EngineFailed: TensorRT refused a step.
        CudaError: the driver did.
    """
    x, y, _ = inputs()
    runtime = trt.Runtime(logger)  # has to outlive its engines
    engine = runtime.deserialize_cuda_engine(plan)
    context = engine.create_execution_context() if engine else None
    if context is None:
        raise EngineFailed("the engine did not load" if engine is None else "no execution context")
    with ExitStack() as stack:
        dx, dy, dz = (stack.enter_context(driver.buffer(len(x))) for _ in range(3))
        driver.upload(dx, x)
        driver.upload(dy, y)
        for name, pointer in (("x", dx), ("y", dy), ("z", dz)):
            if not context.set_tensor_address(name, pointer.value):
                raise EngineFailed(f"no tensor {name!r} in the engine")
        stream = c_void_p()
        driver.call("cuStreamCreate", byref(stream), c_uint(0))

        def enqueue() -> None:
            if not context.execute_async_v3(stream.value):
                raise EngineFailed("the engine did not start")

        enqueue()  # the first run sets up; the second is timed
        elapsed_s = driver.timed(enqueue, stream)
        return driver.download(dz, len(x)), elapsed_s


def _make_logger(trt: Any, lines: list[str]) -> Any:
    """A logger that keeps warnings and errors: TensorRT answers None and says the reason here."""

    class Logger(trt.ILogger):  # type: ignore[misc]  # the base class comes from the bindings
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.WARNING):  # 0 is the worst
                lines.append(message)

    return Logger()


def _start_driver(host: Host) -> tuple[CudaDriver, DeviceInfo]:
    """CUDA's driver and its first device.

    Raises:
        OSError, SymbolMissing, CudaError: what the check of CUDA itself tells in full.
    """
    driver = CudaDriver(cudadriver.load(host, devicetree.read_device_tree(host).soc))
    driver.start()
    infos = driver.devices()
    if not infos:
        raise CudaError("cuDeviceGetCount", 100, "CUDA_ERROR_NO_DEVICE")
    return driver, infos[0]


def _execute(trt: Any, host: Host, facts: dict[str, Fact]) -> Finding:
    version = str(trt.__version__)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (8, 5):
        reason = f"TensorRT {version} has no execute_async_v3: this check is written for 8.5 and later"
        return _finding(Status.UNKNOWN, reason, version=version, facts=facts)
    lines: list[str] = []
    try:
        driver, info = _start_driver(host)
    except (OSError, SymbolMissing, CudaError) as error:
        reason = f"TensorRT {version} is importable, but CUDA does not start: {error}"
        return _finding(Status.UNKNOWN, reason, "see the finding about cuda", facts, version=version)
    facts["integrated"] = info.integrated
    try:
        with driver.context(0):
            logger = _make_logger(trt, lines)
            answer, elapsed_s = run_plan(trt, logger, build_plan(trt, logger), driver)
    except (CudaError, SymbolMissing, EngineFailed) as error:
        said = "; ".join([str(error), *lines[-3:]])
        return _finding(Status.BROKEN, f"TensorRT {version}: {cut(said, 600)}", "", facts, version=version)
    expected = inputs()[2]
    device = Device(
        index=info.index, name=info.name, kind=DeviceKind.GPU, vendor="NVIDIA", memory_bytes=info.memory_bytes
    )
    evidence = Evidence(
        executed=f"engine z = x + y built and run, {COUNT} floats",
        device=device.name,
        device_kind=DeviceKind.GPU,
        value=describe(answer, expected),
        expected=describe(expected, expected),
        elapsed_s=elapsed_s,
        timer="device",
    )
    status = Status.WORKS if answer == expected else Status.BROKEN
    reason = "" if answer == expected else f"the engine answered wrongly: {evidence.value}"
    return _finding(status, reason, "", facts, version=version, devices=(device,), evidence=(evidence,))


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
    return _execute(trt, host, facts)
