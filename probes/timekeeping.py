"""Timekeeping: whether the wall clock is synchronised, was set at all, and has a hardware clock behind it.

A Jetson without a battery starts in 1970 or at its image's date: certificates are then "not yet valid", and the times
of reports are wrong.

Source: Linux Documentation/admin-guide/rtc.rst; of the wall clock see `wall_clock`.
"""

from __future__ import annotations

import time

from probes import wall_clock
from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 1
SERVICES = ("systemd-timesyncd", "chronyd", "ntpd", "ntpsec", "openntpd", "ptp4l")
REMEDY = (
    "sudo timedatectl set-ntp true; and give the network's NTP server in /etc/systemd/timesyncd.conf where it has one"
)


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
    synchronised, reason = wall_clock.synchronised(host.in_container(), host.wall_s()), ""
    if not wall_clock.was_set(host.wall_s()):
        year = time.gmtime(host.wall_s()).tm_year
        reason = f"the wall clock was never set: it says {year}; certificates are not yet valid then"
    elif not synchronised:
        who = ", ".join(running(host)) or "no program that would"
        reason = f"nobody says that the wall clock is synchronised ({who} runs): times in reports may be wrong"
    facts["clock_synchronised"] = synchronised
    return Finding(
        subject="timekeeping",
        layer=LAYER,
        status=Status.WORKS,
        reason=reason,
        remedy=REMEDY if reason else "",
        facts=facts,
    )
