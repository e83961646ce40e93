"""sd_notify(3) in a few lines: tells systemd that the service is ready, alive, or what it does."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(*lines: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send assignments such as "READY=1".

    Returns: whether there is a service manager to take them.
    """
    address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
    return True


def watchdog_s(environ: Mapping[str, str] | None = None) -> float | None:
    """The time within which systemd wants to hear from us, in seconds; None without a watchdog."""
    environ = os.environ if environ is None else environ
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
