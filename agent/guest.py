"""A good guest: checks that execute something wait while a pipeline runs on this device, whoever started it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

WORKER = (b"-m", b"runners.worker")  # how `runners.worker` starts the process of a loaded model
TURN_S = 0.5
TELL_S = 30.0  # between two words to whoever waits


def pipelines() -> list[int]:
    """The processes that have a model loaded, of any user. Source: proc(5), cmdline: everybody may read it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if tuple(file.read(4096).split(b"\0")[1:3]) == WORKER:
                found.append(int(name))
    return sorted(found)


def wait_for_idle(tell: Callable[[str], None]) -> None:
    """Return when no pipeline runs; Ctrl-C ends the wait.

    Args:
        tell: called with a sentence at first, and now and then.
    """
    told_s = -TELL_S
    while running := pipelines():
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            tell(waiting(running))
        time.sleep(TURN_S)


def waiting(running: list[int]) -> str:
    """The sentence for somebody who waits."""
    who = ", ".join(map(str, running[:4])) + (" …" if len(running) > 4 else "")
    return f"a pipeline runs (process {who}): checks that execute something wait for it to end; --now does not wait"
