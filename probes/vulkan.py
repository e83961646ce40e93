"""Vulkan: a compute shader (shipped SPIR-V) computes 3x + y on 1,048,576 floats, and each number is compared.

The loader's errors carry no text (VkErrorIncompatibleDriver for "no driver" and for "a driver that can't be loaded"
alike, loader 1.3.239), so the manifests are read here too, see `probes/icd.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from probes import icd, saxpy, vulkan_dispatch, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "mesa", "vulkan", "vulkan_libraries", "python")
USES_GPU = True
LOADER = "libvulkan.so.1"
SYMBOLS = ("vk_icdGetInstanceProcAddr", "vkGetInstanceProcAddr")  # the second: interface version 0
REPLACING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the older name counts only when the newer one is unset
FILTERING = ("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
VARIABLES = (*REPLACING, "VK_ADD_DRIVER_FILES", "VK_LOADER_*", "DISPLAY")
INSTALL_LOADER = "apt-get install libvulkan1 (Jetson with L4T 35 or 39: nvidia-l4t-libvulkan)"
INSTALL_DRIVER = (
    "install the GPU's driver (Jetson: nvidia-l4t-3d-core and the L4T graphics packages), "
    "or for a software device apt-get install mesa-vulkan-drivers"
)
INSTALL_BINDING = "pip install 'edge-agent[vulkan]'"
# VkPhysicalDeviceType; what the type leaves open (OTHER) stays unknown.
KINDS = {1: DeviceKind.GPU, 2: DeviceKind.GPU, 3: DeviceKind.GPU, 4: DeviceKind.CPU}
SHARES_MEMORY = {1: True, 2: False}  # INTEGRATED, DISCRETE; of others it is not known whose memory they use
_finding = functools.partial(saxpy.finding, "vulkan", LAYER)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A physical device as the loader lists it.

    Attributes:
        index: the loader's own number; GGML_VK_VISIBLE_DEVICES and the like count so.
        device_type: VkPhysicalDeviceType, 0-4.
        uuid: deviceUUID in hexadecimal; empty below Vulkan 1.1.
        driver: driver name and version; empty below Vulkan 1.2.
        memory_bytes: all device-local heaps together.
    """

    index: int
    name: str
    device_type: int
    uuid: str = ""
    vendor_id: int = 0
    driver: str = ""
    api_version: str = ""
    memory_bytes: int | None = None


def check(host: Host) -> Finding:
    """Run the shader on every hardware device, or on the software device when there is none."""
    variables = icd.environment(host, VARIABLES)
    drivers = read_drivers(host)
    facts: dict[str, Fact] = {"environment": variables}
    if not host.executes:
        return not_executed(host, facts | icd.facts(drivers))
    drivers = icd.tried(host, drivers, SYMBOLS)
    facts |= icd.facts(drivers)
    if fatal := icd.deadly("Vulkan", drivers):
        return _finding(fatal.status, fatal.reason, fatal.remedy, facts)
    try:
        host.load_library(LOADER)
    except OSError as error:
        return loader_unusable(str(error), facts)
    try:
        import vulkan as vk
    except ModuleNotFoundError as error:
        return _finding(Status.ABSENT, f"Python package {error.name} is missing", INSTALL_BINDING, facts)
    except OSError as error:
        return _finding(Status.BROKEN, f"{LOADER} loads, but import vulkan failed: {error}", facts=facts)
    facts["loader_version"] = loader_version(vk)
    with contextlib.ExitStack() as stack:
        try:
            physical = open_devices(vk, stack)
        except vk.VkError as error:
            return no_device(host, drivers, facts, f"vkCreateInstance: {type(error).__name__}")
        if not physical:
            return no_device(host, drivers, facts, "vkEnumeratePhysicalDevices: none")
        found = distinct([listed(vk, i, handle) for i, handle in enumerate(physical)])
        devices = as_devices(found)
        given = saxpy.problem()
        chosen = saxpy.candidates(devices)
        with witness.Watch(host) as watch:
            evidence = tuple(execute(vk, physical[d.index], d, given) for d in chosen)
    facts["listed_devices"] = len(physical)
    facts["ran_on_index"] = [d.index for d in chosen]
    facts["gpu_index"] = gpu_index(devices)
    facts["integrated"] = next(SHARES_MEMORY.get(d.device_type) for d in found if d.index == chosen[0].index)
    status, reason = saxpy.verdict(evidence, icd.why_no_gpu(host, drivers))
    version = str(facts["loader_version"])
    said = watch.witnesses(evidence, (os.getpid(),), witness.on_cpu(given, evidence))
    told = functools.partial(_finding, version=version, devices=devices, evidence=evidence, witnesses=said)
    return told(status, reason, "", facts)


