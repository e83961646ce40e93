"""Runs two things in turn, A B A B ..., so that a ratio holds when the machine's speed drifts."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence

import msgspec


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of two figures taken in turn, and the median of the ratios pair by pair."""

    name: str
    unit: str
    ours: float
    other: float
    ratio: float
    runs: int
    aim: str


def measure(name: str, unit: str, ours: Callable[[], float], other: Callable[[], float], runs: int, aim: str) -> Pair:
    """Take both figures `runs` times in turn, after one warm-up of each."""
    ours(), other()
    pairs = [(ours(), other()) for _ in range(runs)]
    return Pair(
        name=name,
        unit=unit,
        ours=statistics.median(a for a, _ in pairs),
        other=statistics.median(b for _, b in pairs),
        ratio=statistics.median(a / b for a, b in pairs),
        runs=runs,
        aim=aim,
    )


def wall_s(argv: Sequence[str]) -> float:
    """Seconds a command takes as a whole; its output is thrown away.

    Raises:
        subprocess.CalledProcessError: it did not end with 0: a time would mean nothing.
    """
    start = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def cpu_s(argv: Sequence[str]) -> float:
    """Seconds of processor time, user and system, that a command takes; who else is busy then counts for less.

    Raises:
        subprocess.CalledProcessError: it did not end with 0.
    """
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, argv)
    return used.ru_utime + used.ru_stime


def show(pair: Pair) -> str:
    """One line for people."""
    return (
        f"{pair.name}: {pair.ours:.3f} {pair.unit} against {pair.other:.3f} {pair.unit}, "
        f"ratio {pair.ratio:.3f} (aim: {pair.aim}; median of {pair.runs} pairs)"
    )
