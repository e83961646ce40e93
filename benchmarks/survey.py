"""The survey of all probes against its slowest probe alone, and a second survey on which nothing has changed."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from agent.survey import Survey
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


def run_again(runs: int = 5) -> Pair:
    """What a daemon does at its start, with the report of its last life and without one; probes and runners."""
    with tempfile.TemporaryDirectory() as folder:
        survey = Survey(folder, "bench", lambda _data: None)

        def take_s(*, renew: bool) -> float:
            start = time.perf_counter()
            survey.take((), lambda: False, 300, now=True, renew=renew)
            return time.perf_counter() - start

        take_s(renew=True)
        assert Path(folder, "report.json").exists()
        return measure(
            "second survey, nothing changed, against a whole one",
            "s",
            lambda: take_s(renew=False),
            lambda: take_s(renew=True),
            runs,
            "at most 2 s",
        )


if __name__ == "__main__":
    print(show(run()))
    print(show(run_again()))
