"""Whether a command comes too late, on a device whose clock may be wrong."""

from __future__ import annotations

import time

from agent.clock import wall_seconds
from agent.wire import Command
from probes import wall_clock

CLOCK_SLACK_S = 300.0
TIME_LIMIT = 64  # characters kept of a time


def unreadable_time(command: Command) -> str:
    """Why its expiry can't be told, or "": a command that was to be void by a certain time is not to live for ever."""
    if not command.expires_at or wall_seconds(command.expires_at) is not None:
        return ""
    return f"expires_at {command.expires_at[:TIME_LIMIT]!r} is no time in ISO 8601"


def is_late(command: Command) -> str:
    """Why a command must not start any more, or ""; a clock that is surely wrong expires nothing."""
    expires_s = wall_seconds(command.expires_at) if command.expires_at else None
    if expires_s is None:
        return ""
    issued_s = wall_seconds(command.issued_at) if command.issued_at else None
    now_s = time.time()
    if wall_clock.by_files() is False or (issued_s is not None and now_s < issued_s - CLOCK_SLACK_S):
        return ""
    return f"it expired at {command.expires_at}" if now_s > expires_s else ""
