"""`probe`: survey the device by execution, and publish its capabilities."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.guest import pipelines, waiting
from agent.verb import Context

REPEATABLE = True
CONCURRENCY = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be asked.

    Attributes:
        subjects: only these checks, by name; empty for all. A partial survey is not published.
        publish: publish the report even if nothing has changed.
        now: execute checks while a pipeline runs, too; otherwise they wait for its end.
        renew: execute all checks; False keeps findings as long as what they rest on has not changed.
    """

    subjects: tuple[str, ...] = ()
    publish: bool = True
    now: bool = False
    renew: bool = True


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        fingerprint: of the report; changes only when a capability does.
        findings: for each check its subject, status, reason and remedy; the whole report is on `capabilities`.
    """

    fingerprint: str
    findings: tuple[Any, ...]


class _Finding(msgspec.Struct, frozen=True):
    subject: str
    layer: int
    status: str
    reason: str = ""
    remedy: str = ""
    version: str = ""


class _Report(msgspec.Struct, frozen=True):
    fingerprint: str
    findings: tuple[_Finding, ...]


def run(arguments: Arguments, context: Context) -> Result:
    """Carry it out.

    Raises:
        VerbFailed: the survey failed, took too long or was cancelled.
    """
    if not arguments.now and (running := pipelines()):
        context.progress(waiting(running))
    data = context.survey.take(
        arguments.subjects,
        context.cancelled,
        context.seconds_left(),
        publish=arguments.publish,
        now=arguments.now,
        renew=arguments.renew,
    )
    report = msgspec.json.decode(data, type=_Report)
    return Result(fingerprint=report.fingerprint, findings=report.findings)
