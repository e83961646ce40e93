"""Memory: what there is, what can still be had, swap, zram and the cgroup's limit, read from /proc and /sys.

On a Jetson CPU and GPU share one memory, so MemAvailable is also the GPU's; CUDA's own "free" leaves out the page cache
and CmaFree is 0 on healthy units, so neither is used for planning.

Source: proc(5); Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from probes import l4t, nvidia_smi, pci
from probes.contract import Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 0
UNLIMITED_BYTES = 1 << 60  # cgroup v1 prints a number near 2^63 for "no limit"


class CgroupMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One level of the hierarchy that has a limit; headroom counts page cache that can be dropped."""

    path: str
    limit_bytes: int
    headroom_bytes: int | None


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes by key."""
    found = re.findall(r"^(\S{1,64}?):\s{0,64}(\d{1,15}) kB", text, re.MULTILINE | re.A)
    return {key: int(kib) * 1024 for key, kib in found}


def parse_zram(swaps: str) -> int:
    """Bytes of swap on zram in /proc/swaps, which lists KiB."""
    sizes = re.findall(r"^/dev/zram\S*[ \t]+\S+[ \t]+(\d{1,15})\b", swaps, re.MULTILINE | re.A)
    return sum(int(size) * 1024 for size in sizes)


def cgroup_folders(text: str) -> Iterator[tuple[str, bool]]:
    """Folders to ask, own level first, then its parents: (folder, whether it is cgroup v2).

    In a container the path may be the host's and not exist inside; the mount's root, which does, comes last.

    Args:
        text: /proc/self/cgroup.
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0" and not controllers
        if not is_v2 and "memory" not in controllers.split(","):
            continue
        root = "/sys/fs/cgroup" if is_v2 else "/sys/fs/cgroup/memory"
        parts = [part for part in path.split("/") if part and part != ".."]
        for length in range(len(parts), -1, -1):
            yield "/".join([root, *parts[:length]]), is_v2


def read_cgroup(host: Host, folder: str, is_v2: bool) -> CgroupMemory | None:
    """The limit of one folder, or None when it has none or is not there."""
    limit_name, used_name, cache_key = (
        ("memory.max", "memory.current", "inactive_file")
        if is_v2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    limit = host.integer(f"{folder}/{limit_name}")  # "max" is no number: no limit
    if limit is None or limit >= UNLIMITED_BYTES:
        return None
    used = host.integer(f"{folder}/{used_name}")
    cache = re.search(rf"^{cache_key} (\d+)", host.text(f"{folder}/memory.stat") or "", re.MULTILINE)
    headroom = None if used is None else max(0, limit - used + (int(cache[1]) if cache else 0))
    return CgroupMemory(path=folder, limit_bytes=limit, headroom_bytes=headroom)


def read_cgroups(host: Host) -> list[CgroupMemory]:
    """Every level with a limit, own level first; a parent's limit binds its children too."""
    text = host.text("/proc/self/cgroup") or "0::/"
    levels = (read_cgroup(host, folder, is_v2) for folder, is_v2 in cgroup_folders(text))
    return [level for level in levels if level]


def _is_unified(host: Host, gpus: tuple[nvidia_smi.GpuRow, ...]) -> bool | None:
    """True on Tegra; elsewhere what nvidia-smi says; False without an NVIDIA GPU; None when it can't be told."""
    if l4t.is_jetson(host):
        return True
    if gpus:
        return any(gpu.unified for gpu in gpus)
    return None if pci.nvidia_gpus(host) else False


def _gpu_facts(host: Host, unified: bool | None, gpus: tuple[nvidia_smi.GpuRow, ...]) -> dict[str, Fact]:
    """Memory of the first NVIDIA GPU where it has its own; what a unified one reports is not what can be had."""
    first = gpus[0] if gpus and not unified else None
    return {
        "unified": unified,
        "gpu_memory_total_bytes": first.memory_total_bytes if first else None,
        "gpu_memory_free_bytes": first.memory_free_bytes if first else None,
        "gpu_memory_reported_bytes": gpus[0].memory_total_bytes if gpus else None,
    }


def check(host: Host) -> Finding:
    """Read the memory's sizes, all in bytes, None where the machine does not say.

    Returns: WORKS, or UNKNOWN when /proc/meminfo does not tell even the total.
    """
    meminfo = parse_meminfo(host.text("/proc/meminfo") or "")
    swaps = host.text("/proc/swaps")
    levels = read_cgroups(host)
    headrooms = [level.headroom_bytes for level in levels if level.headroom_bytes is not None]
    available = meminfo.get("MemAvailable")
    gpus = nvidia_smi.read_gpus(host) if pci.nvidia_gpus(host) else ()
    facts: dict[str, Fact] = {
        "memory_total_bytes": meminfo.get("MemTotal"),
        "memory_available_bytes": min([available, *headrooms]) if available is not None else None,
        "swap_total_bytes": meminfo.get("SwapTotal"),
        "swap_free_bytes": meminfo.get("SwapFree"),
        "zram_bytes": None if swaps is None else parse_zram(swaps),
        "cma_total_bytes": meminfo.get("CmaTotal"),
        "cma_free_bytes": meminfo.get("CmaFree"),  # 0 on healthy units: no signal by itself
        "nvmap_used_bytes": meminfo.get("NvMapMemUsed"),  # JetPack 4 alone has it
        "cgroup_limit_bytes": min((level.limit_bytes for level in levels), default=None),
        "cgroup_path": min(levels, key=lambda level: level.limit_bytes).path if levels else None,
        **_gpu_facts(host, _is_unified(host, gpus), gpus),
    }
    if "MemTotal" not in meminfo:
        return Finding(
            subject="memory",
            layer=LAYER,
            status=Status.UNKNOWN,
            reason="/proc/meminfo is missing or has no MemTotal",
            facts=facts,
        )
    reason = "" if available is not None else "/proc/meminfo has no MemAvailable: what is free can't be told"
    reported = facts["gpu_memory_reported_bytes"]
    if facts["unified"] and isinstance(reported, int) and reported < meminfo["MemTotal"]:
        reason = (
            f"nvidia-smi reports {reported >> 20} MiB, less than the memory that CPU and GPU share: MemTotal counts"
        )
    evidence = Evidence(executed="read /proc/meminfo", value=f"MemTotal {meminfo['MemTotal']} bytes")
    return Finding(subject="memory", layer=LAYER, status=Status.WORKS, reason=reason, facts=facts, evidence=(evidence,))
