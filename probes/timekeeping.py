"""Timekeeping: whether the wall clock is synchronised, was set at all, and has a hardware clock behind it.

A Jetson without a battery starts in 1970 or at its image's date: certificates are then "not yet valid", and the times
of reports are wrong.

Source: adjtimex(2): STA_UNSYNC; systemd-timesyncd.service(8); Linux Documentation/admin-guide/rtc.rst.
"""

from __future__ import annotations

import ctypes
import time

from probes.contract import Fact, Finding, Status
from probes.host import Host
from probes.wall_clock import EARLIEST_PLAUSIBLE_S, TIMESYNCD_STATE

LAYER = 1
STA_UNSYNC = 0x0040
SERVICES = ("systemd-timesyncd", "chronyd", "ntpd", "ntpsec", "openntpd", "ptp4l")
REMEDY = (
    "sudo timedatectl set-ntp true; and give the network's NTP server in /etc/systemd/timesyncd.conf where it has one"
)


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


def kernel_synchronised() -> bool | None:
    """What the kernel says, whichever program disciplines its clock; None when it does not answer."""
    answer = Timex()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(answer)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not answer.status & STA_UNSYNC


def running(host: Host) -> list[str]:
    """Programs that set the clock and run now, by their names in /proc."""
    names = {host.line(path) for path in host.glob("/proc/[0-9]*/comm")}
    return [service for service in SERVICES if service[:15] in names]


def check(host: Host) -> Finding:
    """Ask the kernel, timesyncd and the hardware clock.

    Returns: WORKS, with a reason when the wall clock can't be believed; UNKNOWN on a recorded device.
    """
    clocks = host.glob("/sys/class/rtc/rtc*")
    facts: dict[str, Fact] = {
        "hardware_clocks": [f"{path.rpartition('/')[2]}: {host.line(f'{path}/name') or 'no name'}" for path in clocks],
        "clock_services": [*running(host)],
        "time_zone": host.line("/etc/timezone"),
    }
    if host.recorded:
        return Finding(subject="timekeeping", layer=LAYER, status=Status.UNKNOWN, reason=host.not_executed, facts=facts)
    by_timesyncd = True if host.exists(f"{TIMESYNCD_STATE}/synchronized") else None
    synchronised = kernel_synchronised() or by_timesyncd
    if host.wall_s() < EARLIEST_PLAUSIBLE_S:
        year = time.gmtime(host.wall_s()).tm_year
        synchronised, reason = (
            False,
            f"the wall clock was never set: it says {year}; certificates are not yet valid then",
        )
    elif synchronised:
        reason = ""
    else:
        who = ", ".join(running(host)) or "no program that would"
        reason = f"nobody says that the wall clock is synchronised ({who} runs): times in reports may be wrong"
        synchronised = None if host.in_container() else False
    facts["clock_synchronised"] = synchronised
    return Finding(
        subject="timekeeping",
        layer=LAYER,
        status=Status.WORKS,
        reason=reason,
        remedy=REMEDY if reason else "",
        facts=facts,
    )
