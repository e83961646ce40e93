"""Who can testify that a device did the work: the API itself, the platform's counters, and the same work on the CPU.

Each witness is asked, and the silent ones say why: a counter that is not there is no proof of anything. Used in the
check's own child process, around what it executes; by runners' checks as well, whose first witness is the placement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from probes import saxpy
from probes.contract import DeviceKind, Evidence, Witness, WitnessKind
from probes.gpu_counters import Counter, counters
from probes.host import Host

SAMPLE_S = 0.002
TIMESTAMPS = "device and its timestamps"
SAME_WORK = "the same work on the CPU"
NOT_COUNTED = {
    DeviceKind.CPU: "no GPU is claimed: a CPU did the work, which no counter of a GPU knows",
    DeviceKind.NPU: "an NPU did the work, which no counter of a GPU knows",
}
Clock = Callable[[], float]


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
        self, evidence: Sequence[Evidence], pids: Sequence[int], *comparisons: Witness, api: Witness | None = None
    ) -> tuple[Witness, ...]:
        """What everybody says about the work.

        Args:
            evidence: of what was executed meanwhile; without a right answer there is nothing to testify to: ().
            pids: the processes that did it, at least one.
            comparisons: the same work on the CPU, see `on_cpu` and `again`.
            api: what the API says; None for `by_api`.
        """
        right = [piece for piece in evidence if piece.is_right]
        if not right:
            return ()
        return (api or by_api(right), *self._counted({piece.device_kind for piece in right}, pids), *comparisons)

    def _counted(self, kinds: set[DeviceKind], pids: Sequence[int]) -> list[Witness]:
        """What the counters say; one sentence for all of them when the work was none of a GPU's."""
        reason = NOT_COUNTED.get(next(iter(kinds))) if len(kinds) == 1 else None
        if reason:
            named = ", ".join(source.source for source in self._sources)
            return [Witness(kind=WitnessKind.COUNTERS, source=named, spoke=False, text=reason)]
        said = []
        for source in self._sources:
            answers = [source.tell(pid) for pid in pids]
            spoke, text = next((answer for answer in answers if answer[0]), answers[0])
            said.append(Witness(kind=WitnessKind.COUNTERS, source=source.source, spoke=spoke, text=text))
        return said


def by_api(right: Sequence[Evidence]) -> Witness:
    """The API names its device; it speaks when it also timed some of the work by the device's own clock."""
    timed = [
        (piece.device, piece.elapsed_s) for piece in right if piece.timer == "device" and piece.elapsed_s is not None
    ]
    text = f"it names {right[0].device}, but gives no time by the device's own clock"
    if timed:
        text = f"{timed[0][0]} by its own clock: {milliseconds(timed[0][1])}"
    return Witness(kind=WitnessKind.API, source=TIMESTAMPS, spoke=bool(timed), text=text)


def on_cpu(given: saxpy.Problem, evidence: Sequence[Evidence], clock: Clock = time.perf_counter) -> Witness:
    """The same sum on one core of this CPU: do its numbers agree, and how long does it take?"""
    who, result, elapsed_s = compute(given, clock)
    return compared(f"{who} on one core", result == given.expected, elapsed_s, evidence)


def again(
    who: str, work: Callable[[], bytes], evidence: Evidence, expected: bytes, clock: Clock = time.perf_counter
) -> Witness:
    """Other work of a device done again on the CPU, by `who`; `expected` is what the device had to answer."""
    start_s = clock()
    result = work()
    return compared(who, result == expected, clock() - start_s, (evidence,))


def compared(who: str, agrees: bool, elapsed_s: float | None, evidence: Sequence[Evidence]) -> Witness:
    """What the comparison says; it speaks when the CPU came to the same.

    Args:
        who: did the same work on the CPU, for people.
        agrees: whether its answer was that of the device.
        elapsed_s: seconds that the CPU took; None when they were not taken.
        evidence: of the device; the first that is right and timed tells the device's time.
    """
    text = f"{who}: {'the same answer' if agrees else 'ANOTHER answer'}"
    text += "" if elapsed_s is None else f" in {milliseconds(elapsed_s)}"
    timed = next((piece for piece in evidence if piece.is_right and piece.elapsed_s), None)
    if timed is not None and timed.elapsed_s and elapsed_s is not None:
        ratio = elapsed_s / timed.elapsed_s
        text += f"; {timed.device} took {milliseconds(timed.elapsed_s)}, {ratio:.2g} x as fast"
    return Witness(kind=WitnessKind.COMPARISON, source=SAME_WORK, spoke=agrees, text=text)


def not_compared(reason: str) -> Witness:
    """Why there is no comparison."""
    return Witness(kind=WitnessKind.COMPARISON, source=SAME_WORK, spoke=False, text=reason)


def compute(given: saxpy.Problem, clock: Clock) -> tuple[str, bytes, float]:
    """a·x + b·y: (by what, float32, seconds). numpy where it is installed; else Python, which is 100 times slower."""
    try:
        import numpy as np
    except ImportError:
        from array import array

        x, y = array("f", given.x), array("f", given.y)
        start_s = clock()
        slow = array("f", (given.a * one + given.b * other for one, other in zip(x, y, strict=True)))
        return "plain Python", slow.tobytes(), clock() - start_s
    one, other = (np.frombuffer(data, np.float32) for data in (given.x, given.y))
    out = np.empty_like(one)
    np.multiply(one, np.float32(given.a), out=out)  # the first touch of the memory is not what is timed
    start_s = clock()
    np.multiply(one, np.float32(given.a), out=out)
    np.add(out, other if given.b == 1 else other * np.float32(given.b), out=out)
    return "numpy", out.tobytes(), clock() - start_s


def milliseconds(elapsed_s: float) -> str:
    """For people."""
    return f"{elapsed_s * 1e3:.3g} ms"
