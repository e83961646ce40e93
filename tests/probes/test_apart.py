"""A copy of the process for what may crash or hang: the answer, and how it ended without one."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from probes.apart import ANSWER_BYTES, Died, apart


def hang() -> str:
    time.sleep(60)
    return "never"


def test_the_answer_comes_back_from_another_process() -> None:
    assert apart(lambda: f"é {os.getppid()}") == f"é {os.getpid()}"


def test_an_empty_answer_is_an_answer() -> None:
    assert apart(lambda: "") == ""


def test_a_long_answer_is_cut() -> None:
    assert apart(lambda: "x" * 100_000) == "x" * (ANSWER_BYTES - 1)


def test_a_crash_is_named_by_its_signal() -> None:
    with pytest.raises(Died, match=r"crashed \(SIGSEGV\)"):
        apart(lambda: str(ctypes.string_at(0)))


def test_a_driver_that_ends_the_process_is_told() -> None:
    with pytest.raises(Died, match="ended the process"):
        apart(lambda: os._exit(3))


def test_one_that_hangs_is_left_after_its_time_and_no_process_stays() -> None:
    began = time.monotonic()
    with pytest.raises(Died, match=r"did not come back within 0\.2 s$"):
        apart(hang, 0.2)
    assert time.monotonic() - began < 5
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_copy_holds_no_file_of_ours_open() -> None:
    reader, writer = os.pipe()
    held = apart(lambda: " ".join(os.listdir("/proc/self/fd"))).split()
    assert len(held) <= 5  # standard streams, its answer, and the listing itself
    os.close(reader)
    os.close(writer)
