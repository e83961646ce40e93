"""OpenCL: a kernel built by the driver computes 3x + y on 1,048,576 floats, and each number is compared.

The platform's vendor decides what a device is: `NVIDIA Tegra X1` on the PoCL platform is a GPU by way of PoCL, not
NVIDIA's OpenCL, which L4T does not have (pocl/pocl#853). pyopencl brings its own loader; C++ runtimes open the
system's `libOpenCL.so.1`, so that one is looked at as well.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from probes import icd, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "opencl", "opencl_libraries", "python")
USES_GPU = True
COST_S = 2.6  # PoCL compiles each time, see docs/footprint.md
LOADER = "libOpenCL.so.1"
SYMBOLS = ("clIcdGetPlatformIDsKHR", "clGetExtensionFunctionAddress")  # some drivers give the first by the second
REPLACING = ("OCL_ICD_VENDORS",)
VARIABLES = (*REPLACING, "OCL_ICD_FILENAMES", "POCL_*", "PYOPENCL_*")
FOLDER = "/etc/OpenCL/vendors"
INSTALL_LOADER = "apt-get install ocl-icd-libopencl1"
INSTALL_DRIVER = (
    "on a Jetson this is normal: L4T has no OpenCL driver; elsewhere install the GPU's driver, "
    "or for a software device apt-get install pocl-opencl-icd"
)
INSTALL_BINDING = "pip install 'edge-agent[opencl]'"
TYPE_CPU, TYPE_GPU = 1 << 1, 1 << 2  # bits of cl_device_type; a CPU may be 2 | 1 (DEFAULT)
_finding = functools.partial(saxpy.finding, "opencl", LAYER)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its platform lists it.

    Attributes:
        index: counted through all platforms in the loader's order, as `clinfo -l` does.
        device_type: the bits of cl_device_type.
        platform: the platform's name, e.g. "Portable Computing Language".
        platform_vendor: e.g. "The pocl project"; this decides whose OpenCL it is.
    """

    index: int
    name: str
    device_type: int
    platform: str
    platform_vendor: str
    vendor: str = ""
    driver: str = ""
    version: str = ""
    memory_bytes: int | None = None


def check(host: Host) -> Finding:
    """Run the kernel on every hardware device, or on the software device when there is none."""
    drivers = read_drivers(host)
    facts: dict[str, Fact] = {"environment": icd.environment(host, VARIABLES)}
    if not host.executes:
        return not_executed(host, facts | icd.facts(drivers))
    drivers = icd.tried(host, drivers, SYMBOLS)
    facts |= icd.facts(drivers)
    try:
        import pyopencl as cl
    except ModuleNotFoundError as error:
        return _finding(Status.ABSENT, f"Python package {error.name} is missing", INSTALL_BINDING, facts)
    except ImportError as error:
        return import_failed(str(error), facts)
    if fatal := icd.deadly("OpenCL", drivers):
        return _finding(fatal.status, fatal.reason, fatal.remedy, facts)
    facts["system_loader"] = system_loader(host)
    try:
        handles, errors = open_devices(cl)
    except cl.Error as error:
        return no_device(host, drivers, facts, str(error))
    facts["platform_errors"] = errors
    if not handles:
        return no_device(host, drivers, facts, "; ".join(errors) or "clGetDeviceIDs: no device on any platform")
    everything = [listed(i, handle) for i, handle in enumerate(handles)]
    devices = as_devices(everything)
    facts |= judge_platforms(everything)
    given = saxpy.problem()
    chosen = saxpy.candidates(devices)
    with witness.Watch(host) as watch:
        evidence = tuple(execute(cl, handles[d.index], d, given) for d in chosen)
    facts["ran_on_index"] = [d.index for d in chosen]
    status, reason = saxpy.verdict(evidence, icd.why_no_gpu(host, drivers))
    version = everything[chosen[0].index].version
    said = watch.witnesses(evidence, (os.getpid(),), witness.on_cpu(given, evidence))
    told = functools.partial(_finding, version=version, devices=devices, evidence=evidence, witnesses=said)
    return told(status, reason, "", facts)


# Read


def read_drivers(host: Host) -> list[icd.Driver]:
    """The drivers that the loader considers.

    `OCL_ICD_VENDORS` replaces the folder: it is another folder, one `.icd` file, or a library (ocl-icd 2.3 manual).
    """
    named = host.environ.get(REPLACING[0], "")
    if named.endswith(".icd"):
        return [icd.read_manifest(host, named)]
    if named and not host.path(named).is_dir():
        if ".so" in named:
            return [icd.Driver(manifest=REPLACING[0], library=named)]
        return [icd.Driver(manifest=named, error=icd.NO_FILE)]
    return [icd.read_manifest(host, path) for path in icd.manifests(host, [named or FOLDER], ".icd")]


def system_loader(host: Host) -> str:
    """Whether the loader that C++ runtimes open can be loaded: "loads", or the dynamic loader's words."""
    try:
        host.load_library(LOADER, local=True)
    except OSError as error:
        return str(error)
    return "loads"


def open_devices(cl: Any) -> tuple[list[Any], list[str]]:
    """Every device of every platform in the loader's order, and what the platforms that failed said.

    Raises:
        pyopencl.Error: there is no platform (CL_PLATFORM_NOT_FOUND_KHR, -1001).
    """
    found: list[Any] = []
    errors: list[str] = []
    for platform in cl.get_platforms():
        try:
            found += platform.get_devices()
        except cl.Error as error:  # also a driver without hardware: a platform, no device
            errors.append(f"{platform.name.strip()}: {error}")
    return found, errors


