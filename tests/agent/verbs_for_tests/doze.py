"""`doze`: like `nap`, but may be repeated: sleeps and keeps a diary of its starts, so that a test can count them."""

from __future__ import annotations

import time

import msgspec

from agent.verb import Context, VerbFailed

REPEATABLE = True
CONCURRENCY = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    diary: str
    seconds: float = 0.0
    words: tuple[str, ...] = ()
    deaf: bool = False
    events: int = 0
    late_events: int = 0
    bug: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    slept_s: float


def run(arguments: Arguments, context: Context) -> Result:
    with open(arguments.diary, "a", encoding="utf-8") as diary:
        diary.write(f"{context.command_id}\n")
    if arguments.bug:
        raise ZeroDivisionError("a bug in a verb")
    for word in arguments.words:
        context.stream(word)
    for number in range(arguments.events):
        context.event("naps", {"number": number})
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        if context.cancelled() and not arguments.deaf:
            raise VerbFailed("cancelled", "woken up")
    for number in range(arguments.late_events):
        context.event("naps", {"number": number})
    return Result(slept_s=arguments.seconds)
