"""The platform's counters that tell whether a GPU worked for a process; each says why when it has nothing to say.

Only ever used in a child process. NVML's list of processes is in `nvml`.

Source: proc(5) and the kernel's drm-usage-stats.rst (fdinfo); load files and nvmap clients as L4T 32 to 39 have them.
"""

from __future__ import annotations

import re
from typing import Protocol

from probes import clocks, gpu_nodes
from probes.host import Host
from probes.nvml import NvmlProcesses

NVMAP_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"
DRM_ENGINE = re.compile(r"^drm-engine-[\w-]+:\s*(\d+) ns", re.M)


class Counter(Protocol):
    """A source of the platform that is looked at before, during and after the work."""

    source: str

    def look(self) -> None:
        """Take a sample; called from another thread than the work."""

    def tell(self, pid: int) -> tuple[bool, str]:
        """Whether it has something to say about the process, and what; why not otherwise."""


class Load:
    """The GPU's load as the kernel smooths it, 0 to 1000; of all processes together."""

    source = "load in sysfs"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._files = clocks.load_files(host)
        self._before = self._read()
        self._most: int | None = None

    def _read(self) -> int | None:
        loads = [load for path in self._files if (load := self._host.integer(path)) is not None]
        return max(loads, default=None)

    def look(self) -> None:
        """Keep the highest."""
        load = self._read()
        if load is not None:
            self._most = load if self._most is None else max(self._most, load)

    def tell(self, pid: int) -> tuple[bool, str]:
        """It speaks when the load rose; that nothing rose says little about work of microseconds."""
        del pid  # it can't tell processes apart
        if not self._files:
            return False, "this GPU's driver has no load file"
        if self._most is None or self._before is None:
            return False, "the load file can't be read"
        rise = f"{self._before / 10:g} % before, at most {self._most / 10:g} % meanwhile, of all processes together"
        return (True, rise) if self._most > self._before else (False, f"{rise}: too short to be seen")


class DrmEngines:
    """Nanoseconds that engines spent for this process, by the fdinfo of its open DRM files."""

    source = "drm-engine in /proc/self/fdinfo"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._possible = bool(host.glob(gpu_nodes.RENDER))
        self._before = self._read() or 0
        self._most: int | None = None

    def _read(self) -> int | None:
        if not self._possible:  # reading every descriptor's file takes time away from the work
            return None
        texts = [self._host.text(path) or "" for path in self._host.glob("/proc/self/fdinfo/*")]
        times = [int(number) for text in texts for number in DRM_ENGINE.findall(text)]
        return sum(times) if times else None

    def look(self) -> None:
        """Keep the highest: the files are closed before anybody asks."""
        spent = self._read()
        if spent is not None:
            self._most = max(self._most or 0, spent)

    def tell(self, pid: int) -> tuple[bool, str]:
        """It speaks when an engine spent time for us."""
        if not self._possible:
            return False, "there is no DRM render node"
        if self._most is None:
            return False, "no open DRM file of this process has such counters (NVIDIA's drivers have none)"
        spent = self._most - self._before
        text = f"engines spent {spent / 1e6:.3f} ms for process {pid}"
        return spent > 0, text if spent > 0 else f"{text}: not counted, or too short"


class NvmapClients:
    """GPU memory per process on Tegra; the file is root's."""

    source = "nvmap clients"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._text = ""

    def look(self) -> None:
        """Keep the last list that there was."""
        self._text = self._host.text(NVMAP_CLIENTS) or self._text

    def tell(self, pid: int) -> tuple[bool, str]:
        """It speaks when the process held memory of the GPU."""
        if not self._text:
            on_tegra = self._host.exists(gpu_nodes.NVMAP)
            why = f"{NVMAP_CLIENTS} is for root only" if on_tegra else "there is no nvmap on this machine"
            return False, why
        held = parse_nvmap_clients(self._text).get(pid)
        if held is None:
            return False, f"process {pid} is not in the list"
        return True, f"process {pid} held {held >> 10} KiB"


def parse_nvmap_clients(text: str) -> dict[int, int]:
    """Bytes by process, of lines such as "user  python3  1234  5120K"; others are passed over."""
    rows = re.findall(r"^\w+\s+(?:\S.*?)\s+(\d{1,9})\s+(\d{1,15})([KM]?)B?\s*$", text, re.M | re.A)
    held: dict[int, int] = {}
    for pid, size, unit in rows:
        held[int(pid)] = held.get(int(pid), 0) + int(size) * {"": 1, "K": 1 << 10, "M": 1 << 20}[unit]
    return held


def counters(host: Host) -> list[Counter]:
    """Every counter that is known, those that will be silent as well."""
    return [NvmlProcesses(host), NvmapClients(host), DrmEngines(host), Load(host)]
