"""`edge-agent --help` and `probe --quick` against a bare interpreter that imports click and msgspec."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pairs import Pair, cpu_s, measure, show, wall_s

COMMAND = Path(sys.executable).with_name("edge-agent")


def run(runs: int = 30) -> Pair:
    """Measure."""
    bare = [sys.executable, "-c", "import click, msgspec"]
    return measure(
        "edge-agent --help",
        "s",
        lambda: wall_s([str(COMMAND), "--help"]),
        lambda: wall_s(bare),
        runs,
        "at most 1.5",
    )


def run_quick(runs: int = 30) -> Pair:
    """The quick report: processor time, as it has to be short on a busy device, too."""
    bare = [sys.executable, "-c", "import click, msgspec"]
    return measure(
        "edge-agent probe --quick --json",
        "s of processor time",
        lambda: cpu_s([str(COMMAND), "probe", "--quick", "--json"]),
        lambda: cpu_s(bare),
        runs,
        "at most 0.3 s",
    )


if __name__ == "__main__":
    print(show(run()))
    print(show(run_quick()))
