"""`cancel`: end another command, whether it waits or runs."""

from __future__ import annotations

import msgspec

from agent.verb import Context

REPEATABLE = True
CONCURRENCY = 8


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`id`: of the command to be ended."""

    id: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the other command.

    Attributes:
        id: of the other command.
        state: "cancelled", or another end that it reached first; "running" when it takes its time to end.
    """

    id: str
    state: str


def run(arguments: Arguments, context: Context) -> Result:
    """Carry it out.

    Raises:
        VerbFailed: the other command is not known, or is not running any more.
    """
    return Result(id=arguments.id, state=context.cancel_command(arguments.id))
