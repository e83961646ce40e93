"""Hardware: module, SoC, GPU stack, CPU and identity, read from the device tree, DMI, PCI and /proc.

Nothing is executed on the GPU here. A machine that is no Jetson was read just as well, so it WORKS too.

Source: identification order and module numbers in `jetson_modules.json`, with its sources.
"""

from __future__ import annotations

import re
from importlib import resources

import msgspec

from probes import devicetree, gpu_nodes, l4t, pci
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.devicetree import DeviceTree
from probes.host import Host
from probes.memory import parse_meminfo

LAYER = 0
UNKNOWN_MODULE = "unknown (custom)"
GIB = 1 << 30

# Implementer and part numbers of /proc/cpuinfo. Source: Linux arch/arm64/include/asm/cputype.h
ARM_CORES = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}


class Soc(msgspec.Struct, frozen=True, kw_only=True):
    """What the SoC decides, whatever L4T runs on it."""

    compute_capability: str
    gpu: str
    gpu_stack: str


class SuperMode(msgspec.Struct, frozen=True, kw_only=True):
    """What changes in Super mode; None where no source says."""

    gpu_max_mhz: float | None
    bandwidth_gb_per_s: float | None


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `jetson_modules.json`; None means not found in a source. Bandwidth in 10^9 bytes per second."""

    name: str
    part: str
    match: tuple[str, ...]
    soc: str
    ram_gb: int | None = None
    cuda_cores: int | None = None
    sm_count: int | None = None
    gpu_max_mhz: float | None = None
    bandwidth_gb_per_s: float | None = None
    dla_count: int | None = None
    super_mode: SuperMode | None = msgspec.field(name="super", default=None)
    sources: tuple[str, ...] = ()


class ModuleTable(msgspec.Struct, frozen=True, kw_only=True):
    """`jetson_modules.json`."""

    socs: dict[str, Soc]
    modules: tuple[Module, ...]


def read_table() -> ModuleTable:
    """The bundled table of modules."""
    data = resources.files("probes").joinpath("jetson_modules.json").read_bytes()
    return msgspec.json.decode(data, type=ModuleTable)


def identify_module(tree: DeviceTree, memory_bytes: int | None, table: ModuleTable) -> Module | None:
    """The module that the device tree names, with Super mode and the memory variant worked in.

    All strings are looked at, since the first may be a code name (AGX Xavier says "galen" first). The longest match
    wins: an IGX Orin carries the number of a module that is also sold alone.

    Args:
        tree: the device tree.
        memory_bytes: MemTotal; tells apart modules that share a number. None leaves both names standing.
        table: the known modules.

    Returns: None when no string holds a number that is in the table.
    """
    for tokens in (tree.compatible, tree.board_ids):
        hits = [
            (key, token, row)
            for row in table.modules
            for key in row.match
            for token in tokens
            if devicetree.names_board(token, key)
        ]
        if hits:
            longest = max(len(key) for key, _, _ in hits)
            rows = list({row: None for key, _, row in hits if len(key) == longest})
            is_super = any(token.endswith("-super") for key, token, _ in hits if len(key) == longest)
            return _with_super(_by_memory(rows, memory_bytes), is_super)
    return None


def _by_memory(rows: list[Module], memory_bytes: int | None) -> Module:
    if len(rows) == 1:
        return rows[0]
    rows = sorted(rows, key=lambda row: row.ram_gb or 0)
    if memory_bytes is None:
        return msgspec.structs.replace(rows[0], name=" or ".join(row.name for row in rows), ram_gb=None)
    # MemTotal is 3-10 % below the nominal size, never above it
    return next((row for row in rows if (row.ram_gb or 0) * GIB >= memory_bytes), rows[-1])


def _with_super(module: Module, is_super: bool) -> Module:
    if not is_super:
        return module
    mode = module.super_mode or SuperMode(gpu_max_mhz=None, bandwidth_gb_per_s=module.bandwidth_gb_per_s)
    return msgspec.structs.replace(
        module,
        name=f"{module.name}, Super",
        gpu_max_mhz=mode.gpu_max_mhz,
        bandwidth_gb_per_s=mode.bandwidth_gb_per_s,
    )


def judge_gpu_stack(
    host: Host, soc: Soc | None, is_jetson: bool, release: str | None, gpus: tuple[pci.PciGpu, ...]
) -> tuple[str, str, str]:
    """Which software the GPU answers to: (stack, NVML, both in words).

    On a Jetson the SoC decides, not the L4T number: L4T 39 runs on Orin (nvgpu) and on Thor (nvidia).

    Returns: stack "nvgpu", "nvidia" or ""; NVML "none", "stub" (answers NOT_SUPPORTED to nearly everything),
        "partial" (no memory figures) or "full".
    """
    stack = soc.gpu_stack if soc else _stack_by_nodes(host) if is_jetson else ""
    if stack == "nvgpu":
        has_nvml = (l4t.major(release) or 0) >= 36 or host.exists("/usr/sbin/nvidia-smi")
        return ("nvgpu", "stub", "nvgpu with an NVML stub") if has_nvml else ("nvgpu", "none", "nvgpu without NVML")
    if stack == "nvidia":
        return "nvidia", "partial", "nvidia driver on a Jetson; NVML without memory figures"
    if not is_jetson and any(_driver_may_serve(host, gpu) for gpu in gpus if gpu.vendor == pci.NVIDIA):
        return "nvidia", "full", "desktop: nvidia driver"
    return "", "none", "no NVIDIA driver"


def _stack_by_nodes(host: Host) -> str:
    """For a SoC that is not in the table."""
    if gpu_nodes.there(host, gpu_nodes.NVGPU):
        return "nvgpu"
    return "nvidia" if host.glob("/proc/driver/nvidia/gpus/*") else ""


def _driver_may_serve(host: Host, gpu: pci.PciGpu) -> bool:
    # a recording seldom has the driver link; a live GPU without one has no driver
    return gpu.driver == "nvidia" or (host.recorded and gpu.driver is None)


def parse_cpu(text: str) -> tuple[str | None, str | None, int]:
    """From /proc/cpuinfo: (model, architecture, processors listed); None where the text does not say."""
    fields = [
        (key.strip(), value.strip())
        for key, colon, value in (line.partition(":") for line in text.splitlines())
        if colon
    ]
    values = dict(reversed(fields))  # the first processor's
    count = sum(key == "processor" for key, _ in fields)
    core = (values.get("CPU implementer", ""), values.get("CPU part", ""))
    if core[0]:
        model = ARM_CORES.get(core) or values.get("model name") or f"ARM implementer {core[0]} part {core[1]}"
        return model, "aarch64" if values.get("CPU architecture", "8") >= "8" else "armv7l", count
    return values.get("model name"), "x86_64" if "vendor_id" in values else None, count


def count_cpus(text: str | None) -> int | None:
    """Processors in a list such as "0-3,6"; None when it can't be read."""
    if not re.fullmatch(r"[\d,\s-]{1,4096}", text or "", re.A):
        return None
    ranges = re.findall(r"\b(\d{1,6})(?:-(\d{1,6}))?\b", text or "", re.A)
    count = sum(int(last or first) - int(first) + 1 for first, last in ranges)
    return count if count > 0 else None


