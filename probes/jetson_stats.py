"""jetson-stats: its service is asked once for what it reads, in this process alone: importing jtop changes a process.

It sets the start method of `multiprocessing` and starts a thread that loads large libraries. Its zeros may mean
"unknown" (load and clocks on Thor), so nothing is taken over from it; that it answers, and its versions, is all.

Source: jetson-stats 7.2.2 (AGPL-3.0: it is talked to, nothing of it is copied).
"""

from __future__ import annotations

import functools
from typing import Any

from probes import saxpy
from probes.contract import Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 7
DEADLINE_S = 15.0
SOCKET = "/run/jtop.sock"
INSTALL = "sudo pip3 install -U jetson-stats (Ubuntu 24.04: in a virtual environment), then log in again or reboot"
RESTART = "sudo systemctl restart jtop.service"
JOIN = "add the user to the group jtop and log in again"
_finding = functools.partial(saxpy.finding, "jetson_stats", LAYER)


def check(host: Host) -> Finding:
    """Connect, and read one round of values.

    Returns: WORKS when the service answered; ABSENT without a service; UNKNOWN without the right to ask it, and for a
        recorded device; BROKEN when it does not answer, with its words.
    """
    facts: dict[str, Fact] = {"socket": host.exists(SOCKET)}
    if host.recorded:  # a recording keeps no sockets: that none is there says nothing
        return _finding(Status.UNKNOWN, host.not_executed, facts={"socket": facts["socket"] or None})
    if not facts["socket"]:
        reason = f"jetson-stats does not run: there is no {SOCKET}; values are read directly"
        return _finding(Status.ABSENT, reason, INSTALL, facts)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    if not host.readable(SOCKET):
        return _finding(Status.UNKNOWN, f"this user may not ask {SOCKET}", JOIN, facts)
    try:
        import jtop
    except ImportError as error:
        reason = f"the service runs, but Python can't import jtop: {error}"
        return _finding(Status.UNKNOWN, reason, INSTALL, facts)
    return _ask(jtop, facts)


def _ask(jtop: Any, facts: dict[str, Fact]) -> Finding:
    try:
        with jtop.jtop(interval=0.5) as client:
            stats = dict(client.stats) if client.ok() else {}
    except Exception as error:  # noqa: BLE001 - besides its own JtopException it lets queue.Empty and OSError out
        words = " ".join(str(error).split()) or type(error).__name__
        return _finding(Status.BROKEN, f"jetson-stats does not answer: {words}", RESTART, facts)
    if not stats:
        return _finding(Status.BROKEN, "jetson-stats answered without any value", RESTART, facts)
    value = ", ".join(f"{key}={stats[key]}" for key in list(stats)[:12])
    evidence = Evidence(executed="jtop: one round of values", value=value)
    version = str(getattr(jtop, "__version__", ""))
    return _finding(Status.WORKS, "", facts=facts, version=version, evidence=(evidence,))
