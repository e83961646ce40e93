"""`plan`: which road a model should take on this device, and why every other one is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.verb import Context

REPEATABLE = True
CONCURRENCY = 2


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked.

    Attributes:
        model: a file in the device's model folder.
        runtime: only this one; "" for all.
        context_tokens: context to reserve (LLM only).
    """

    model: str
    runtime: str = ""
    context_tokens: int | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: what the file is; `plan`: accepted roads in order, and refused ones with reasons."""

    model: Any
    plan: Any


def run(arguments: Arguments, context: Context) -> Result:
    """Carry it out.

    Raises:
        ModelRejected: the file is not there, outside of the folder, or no model.
        VerbFailed: a survey was needed first, and failed.
    """
    from agent.running import file_in_folder
    from runners.inspect import inspect
    from runners.route import plan

    path = file_in_folder(context.config.agent.models_dir, arguments.model)
    model = inspect(str(path))
    report = context.survey.report(context.cancelled, context.seconds_left())
    return Result(
        model=model,
        plan=plan(
            model,
            report,
            runtime=arguments.runtime,
            context_tokens=arguments.context_tokens,
            allow_software_devices=context.config.routes.allow_software_devices,
        ),
    )
