"""The device's clocks: a wall clock that may be wrong, and one that never jumps."""

from __future__ import annotations

import time

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def wall_text(seconds: float | None = None) -> str:
    """ISO 8601 in UTC with milliseconds; of now, or of `seconds` since 1970."""
    seconds = time.time() if seconds is None else seconds
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def wall_seconds(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 text; None when it is none. Without an offset it is UTC.

    Python 3.10 reads fractions of 3 or 6 digits only; nanoseconds, as Go and Rust print them, are cut to micro.
    """
    import datetime
    import re

    text = re.sub(r"[.,](\d+)", lambda found: f".{found[1][:6]:0<6}", text.strip(), count=1)
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp()


def monotonic_s() -> float:
    """Seconds that never jump, suspend included: `CLOCK_BOOTTIME`. Only comparable within one boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's name of this boot; "unknown" where /proc does not say."""
    try:
        with open(BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