# Read


def folders(host: Host) -> list[str]:
    """Where the loader looks for manifests, in its order (Khronos loader, LoaderDriverInterface.md)."""
    home = host.environ.get("HOME", "")
    env = host.environ.get
    bases = [env("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")]
    bases += (env("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    bases += ["/usr/local/etc", "/etc"]
    bases += [env("XDG_DATA_HOME") or (f"{home}/.local/share" if home else "")]
    bases += (env("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    return [f"{base.rstrip('/')}/vulkan/icd.d" for base in dict.fromkeys(bases) if base]


def read_drivers(host: Host) -> list[icd.Driver]:
    """The manifests that the loader considers, each read; an entry of a variable may be a folder."""
    named = next((host.environ[name] for name in REPLACING if host.environ.get(name)), "")
    added = host.environ.get("VK_ADD_DRIVER_FILES", "")
    paths: list[str] = []
    for entry in f"{added}:{named}".split(":"):
        if entry:
            paths += icd.manifests(host, [entry], ".json") or [entry]
    if not named:
        paths += icd.manifests(host, folders(host), ".json")
    return [icd.read_manifest(host, path) for path in dict.fromkeys(paths)]


def loader_version(vk: Any) -> str:
    """The loader's own version; "1.0" for one that predates the question."""
    try:
        return version_text(vk.vkEnumerateInstanceVersion())
    except AttributeError:
        return "1.0"


def version_text(number: int) -> str:
    """A packed Vulkan version, without its variant bits, as "1.3.230"."""
    return f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"


def open_devices(vk: Any, stack: contextlib.ExitStack) -> list[Any]:
    """Every physical device, in the loader's order; the instance lives as long as `stack`.

    Raises:
        VkError: of the binding; its message is empty, its class names the code.
    """
    application = vk.VkApplicationInfo(pApplicationName="edge-agent", apiVersion=1 << 22 | 1 << 12)
    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=application), None)
    stack.callback(vk.vkDestroyInstance, instance, None)
    return list(vk.vkEnumeratePhysicalDevices(instance))


def listed(vk: Any, index: int, physical: Any) -> Listed:
    """Read what a physical device says of itself."""
    plain = vk.vkGetPhysicalDeviceProperties(physical)
    version = plain.apiVersion
    uuid = driver = ""
    if version >= 1 << 22 | 1 << 12:
        identity = vk.ffi.new("VkPhysicalDeviceIDProperties*")
        identity.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
        names = vk.ffi.new("VkPhysicalDeviceDriverProperties*")
        names.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES
        if version >= 1 << 22 | 2 << 12:
            identity.pNext = names
        both = vk.ffi.new("VkPhysicalDeviceProperties2*")
        both.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
        both.pNext = identity
        vk.vkGetPhysicalDeviceProperties2(physical, both)
        uuid = bytes(identity.deviceUUID).hex()
        driver = " ".join(vk.ffi.string(text).decode() for text in (names.driverName, names.driverInfo)).strip()
    memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    return Listed(
        index=index,
        name=plain.deviceName,
        device_type=plain.deviceType,
        uuid=uuid,
        vendor_id=plain.vendorID,
        driver=driver,
        api_version=version_text(version),
        memory_bytes=sum(h.size for h in heaps if h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT),
    )


# Judge


def not_executed(host: Host, facts: Mapping[str, Fact]) -> Finding:
    """What a recorded device tells: the devices that its `vulkaninfo --summary` lists, when it was recorded."""
    from probes import vulkaninfo

    said = host.run([*vulkaninfo.COMMAND]) if host.recorded else None
    if said is None or said.returncode is None:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    found = vulkaninfo.parse_summary(said.stdout)
    devices = as_devices(distinct(found))
    index = gpu_index(devices)
    failure = vulkaninfo.parse_failure(said.stdout + said.stderr)
    told = f"its vulkaninfo lists {len(devices)} device(s), {'no GPU' if index is None else f'a GPU at index {index}'}"
    if failure:
        told = f"its vulkaninfo says {failure}: the loader is there, a driver is missing"
    facts = {**facts, "listed_devices": len(found), "gpu_index": index}
    return _finding(Status.UNKNOWN, f"{host.not_executed}; {told}", facts=facts, devices=devices)


def gpu_index(devices: Sequence[Device]) -> int | None:
    """The loader's own number of the first device that is no CPU, as GGML_VK_VISIBLE_DEVICES counts; None without."""
    return next((d.index for d in saxpy.candidates(devices) if d.kind is not DeviceKind.CPU), None)


def distinct(devices: Sequence[Listed]) -> list[Listed]:
    """Each device once: two manifests that name one driver make the loader list its devices twice.

    The UUID decides, together with name and driver: one card by two different drivers stays two entries. Without a
    UUID (below Vulkan 1.1, or all zeros) nothing is collapsed, as two cards of one kind look alike then.
    """
    kept: dict[tuple[object, ...], Listed] = {}
    for device in devices:
        identity = device.uuid if device.uuid.strip("0-") else device.index
        kept.setdefault((identity, device.name, device.vendor_id, device.driver), device)
    return list(kept.values())


def as_devices(devices: Sequence[Listed]) -> tuple[Device, ...]:
    """The devices with their kind: deviceType decides, but a known software device never counts as a GPU."""
    return tuple(
        Device(
            index=d.index,
            name=d.name,
            kind=saxpy.kind_of(KINDS.get(d.device_type, DeviceKind.UNKNOWN), d.name),
            vendor=f"0x{d.vendor_id:04x}",
            driver=d.driver,
            api_version=d.api_version,
            memory_bytes=d.memory_bytes,
        )
        for d in devices
    )


def loader_unusable(said: str, facts: Mapping[str, Fact]) -> Finding:
    """Tell a loader that is not installed (ABSENT) from one that can't be loaded (BROKEN)."""
    missing = re.match(rf"{re.escape(LOADER)}: cannot open shared object file: No such file", said)
    return _finding(Status.ABSENT if missing else Status.BROKEN, said, INSTALL_LOADER, facts)


def no_device(host: Host, drivers: Sequence[icd.Driver], facts: Mapping[str, Fact], said: str) -> Finding:
    """Judge a loader that works but gave no device; `said` is the call and its error."""
    variables = icd.environment(host, VARIABLES)
    filters = [f"{name}={variables[name]}" for name in FILTERING if variables.get(name)]
    if filters and drivers and not icd.broken(drivers):
        names = " and ".join(text.partition("=")[0] for text in filters)
        reason = f"{' and '.join(filters)} leaves no Vulkan driver ({said})"
        return _finding(Status.BROKEN, reason, f"unset {names}", facts, version=str(facts["loader_version"]))
    judged = icd.nothing_found(
        host,
        "Vulkan",
        drivers,
        replaced_by=icd.override(variables, REPLACING),
        searched=folders(host),
        said=said,
    )
    remedy = judged.remedy or INSTALL_DRIVER
    if "InitializationFailed" in said and variables.get("DISPLAY"):
        # JetPack 4's driver asks the X server; X forwarding breaks it (OE4T/meta-tegra#781, Tencent/ncnn#3920).
        remedy = f"unset DISPLAY (now {variables['DISPLAY']}) or use a local X server; else {remedy}"
    return _finding(judged.status, judged.reason, remedy, facts, version=str(facts["loader_version"]))


# Execute


def execute(vk: Any, physical: Any, device: Device, given: saxpy.Problem) -> Evidence:
    """Run the shader on one physical device; an error of the API becomes evidence of failure."""
    try:
        with contextlib.ExitStack() as stack:
            result, elapsed_s = vulkan_dispatch.dispatch(vk, physical, given, stack)
    except (vk.VkError, vk.VkException) as error:
        return saxpy.failed(given, device, type(error).__name__)
    except LookupError as error:
        return saxpy.failed(given, device, str(error.args[0]))
    return saxpy.compared(given, device, result, elapsed_s, "device")
