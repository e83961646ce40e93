"""Hardware: module, SoC, GPU stack, CPU and identity, read from the device tree, DMI, PCI and /proc.

Nothing is executed on the GPU here. A machine that is no Jetson was read just as well, so it WORKS too.

Source: identification order and module numbers in `jetson_modules.json`, with its sources.
"""

from __future__ import annotations

import re

from probes import clocks, devicetree, gpu_nodes, jetson_modules, l4t, pci
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.devicetree import DeviceTree
from probes.host import Host
from probes.jetson_modules import GIB, Soc
from probes.memory import parse_meminfo

LAYER = 0
UNKNOWN_MODULE = "unknown (custom)"

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
    """For a SoC that is not in the table, or not named."""
    node = clocks.gpu_node(host).rpartition("/")[2]
    if gpu_nodes.there(host, gpu_nodes.NVGPU) or re.match(r"\d+\.", node):
        return "nvgpu"
    return "nvidia" if host.glob("/proc/driver/nvidia/gpus/*") or node.startswith("gpu-gpc") else ""


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


def check(host: Host) -> Finding:
    """Read what machine this is.

    Raises: nothing. WORKS when anything could be read, Jetson or not; UNKNOWN when nothing could.
    """
    tree, table, release = devicetree.read_device_tree(host), jetson_modules.read_table(), l4t.read_release(host)
    gpus = pci.read_gpus(host)
    soc = tree.soc
    is_jetson = soc is not None or host.exists(l4t.RELEASE_FILE)
    module = jetson_modules.identify_module(tree, _read_memory_total(host), table)
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
        **jetson_modules.data_sheet(module),
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
