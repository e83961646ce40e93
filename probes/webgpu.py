"""WebGPU: a WGSL kernel computes 3x + y on 1,048,576 floats by wgpu-native, and each number is compared.

wgpu-native takes a Vulkan or, silently, an OpenGL adapter: what works here says nothing about Vulkan until the backend
is read. So every adapter is listed with its backend, and a Vulkan one is taken first.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from probes import icd, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "mesa", "vulkan", "vulkan_libraries", "egl", "egl_libraries", "python")
USES_GPU = True
COST_S = 2.5  # wgpu-native opens every Vulkan and EGL driver
FORCING = "WGPU_BACKEND_TYPE"  # wgpu obeys it when it picks an adapter, not when it lists them
HIDING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES", "__EGL_VENDOR_LIBRARY_DIRS")
VARIABLES = (FORCING, "WGPU_*", *HIDING, "VK_LOADER_*", "LIBGL_*", "GALLIUM_DRIVER")
OPENGL = "OpenGL"
KINDS = {"discretegpu": DeviceKind.GPU, "integratedgpu": DeviceKind.GPU, "cpu": DeviceKind.CPU}
INSTALL_BINDING = "pip install 'edge-agent[webgpu]'"
INSTALL_DRIVER = (
    "make Vulkan or OpenGL ES work first (see the findings of vulkan and gles); "
    "for a software device apt-get install libvulkan1 mesa-vulkan-drivers"
)
_finding = functools.partial(saxpy.finding, "webgpu", LAYER)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter as wgpu-native lists it.

    Attributes:
        index: its place in the list; one processor may be there twice, by Vulkan and by OpenGL.
        adapter_type: "DiscreteGPU", "IntegratedGPU", "CPU" or "Unknown".
        backend_type: "Vulkan", "OpenGL"...
        driver: the driver's own description.
    """

    index: int
    name: str
    adapter_type: str
    backend_type: str
    vendor: str = ""
    driver: str = ""

    @property
    def kind(self) -> DeviceKind:
        """By the adapter's type, but a known software device never counts as a GPU."""
        return saxpy.kind_of(KINDS.get(self.adapter_type.lower(), DeviceKind.UNKNOWN), self.name)


def check(host: Host) -> Finding:
    """Run the kernel on every hardware adapter, or on the first software adapter when there is none."""
    variables = icd.environment(host, VARIABLES)
    facts: dict[str, Fact] = {"environment": variables}
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    try:
        import wgpu
        from wgpu.backends import wgpu_native
    except ModuleNotFoundError as error:
        return _finding(Status.ABSENT, f"Python package {error.name} is missing", INSTALL_BINDING, facts)
    except (ImportError, OSError) as error:
        remedy = f"{INSTALL_BINDING} --force-reinstall"
        return _finding(Status.BROKEN, f"import wgpu failed: {error}", remedy, facts)
    version = ".".join(str(part) for part in wgpu_native.lib_version_info)
    adapters = wgpu.gpu.enumerate_adapters_sync()
    found = [listed(i, adapter.info) for i, adapter in enumerate(adapters)]
    facts["adapters"] = [f"{a.index}: {a.name} ({a.adapter_type}, {a.backend_type})" for a in found]
    chosen = choose(found, str(variables.get(FORCING, "")))
    if not chosen:
        return no_adapter(host, facts, version)
    facts["backend_type"] = chosen[0].backend_type
    facts["adapter_type"] = chosen[0].adapter_type
    facts["ran_on_index"] = [a.index for a in chosen]
    given = saxpy.problem()
    with witness.Watch(host) as watch:
        evidence = tuple(execute(wgpu, adapters[a.index], a, given, host) for a in chosen)
    status, reason = saxpy.verdict(evidence, icd.why_no_gpu(host, []))
    if chosen[0].backend_type == OPENGL:
        reason = "; ".join(part for part in (reason, "by OpenGL, which says nothing about Vulkan") if part)
    said = watch.witnesses(evidence, (os.getpid(),), witness.on_cpu(given, evidence))
    devices = tuple(map(as_device, found))
    told = functools.partial(_finding, version=version, devices=devices, evidence=evidence, witnesses=said)
    return told(status, reason, "", facts)


# Read


def listed(index: int, info: Mapping[str, Any]) -> Listed:
    """Read what an adapter says of itself."""
    return Listed(
        index=index,
        name=str(info["device"]),
        adapter_type=str(info["adapter_type"]),
        backend_type=str(info["backend_type"]),
        vendor=str(info["vendor"]),
        driver=str(info["description"]),
    )


# Judge


def choose(adapters: Sequence[Listed], forced: str = "") -> list[Listed]:
    """The adapters to run on: hardware before software, then any backend before OpenGL; one software adapter only.

    Args:
        adapters: all of them.
        forced: the backend that `WGPU_BACKEND_TYPE` asks for; "" for any.
    """
    allowed = [a for a in adapters if not forced or a.backend_type.lower() == forced.lower()]
    hardware = [a for a in allowed if a.kind is not DeviceKind.CPU]
    pool = hardware or allowed
    best = [a for a in pool if a.backend_type != OPENGL] or pool
    return best if hardware else best[:1]


