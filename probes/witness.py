"""Who can testify that a device did the work: the API itself, the platform's counters, and the same work on the CPU.

Each witness is asked, and the silent ones say why: a counter that is not there is no proof of anything. Used in a
probe's own child process, around what it executes.

Source: proc(5) and the kernel's drm-usage-stats.rst (fdinfo); load files and nvmap clients as L4T 32 to 39 have them.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from probes import saxpy
from probes.contract import DeviceKind, Evidence, Witness, WitnessKind
from probes.host import Host
from probes.nvml import NvmlProcesses

SAMPLE_S = 0.002
LOAD_FILES = (
    "/sys/devices/gpu.0/load",
    "/sys/devices/platform/gpu.0/load",
    "/sys/class/devfreq/*/device/load",
)
NVMAP_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"
DRM_ENGINE = re.compile(r"^drm-engine-[\w-]+:\s*(\d+) ns", re.M)
SOFTWARE_ONLY = "a software device did the work, which no counter of a GPU knows"


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
        self._files = [path for pattern in LOAD_FILES for path in host.glob(pattern)]
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
        self._possible = bool(host.glob("/dev/dri/renderD*"))
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
            on_tegra = self._host.exists("/dev/nvmap")
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


class Watch:
    """Looks at the counters while something is executed: `with Watch(host) as watch: ...`."""

    def __init__(self, host: Host, sources: Sequence[Counter] | None = None) -> None:
        """Prepare.

        Args:
            host: the machine.
            sources: what to look at; None for `counters`.
        """
        self._sources = counters(host) if sources is None else sources
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="witness", daemon=True)

    def __enter__(self) -> Watch:
        self._look()
        with contextlib.suppress(RuntimeError):  # no more threads are allowed: before and after is what there is
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        for source in self._sources:
            source.look()

    def witnesses(
        self, evidence: Sequence[Evidence], pid: int, comparison: Witness | None = None
    ) -> tuple[Witness, ...]:
        """What everybody says about the work.

        Args:
            evidence: of what was executed meanwhile; () gives no witnesses.
            pid: the process that did it.
            comparison: the same work on the CPU, see `on_cpu`.
        """
        right = [piece for piece in evidence if piece.is_right]
        if not right:
            return ()
        said = [by_api(right[0])]
        software = all(piece.device_kind is DeviceKind.CPU for piece in right)
        for source in self._sources:
            spoke, text = (False, SOFTWARE_ONLY) if software else source.tell(pid)
            said.append(Witness(kind=WitnessKind.COUNTERS, source=source.source, spoke=spoke, text=text))
        if software:  # one sentence says it for all of them
            named = ", ".join(source.source for source in self._sources)
            said[1:] = [Witness(kind=WitnessKind.COUNTERS, source=named, spoke=False, text=SOFTWARE_ONLY)]
        return (*said, comparison) if comparison else tuple(said)


def by_api(evidence: Evidence) -> Witness:
    """The API names its device; it speaks when it also timed the work by the device's own clock."""
    if evidence.timer == "device" and evidence.elapsed_s is not None:
        text = f"{evidence.device} by its own clock: {milliseconds(evidence.elapsed_s)}"
        return Witness(kind=WitnessKind.API, source="device and its timestamps", spoke=True, text=text)
    text = f"it names {evidence.device}, but gives no time by the device's own clock"
    return Witness(kind=WitnessKind.API, source="device and its timestamps", spoke=False, text=text)


def on_cpu(
    given: saxpy.Problem, evidence: Sequence[Evidence], clock: Callable[[], float] = time.perf_counter
) -> Witness:
    """The same saxpy on one core of this CPU: do its numbers agree, and how long does it take?"""
    who, result, elapsed_s = compute(given, clock)
    agrees = result == given.expected
    text = f"{who} on one core: {'the same numbers' if agrees else 'OTHER numbers'} in {milliseconds(elapsed_s)}"
    timed = next((piece for piece in evidence if piece.is_right and piece.elapsed_s), None)
    if timed is not None and timed.elapsed_s:
        ratio = elapsed_s / timed.elapsed_s
        text += f"; {timed.device} took {milliseconds(timed.elapsed_s)}, {ratio:.2g} x as fast"
    return Witness(kind=WitnessKind.COMPARISON, source="the same work on the CPU", spoke=agrees, text=text)


def compute(given: saxpy.Problem, clock: Callable[[], float]) -> tuple[str, bytes, float]:
    """3x + y: (by what, float32, seconds). numpy where it is installed; else Python, which is 100 times slower."""
    try:
        import numpy as np
    except ImportError:
        from array import array

        x, y = array("f", given.x), array("f", given.y)
        start_s = clock()
        slow = array("f", (saxpy.FACTOR * a + b for a, b in zip(x, y, strict=True)))
        return "plain Python", slow.tobytes(), clock() - start_s
    a, b = (np.frombuffer(data, np.float32) for data in (given.x, given.y))
    out = np.empty_like(a)
    np.multiply(a, np.float32(saxpy.FACTOR), out=out)  # the first touch of the memory is not what is timed
    start_s = clock()
    np.multiply(a, np.float32(saxpy.FACTOR), out=out)
    np.add(out, b, out=out)
    return "numpy", out.tobytes(), clock() - start_s


def milliseconds(elapsed_s: float) -> str:
    """For people."""
    return f"{elapsed_s * 1e3:.3g} ms"