def listed(index: int, device: Any) -> Listed:
    """Read what a device and its platform say of themselves."""
    return Listed(
        index=index,
        name=device.name.strip(),
        device_type=device.type,
        platform=device.platform.name.strip(),
        platform_vendor=device.platform.vendor.strip(),
        vendor=device.vendor.strip(),
        driver=device.driver_version.strip(),
        version=device.platform.version.partition("  ")[0].strip(),  # PoCL appends how it was built
        memory_bytes=device.global_mem_size,
    )


# Judge


def not_executed(host: Host, facts: Mapping[str, Fact]) -> Finding:
    """What a recorded device tells: the devices that its `clinfo` lists, when it was recorded."""
    from probes import clinfo

    said = host.run([*clinfo.COMMAND]) if host.recorded else None
    if said is None or said.returncode is None:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    count, found = clinfo.parse_platform_count(said.stdout), clinfo.parse_devices(said.stdout)
    if count is None:
        told = "its clinfo did not come to its end, as when a driver crashes"
    elif not found:
        told = f"its clinfo lists {count} platform(s) and no device"
    else:
        told = f"its clinfo lists {', '.join(f'{d.name} ({whose(d)})' for d in found)}"
    facts = {**facts, **judge_platforms(found)}
    return _finding(Status.UNKNOWN, f"{host.not_executed}; {told}", facts=facts, devices=as_devices(found))


def whose(device: Listed) -> str:
    """Whose OpenCL reaches a device: "GPU by way of PoCL"; the platform's vendor decides, not the device's name."""
    return f"{kind_of(device).value.upper()} by way of {'PoCL' if is_pocl(device) else device.platform}"


def kind_of(device: Listed) -> DeviceKind:
    """GPU or CPU by the type's bits; an accelerator or custom device stays unknown."""
    if device.device_type & TYPE_GPU:
        return saxpy.kind_of(DeviceKind.GPU, device.name)
    return DeviceKind.CPU if device.device_type & TYPE_CPU else DeviceKind.UNKNOWN


def is_pocl(device: Listed) -> bool:
    """Whether PoCL is the platform, whatever the device is called."""
    return "pocl" in device.platform_vendor.lower()


def judge_platforms(devices: Sequence[Listed]) -> dict[str, Fact]:
    """Whose OpenCL it is, and which GPUs are only reached by way of PoCL: that road is experimental."""
    by_pocl: list[str | int | float] = [
        f"{d.index}: {d.name} by way of PoCL" for d in devices if is_pocl(d) and kind_of(d) is DeviceKind.GPU
    ]
    platforms = list(dict.fromkeys(f"{d.platform}, {d.platform_vendor}, {d.version}" for d in devices))
    return {"platforms": platforms, **({"experimental": by_pocl} if by_pocl else {})}


def as_devices(devices: Sequence[Listed]) -> tuple[Device, ...]:
    """The devices with their kind."""
    return tuple(
        Device(
            index=d.index,
            name=d.name,
            kind=kind_of(d),
            vendor=d.vendor,
            driver=f"{d.platform} {d.driver}",
            api_version=d.version,
            memory_bytes=d.memory_bytes,
        )
        for d in devices
    )


def import_failed(said: str, facts: Mapping[str, Fact]) -> Finding:
    """The package pyopencl is there but can't be imported: without a loader ABSENT, otherwise BROKEN."""
    if re.search(rf"{re.escape(LOADER)}: cannot open shared object file: No such file", said):
        return _finding(Status.ABSENT, said, INSTALL_LOADER, facts)
    return _finding(Status.BROKEN, f"import pyopencl failed: {said}", f"{INSTALL_BINDING} --force-reinstall", facts)


def no_device(host: Host, drivers: Sequence[icd.Driver], facts: Mapping[str, Fact], said: str) -> Finding:
    """Judge a loader that works but gave no device; `said` is the API's error."""
    judged = icd.nothing_found(
        host,
        "OpenCL",
        drivers,
        replaced_by=icd.override(icd.environment(host, VARIABLES), REPLACING),
        searched=[FOLDER],
        said=said,
    )
    return _finding(judged.status, judged.reason, judged.remedy or INSTALL_DRIVER, facts)


# Execute


def execute(cl: Any, handle: Any, device: Device, given: saxpy.Problem) -> Evidence:
    """Build and run the kernel on one device; an error of the API becomes evidence of failure."""
    try:
        result, elapsed_s = dispatch(cl, handle, given)
    except (cl.Error, RuntimeError) as error:  # a failed build is a plain RuntimeError
        return saxpy.failed(given, device, str(error))
    return saxpy.compared(given, device, result, elapsed_s, "device")


def dispatch(cl: Any, handle: Any, given: saxpy.Problem) -> tuple[bytes, float]:
    """Run the kernel once.

    Returns: y as float32, and the seconds from start to end by the device's profiling clock.

    Raises:
        pyopencl.Error, RuntimeError: of the binding.
    """
    import numpy as np

    context = cl.Context([handle])
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    flags = cl.mem_flags
    x = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=given.x)
    y = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=given.y)
    program = cl.Program(context, saxpy.kernel("saxpy.cl").decode()).build()
    kernel = cl.Kernel(program, "saxpy")
    done = kernel(queue, (saxpy.COUNT,), None, np.float32(saxpy.FACTOR), x, y)
    result = bytearray(len(given.y))
    cl.enqueue_copy(queue, result, y, wait_for=[done])
    queue.finish()
    return bytes(result), (done.profile.end - done.profile.start) * 1e-9
