"""Clocks from sysfs: the GPU's devfreq node, whatever it is called on this L4T, and the CPU's limits.

Source: `device/of_node/name` of each devfreq node (gv11b, gp10b, ga10b, gb10b, gpu); on Thor there is no of_node and
the name is gpu-gpc-0. A `cur_freq` of 0 is a rail that is gated, not a fault.
"""

from __future__ import annotations

import msgspec

from probes.host import Host

GPU_NAMES = ("gm20b", "gp10b", "gv11b", "ga10b", "gb10b", "gpu")
LOADS = ("/sys/devices/gpu.0/load", "/sys/devices/platform/gpu.0/load")
MASKS = ("/sys/devices/gpu.0/tpc_pg_mask", "/sys/devices/platform/gpu.0/tpc_pg_mask")


class GpuClock(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU's clock in Hz and its load; None where the kernel does not say."""

    node: str
    now_hz: int | None
    min_hz: int | None
    max_hz: int | None
    governor: str
    load_percent: float | None


def gpu_node(host: Host) -> str:
    """The devfreq folder of the GPU, or ""."""
    for folder in host.glob("/sys/class/devfreq/*"):
        name = folder.rpartition("/")[2]
        label = host.line(f"{folder}/device/of_node/name") or ""
        if label in GPU_NAMES or name.startswith("gpu-gpc") or name.rpartition(".")[2] in GPU_NAMES:
            return folder
    return ""


def load_files(host: Host) -> list[str]:
    """The files that tell the GPU's load, 0 to 1000, as the kernel smooths it; [] where its driver has none."""
    folder = gpu_node(host)
    paths = [f"{folder}/device/load"] if folder else []
    return [path for path in (*paths, *LOADS) if host.exists(path)]


def read_gpu(host: Host) -> GpuClock | None:
    """The GPU's clock; None when there is no node of it."""
    folder = gpu_node(host)
    if not folder:
        return None
    now, low, high = (host.integer(f"{folder}/{name}_freq") for name in ("cur", "min", "max"))
    loads = (host.integer(path) for path in load_files(host))
    load = next((load for load in loads if load is not None), None)
    return GpuClock(
        node=folder.rpartition("/")[2],
        now_hz=now,
        min_hz=low,
        max_hz=high,
        governor=host.line(f"{folder}/governor") or "",
        load_percent=None if load is None else load / 10,
    )


def read_tpc_mask(host: Host) -> int | None:
    """The mask of GPU clusters that the power mode gates: each bit is one; None where the kernel does not say."""
    return next((mask for path in MASKS if (mask := host.integer(path)) is not None), None)


def read_cpu_limits_hz(host: Host) -> tuple[int | None, int | None]:
    """(lowest, highest) clock that the CPU may take, over all its policies, in Hz."""
    policies = host.glob("/sys/devices/system/cpu/cpufreq/policy*")
    low = [khz for path in policies if (khz := host.integer(f"{path}/scaling_min_freq")) is not None]
    high = [khz for path in policies if (khz := host.integer(f"{path}/scaling_max_freq")) is not None]
    return min(low) * 1000 if low else None, max(high) * 1000 if high else None