def _read_model(host: Host, tree: DeviceTree) -> str | None:
    if tree.model:
        return tree.model
    soc0 = devicetree.usable(host.line("/sys/devices/soc0/machine"))
    dmi = [devicetree.usable(host.line(f"/sys/class/dmi/id/{name}")) for name in ("sys_vendor", "product_name")]
    return soc0 or " ".join(part for part in dmi if part) or None


def _read_memory_total(host: Host) -> int | None:
    return parse_meminfo(host.text("/proc/meminfo") or "").get("MemTotal")


def _data_sheet(module: Module | None) -> dict[str, Fact]:
    """The module's data sheet, for forecasts where nothing was measured yet."""
    if module is None:
        return {}
    bandwidth = module.bandwidth_gb_per_s
    return {
        "datasheet_memory_bandwidth_bytes_per_s": None if bandwidth is None else bandwidth * 1e9,
        "datasheet_cuda_cores": module.cuda_cores,
        "datasheet_sm_count": module.sm_count,
        "datasheet_gpu_max_hz": None if module.gpu_max_mhz is None else module.gpu_max_mhz * 1e6,
        "datasheet_dla_count": module.dla_count,
    }


def check(host: Host) -> Finding:
    """Read what machine this is.

    Raises: nothing. WORKS when anything could be read, Jetson or not; UNKNOWN when nothing could.
    """
    tree, table, release = devicetree.read_device_tree(host), read_table(), l4t.read_release(host)
    gpus = pci.read_gpus(host)
    soc = tree.soc or devicetree.find_soc([(host.line("/sys/devices/soc0/soc_id") or "").lower()])
    is_jetson = soc is not None or host.exists(l4t.RELEASE_FILE)
    module = identify_module(tree, _read_memory_total(host), table)
    soc_row = table.socs.get(soc or "")
    stack, nvml, stack_text = judge_gpu_stack(host, soc_row, is_jetson, release, gpus)
    cpu_model, cpu_arch, cpu_listed = parse_cpu(host.text("/proc/cpuinfo") or "")
    facts: dict[str, Fact] = {
        "model": _read_model(host, tree),
        "module": module.name if module else UNKNOWN_MODULE if is_jetson else None,
        "module_part": module.part if module else None,
        "soc": soc,
        "compute_capability": soc_row.compute_capability if soc_row else None,
        "gpu_stack": stack,
        "gpu_stack_text": stack_text,
        "nvml": nvml,
        "architecture": host.run(["uname", "-m"]).stdout.strip() or cpu_arch or ("aarch64" if soc else None),
        "serial": tree.serial or devicetree.usable(host.line("/sys/class/dmi/id/product_serial")),
        "is_jetson": is_jetson,
        "in_container": host.in_container(),
        "cpu_model": cpu_model,
        "cpu_count": count_cpus(host.line("/sys/devices/system/cpu/present")) or cpu_listed or None,
        "cpu_online_count": count_cpus(host.line("/sys/devices/system/cpu/online")),
        "ram_nominal_bytes": module.ram_gb * GIB if module and module.ram_gb else None,
        "carrier": devicetree.find_carrier(tree.compatible),
        "pci_gpus": [gpu.text for gpu in gpus],
        **_data_sheet(module),
    }
    return _judge(tree, facts)


def _judge(tree: DeviceTree, facts: dict[str, Fact]) -> Finding:
    evidence: tuple[Evidence, ...] = ()
    if tree.compatible:
        evidence = (Evidence(executed="read /proc/device-tree/compatible", value=cut(" ".join(tree.compatible))),)
    known = facts["model"] or facts["soc"] or facts["cpu_model"] or facts["architecture"] or facts["pci_gpus"]
    if not known and not facts["is_jetson"]:
        return Finding(
            subject="hardware",
            layer=LAYER,
            status=Status.UNKNOWN,
            reason="no device tree, DMI, PCI device or /proc/cpuinfo could be read",
            facts=facts,
        )
    reason = ""
    if facts["module"] == UNKNOWN_MODULE:
        said = " ".join(tree.compatible) or "nothing"
        reason = f"the module is not in our table: the device tree says {said}; what the SoC decides is known anyway"
        if not facts["compute_capability"]:
            reason = f"the SoC is not in our table: the device tree says {said}; the GPU's abilities are left to CUDA"
    return Finding(subject="hardware", layer=LAYER, status=Status.WORKS, reason=reason, facts=facts, evidence=evidence)
