"""The survey of all probes against its slowest probe alone; wall time of whole processes."""

from __future__ import annotations

import sys

from benchmarks.pairs import Pair, measure, show, wall_s
from probes.isolation import list_probes


def slowest() -> str:
    """The probe that takes longest when it is alone; each is run twice, the second time counts."""
    times = {name: min(probe_s(name), probe_s(name)) for name in list_probes()}
    return max(times, key=lambda name: times[name])


def probe_s(name: str) -> float:
    """Seconds that one probe takes, with the child process it runs in."""
    return wall_s([sys.executable, "-m", "probes", name])


def run(runs: int = 9) -> Pair:
    """Measure."""
    name = slowest()
    return measure(
        f"survey of all probes against {name} alone",
        "s",
        lambda: wall_s([sys.executable, "-m", "probes"]),
        lambda: probe_s(name),
        runs,
        "at most 1.25",
    )


if __name__ == "__main__":
    print(show(run()))