def as_device(adapter: Listed) -> Device:
    """The adapter as the report lists it."""
    return Device(
        index=adapter.index,
        name=adapter.name,
        kind=adapter.kind,
        vendor=adapter.vendor,
        driver=adapter.driver,
        api_version=f"WebGPU on {adapter.backend_type}",
    )


def no_adapter(host: Host, facts: Mapping[str, Fact], version: str) -> Finding:
    """Judge a wgpu-native that loads but has no adapter to run on."""
    variables = icd.environment(host, VARIABLES)
    forced = variables.get(FORCING)
    if facts["adapters"]:
        reason = f"{FORCING}={forced} leaves no adapter of those there"
        return _finding(Status.BROKEN, reason, f"unset {FORCING}", facts, version=version)
    reason = "wgpu-native found no adapter, neither by Vulkan nor by OpenGL ES"
    hiding = [name for name in HIDING if variables.get(name)]
    if hiding:
        reason += f"; {', '.join(f'{name}={variables[name]}' for name in hiding)} may hide the drivers"
        return _finding(Status.BROKEN, reason, f"unset {' '.join(hiding)}", facts, version=version)
    why = icd.why_no_gpu(host, [])
    reason += f"; {why}" if why else ""
    return _finding(Status.ABSENT, reason, INSTALL_DRIVER, facts, version=version)


# Execute


def execute(wgpu: Any, adapter: Any, found: Listed, given: saxpy.Problem, host: Host) -> Evidence:
    """Run the kernel on one adapter; an error of the API becomes evidence of failure."""
    device = as_device(found)
    try:
        result, elapsed_s, timer = dispatch(wgpu, adapter, found.backend_type, given, host)
    except (wgpu.GPUError, wgpu.GPUPipelineError, RuntimeError) as error:
        return saxpy.failed(given, device, str(error))
    return saxpy.compared(given, device, result, elapsed_s, timer)


def dispatch(wgpu: Any, adapter: Any, backend: str, given: saxpy.Problem, host: Host) -> tuple[bytes, float, str]:
    """Run the kernel once.

    Returns: y as float32, the seconds it took, and whose clock said so ("device" or "host").

    Raises:
        GPUError, GPUPipelineError, RuntimeError: of the binding.
    """
    # OpenGL timers are not used: llvmpipe's answer 1 ns.
    timed = "timestamp-query" in adapter.features and backend != OPENGL
    device = adapter.request_device_sync(required_features=["timestamp-query"] if timed else [])
    usage = wgpu.BufferUsage
    x = device.create_buffer_with_data(data=given.x, usage=usage.STORAGE)
    y = device.create_buffer_with_data(data=given.y, usage=usage.STORAGE | usage.COPY_SRC)
    a = device.create_buffer_with_data(data=struct.pack("f", saxpy.FACTOR), usage=usage.UNIFORM)
    module = device.create_shader_module(code=saxpy.kernel("saxpy.wgsl").decode())
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "saxpy"})
    entries = [{"binding": i, "resource": {"buffer": item}} for i, item in enumerate((x, y, a))]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    ticks = device.create_buffer(size=16, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
    queries = device.create_query_set(type="timestamp", count=2) if timed else None
    encoder = device.create_command_encoder()
    writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    compute = encoder.begin_compute_pass(**({"timestamp_writes": writes} if timed else {}))
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(saxpy.COUNT // saxpy.GROUP)
    compute.end()
    if timed:
        encoder.resolve_query_set(queries, 0, 2, ticks, 0)
    start_s = host.monotonic_s()
    device.queue.submit([encoder.finish()])
    device.queue.read_buffer(y, size=4)  # waits for the kernel; on_submitted_work_done_sync fails in wgpu 0.32.0
    host_s = host.monotonic_s() - start_s
    result = bytes(device.queue.read_buffer(y))
    period_ns = tick_ns(device.queue) if timed else None
    if period_ns is None:
        return result, host_s, "host"
    start, end = struct.unpack("QQ", device.queue.read_buffer(ticks))
    return result, (end - start) * period_ns * 1e-9, "device"


def tick_ns(queue: Any) -> float | None:
    """Nanoseconds per tick of the queue's timestamps, or None when the binding does not tell.

    wgpu-native writes raw ticks, unlike the WebGPU specification; `wgpuQueueGetTimestampPeriod` is its own addition
    (wgpu.h), which wgpu 0.32 does not wrap.
    """
    from wgpu.backends import wgpu_native

    handle = getattr(queue, "_internal", None)
    ask = getattr(wgpu_native.lib, "wgpuQueueGetTimestampPeriod", None)
    return float(ask(handle)) if handle is not None and ask is not None else None
