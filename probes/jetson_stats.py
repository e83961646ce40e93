"""jetson-stats: its service is asked once for what it reads, in this process alone: importing jtop changes a process.

It sets the start method of `multiprocessing` and starts a thread that loads large libraries. Its zeros may mean
"unknown" (load and clocks on Thor), so nothing is taken over from it; that it answers, and its versions, is all.

Source: jetson-stats 7.2.2 (AGPL-3.0: it is talked to, nothing of it is copied).
"""

from __future__ import annotations

from probes.contract import Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 7
DEADLINE_S = 15.0
SOCKET = "/run/jtop.sock"
INSTALL = "sudo pip3 install -U jetson-stats (Ubuntu 24.04: in a virtual environment), then log in again or reboot"
JOIN = "add the user to the group jtop and log in again"


def check(host: Host) -> Finding:
    """Connect, and read one round of values.

    Returns: WORKS when the service answered; ABSENT without a service; UNKNOWN without the right to ask it; BROKEN
        when it does not answer, with its words.
    """

    def told(status: Status, reason: str = "", remedy: str = "", version: str = "", value: str = "") -> Finding:
        evidence = (Evidence(executed="jtop: one round of values", value=value),) if value else ()
        facts: dict[str, Fact] = {"socket": host.exists(SOCKET)}
        return Finding(
            subject="jetson_stats",
            layer=LAYER,
            status=status,
            reason=reason,
            remedy=remedy,
            version=version,
            facts=facts,
            evidence=evidence,
        )

    if not host.exists(SOCKET):
        return told(
            Status.ABSENT, f"jetson-stats does not run: there is no {SOCKET}; values are read directly", INSTALL
        )
    if not host.executes:
        return told(Status.UNKNOWN, host.not_executed)
    if not host.readable(SOCKET):
        return told(Status.UNKNOWN, f"this user may not ask {SOCKET}", JOIN)
    try:
        import jtop
    except ImportError as error:
        return told(Status.UNKNOWN, f"the service runs, but Python can't import jtop: {error}", INSTALL)
    try:
        with jtop.jtop(interval=0.5) as client:
            stats = dict(client.stats) if client.ok() else {}
    except Exception as error:  # noqa: BLE001 - besides its own JtopException it lets queue.Empty and OSError out
        words = " ".join(str(error).split()) or type(error).__name__
        return told(Status.BROKEN, f"jetson-stats does not answer: {words}", "sudo systemctl restart jtop.service")
    version = str(getattr(jtop, "__version__", ""))
    value = ", ".join(f"{key}={stats[key]}" for key in list(stats)[:12])
    if not stats:
        return told(Status.BROKEN, "jetson-stats answered without any value", "sudo systemctl restart jtop.service")
    return told(Status.WORKS, version=version, value=value)
