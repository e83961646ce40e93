"""Limits set on this process that make a driver fail without saying so: it crashes, or lists no device.

Source: setrlimit(2), RLIMIT_AS (`ulimit -v`, systemd's LimitAS=); children inherit it.
"""

from __future__ import annotations

import resource

NARROW_BYTES = 4 << 30  # drivers map gigabytes of addresses; a generous limit explains nothing
REMEDY = "raise the limit: ulimit -v unlimited, or LimitAS=infinity in the service"


def narrow_address_space() -> str:
    """A half sentence about a limit on addresses that may explain a failure; "" when there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft >= NARROW_BYTES:
        return ""
    return f"this process may have {soft >> 20} MiB of addresses only (ulimit -v): a driver may have run out of them"
