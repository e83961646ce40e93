"""Builds and runs the tiny TensorRT engine z = x + y; shared by the probes of TensorRT, TensorRT-RTX and DLA.

Written for TensorRT 8.5 to 11, whose Python interface TensorRT-RTX and its own version numbers share; 11 dropped weak
typing (the FP16 and INT8 flags) and the explicit-batch flag, neither of which a float32 addition needs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import byref, c_uint, c_void_p
from typing import Any

import msgspec

from probes import cudadriver, devicetree, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status, Witness, cut
from probes.cudadriver import CudaDriver, CudaError, DeviceInfo, SymbolMissing
from probes.host import Host

COUNT = 1024
DLA_SHAPE = (1, 16, 8, 8)  # COUNT numbers; a DLA takes four dimensions
WORKSPACE_BYTES = 16 << 20


class EngineFailed(Exception):
    """TensorRT said no without an exception of its own; the text ends with its log."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that was built and run."""

    device: Device
    evidence: Evidence
    witnesses: tuple[Witness, ...]

    @property
    def reason(self) -> str:
        """What to say when the answer was wrong; ""."""
        return "" if self.evidence.is_right else f"the engine answered wrongly: {self.evidence.value}"


def problem() -> saxpy.Problem:
    """The sum of two vectors of whole numbers: exact in any order, and in half precision up to 2048."""
    return saxpy.sum_of(range(COUNT), range(COUNT, 0, -1))


def build_plan(trt: Any, logger: Any, dla_core: int | None = None) -> Any:
    """Build the plan of z = x + y.

    TensorRT 10 made explicit batch the only mode and 11 removed its flag; earlier ones need it.

    Args:
        trt: the bindings.
        logger: as of `make_logger`.
        dla_core: build for this DLA core and nothing else: what it can't run makes the build fail, as no fallback to
            the GPU is allowed. In half precision, which a DLA needs and which is exact for these numbers.

    Raises:
        EngineFailed: the builder gave no plan.
    """
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    is_old = int(trt.__version__.partition(".")[0]) < 10
    network = builder.create_network(1 << int(flag) if is_old and flag is not None else 0)
    shape = (COUNT,) if dla_core is None else DLA_SHAPE
    x = network.add_input("x", trt.float32, shape)
    y = network.add_input("y", trt.float32, shape)
    layer = network.add_elementwise(x, y, trt.ElementWiseOperation.SUM)
    output = layer.get_output(0)
    output.name = "z"
    network.mark_output(output)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    if dla_core is not None:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = dla_core
        if hasattr(trt.BuilderFlag, "FP16"):  # TensorRT 11 has no weak typing
            config.set_flag(trt.BuilderFlag.FP16)
        if not config.can_run_on_DLA(layer):  # a builder without DLA builds for the GPU instead, and does not say so
            raise EngineFailed("the builder can't put an addition on the DLA")
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
    given = problem()
    size_bytes = len(given.x)
    runtime = trt.Runtime(logger)  # has to outlive its engines
    engine = runtime.deserialize_cuda_engine(plan)
    context = engine.create_execution_context() if engine else None
    if context is None:
        raise EngineFailed("the engine did not load" if engine is None else "no execution context")
    with ExitStack() as stack:
        dx, dy, dz = (stack.enter_context(driver.buffer(size_bytes)) for _ in range(3))
        driver.upload(dx, given.x)
        driver.upload(dy, given.y)
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
        return driver.download(dz, size_bytes), elapsed_s


def make_logger(trt: Any, lines: list[str]) -> Any:
    """A logger that keeps warnings and errors: TensorRT answers None and says the reason here."""

    class Logger(trt.ILogger):  # type: ignore[misc]  # the base class comes from the bindings
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.WARNING):  # 0 is the worst
                lines.append(message)

    return Logger()


def start_driver(host: Host) -> tuple[CudaDriver, DeviceInfo]:
    """CUDA's driver and its first device.

    Raises:
        OSError, SymbolMissing, CudaError: what the check of CUDA itself tells in full.
    """
    driver = CudaDriver(cudadriver.load(host, devicetree.read_device_tree(host).soc))
    driver.start()
    return driver, driver.devices()[0]


def version_of(trt: Any) -> str:
    """The version as the bindings say it."""
    return str(trt.__version__)


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Whether "8.4.1" is below (8, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < than


def build_and_run(host: Host, trt: Any, driver: CudaDriver, info: DeviceInfo, dla_core: int | None = None) -> Ran:
    """Build the engine on the first GPU, or for one of its SoC's DLA cores, run it, compare and ask the witnesses.

    Raises:
        EngineFailed: with the last words of the log.
    """
    lines: list[str] = []
    try:
        with driver.context(0):
            logger = make_logger(trt, lines)
            plan = build_plan(trt, logger, dla_core)
            with witness.Watch(host) as watch:
                answer, elapsed_s = run_plan(trt, logger, plan, driver)
    except (CudaError, SymbolMissing, EngineFailed) as error:
        raise EngineFailed(cut("; ".join([str(error), *lines[-3:]]), 600)) from error
    given = problem()
    kind = DeviceKind.GPU if dla_core is None else DeviceKind.NPU
    name = info.name if dla_core is None else f"DLA core {dla_core} of {info.name}"
    memory_bytes = info.memory_bytes if dla_core is None else None
    device = Device(index=dla_core or info.index, name=name, kind=kind, vendor="NVIDIA", memory_bytes=memory_bytes)
    evidence = Evidence(
        executed=f"engine z = x + y built and run, {COUNT} floats",
        device=name,
        device_kind=kind,
        value=saxpy.describe(answer, given.expected),
        expected=given.answer,
        elapsed_s=elapsed_s,
        timer="device",
    )
    said = watch.witnesses((evidence,), (os.getpid(),), witness.on_cpu(given, (evidence,)))
    return Ran(device=device, evidence=evidence, witnesses=said)


def execute(tell: Callable[..., Finding], title: str, trt: Any, host: Host, facts: dict[str, Fact]) -> Finding:
    """What became of the engine, as a finding.

    Args:
        tell: makes the finding: status, reason, remedy, facts, and the rest by name.
        title: "TensorRT 10.3.0".
        trt: the bindings.
        host: the machine.
        facts: what is known so far.
    """
    version = version_of(trt)
    try:
        driver, info = start_driver(host)
    except (OSError, SymbolMissing, CudaError) as error:
        reason = f"{title} is importable, but CUDA does not start: {error}"
        return tell(Status.UNKNOWN, reason, "see the finding about cuda", facts, version=version)
    facts["integrated"] = info.integrated
    try:
        ran = build_and_run(host, trt, driver, info)
    except EngineFailed as error:
        return tell(Status.BROKEN, f"{title}: {error}", "", facts, version=version)
    status = Status.WORKS if ran.evidence.is_right else Status.BROKEN
    told = functools.partial(tell, devices=(ran.device,), evidence=(ran.evidence,), witnesses=ran.witnesses)
    return told(status, ran.reason, "", facts, version=version)
