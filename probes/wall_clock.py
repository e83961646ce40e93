"""Whether the wall clock can be believed: the one place that tells, for probes and the agent.

Source: systemd-timesyncd.service(8); adjtimex(2): STA_UNSYNC.
"""

from __future__ import annotations

import os
import time

EARLIEST_PLAUSIBLE_S = 1_735_689_600  # 2025-01-01: before this software was written, so the clock is not set
TIMESYNCD_STATE = "/run/systemd/timesync"  # `synchronized` is touched there at each synchronisation
STA_UNSYNC = 0x0040


def was_set(now_s: float) -> bool:
    """Whether a wall clock that says `now_s`, seconds since 1970, can ever have been set."""
    return now_s >= EARLIEST_PLAUSIBLE_S


def by_files(now_s: float | None = None, state: str = TIMESYNCD_STATE) -> bool | None:
    """Whether the clock follows a time server, without native code; None when nobody says.

    Args:
        now_s: what the wall clock says; None to look at it.
        state: the folder of systemd-timesyncd.
    """
    if not was_set(time.time() if now_s is None else now_s):
        return False
    if os.path.exists(f"{state}/synchronized"):
        return True
    return False if os.path.isdir(state) else None


def by_kernel() -> bool | None:
    """What the kernel says, whichever program disciplines its clock; None when it does not answer."""
    import ctypes  # not in the daemon, which takes `by_files`

    class Timex(ctypes.Structure):
        """The head of struct timex, as far as `status`; the rest is room for the kernel's answer."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    answer = Timex()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(answer)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not answer.status & STA_UNSYNC


def synchronised(in_container: bool, now_s: float | None = None) -> bool | None:
    """Whether the wall clock follows a time server, by whoever says so; None when nobody does.

    Args:
        in_container: the host may keep the clock by a program that does not tell the kernel.
        now_s: what the wall clock says; None to look at it.
    """
    now_s = time.time() if now_s is None else now_s
    if not was_set(now_s):
        return False
    told = (by_files(now_s), by_kernel())
    if True in told:
        return True
    return False if told[0] is False or (told[1] is False and not in_container) else None
