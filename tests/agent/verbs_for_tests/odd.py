"""`odd`: ends in ways in which no verb should."""

from __future__ import annotations

import sys

import msgspec

from agent.verb import Context, VerbFailed

REPEATABLE = True
CONCURRENCY = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    how: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    text: str


def run(arguments: Arguments, context: Context) -> Result:
    if arguments.how == "exit":
        sys.exit(3)
    if arguments.how == "fail":
        raise VerbFailed("odd", "no such file: \udcff.gguf")
    return Result(text="\udcff")
