"""Does one dangerous thing in a forked copy of this process.

A driver that crashes or hangs while it is loaded costs the copy, and the check goes on to say which driver it was.
Only for a check's own child process before it has threads: a fork copies just the calling thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from probes.ending import signal_name

DEADLINE_S = 5.0
ANSWER_BYTES = 4096
DESCRIPTORS = 65536  # the limit may be a billion, and each is one call
REAP_S = 0.5  # a process that hangs in the kernel does not even die: it is left behind, not waited for


class Died(Exception):
    """The copy ended without an answer; the message says how."""


def apart(work: Callable[[], str], deadline_s: float = DEADLINE_S) -> str:
    """What `work` returns when a copy of this process calls it; at most `ANSWER_BYTES` as UTF-8.

    Raises:
        Died: it crashed, ended, or did not come back within `deadline_s` seconds.
        OSError: no process could be made.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _copy(work, theirs)
    os.close(theirs)
    try:
        answer, in_time = _read(ours, deadline_s)
    finally:
        os.close(ours)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = _reap(pid)
    if answer:
        return answer[1:].decode("utf-8", "replace")
    if not in_time:
        raise Died(
            f"did not come back within {deadline_s:g} s" + ("" if ended is not None else ", nor could be killed")
        )
    raise Died(_words(ended))


def _copy(work: Callable[[], str], fd: int) -> None:
    """In the copy: answer with a sign of life and the text, and end without any exit handler."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # one that hangs for ever must not keep our reader's pipes open
            os.dup2(null, standard)
        os.closerange(3, fd)
        os.closerange(fd + 1, min(os.sysconf("SC_OPEN_MAX"), DESCRIPTORS))
        os.write(fd, b"+" + work().encode("utf-8", "replace")[: ANSWER_BYTES - 1])
    finally:
        os._exit(0)


def _read(fd: int, deadline_s: float) -> tuple[bytes, bool]:
    """What comes until the other end closes, and whether it came in time."""
    answer, end = b"", time.monotonic() + deadline_s
    while (left := end - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            break
        part = os.read(fd, ANSWER_BYTES)
        if not part:
            return answer, True
        answer += part
    return answer, bool(answer)


def _reap(pid: int) -> int | None:
    """Its wait status, or None when it does not end."""
    end = time.monotonic() + REAP_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    return None


def _words(status: int | None) -> str:
    if status is not None and os.WIFSIGNALED(status):
        return f"crashed ({signal_name(os.WTERMSIG(status))})"
    return "ended the process"
