"""`edge-agent --help` against a bare interpreter that imports click and msgspec; whole-process wall time."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pairs import Pair, measure, show, wall_s

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


if __name__ == "__main__":
    print(show(run()))
