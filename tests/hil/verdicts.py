"""PASS, FAIL, MISS or SKIP for each promise, from what was executed. Pure: data in, data out.

The words are KernelCI's (kcidb-io, schema 5): FAIL, the code is faulty; MISS, the test was promised and never ran;
SKIP, it does not apply to this board. A promise that could not be put to the test is never a SKIP.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterator

import msgspec

from hil.expectation import Expectation, Expected, ExpectedRun, Promise
from probes.contract import CapabilityReport, DeviceKind, Finding, Status
from runners.contract import Placement

DEVICE = "device"  # subject of the verdict on the board itself
EXIT_NOT_ON_ACCELERATOR = 3
WITNESSES = 2  # of the three kinds, at least, for what an accelerator is said to have done


class Result(enum.Enum):
    """KernelCI's words, worst first."""

    FAIL = "FAIL"
    MISS = "MISS"
    PASS = "PASS"
    SKIP = "SKIP"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one promise.

    Attributes:
        subject: a probe, a "<runtime>/<backend>", "run:<name>", or "device".
        device: what answered.
        duration_s: seconds; None when nothing was executed.
    """

    subject: str
    result: Result
    reason: str
    device: str = ""
    duration_s: float | None = None


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended, or was ended.

    Attributes:
        timed_out: it was killed at its limit.
    """

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool = False


class RunOutcome(msgspec.Struct, frozen=True):
    """The part of `edge-agent run --json` that a verdict rests on."""

    placement: Placement
    text: str = ""
    errors_count: int = 0


class ImagesOutcome(msgspec.Struct, frozen=True):
    """The last line of `edge-agent run --json` over images."""

    outcome: RunOutcome


def verdicts(expectation: Expectation, report: CapabilityReport | None, trouble: str = "") -> list[Verdict]:
    """Compare a survey with what was promised.

    Args:
        report: None when there was no survey.
        trouble: why not.

    Returns: one per promise, in the file's order, then one per finding that the file does not name.
    """
    found = [judge_device(expectation, report, trouble)] if expectation.device else []
    for subject, expected in expectation.backends.items():
        finding = report.finding(subject) if report else None
        if finding is None:
            why = f"no survey: {trouble}" if report is None else "the survey did not run this check"
            found.append(Verdict(subject=subject, result=Result.MISS, reason=why))
        else:
            found.append(judge(expected, finding))
    return found + list(unnamed(expectation, report))


def unnamed(expectation: Expectation, report: CapabilityReport | None) -> Iterator[Verdict]:
    """A SKIP for each finding without a promise, so that a new backend does not go unnoticed."""
    for finding in report.findings if report else ():
        if finding.subject not in expectation.backends:
            reason = f"{finding.status.value}, but {expectation.board}.toml promises nothing about it"
            yield verdict(finding, Result.SKIP, reason)


def judge_device(expectation: Expectation, report: CapabilityReport | None, trouble: str) -> Verdict:
    """Whether the board in this place is the one that was promised."""
    if report is None:
        return Verdict(subject=DEVICE, result=Result.MISS, reason=f"no survey: {trouble}")
    for field, pattern in expectation.device.items():
        value = str(getattr(report.device, field))
        if not fnmatch.fnmatchcase(value, pattern):
            reason = f"{field} is {value!r}, not {pattern!r}: another board, or another release on it"
            return Verdict(subject=DEVICE, result=Result.FAIL, reason=reason)
    return Verdict(subject=DEVICE, result=Result.PASS, reason=expectation.title, device=report.device.model)


def judge(expected: Expected, finding: Finding) -> Verdict:
    """One promise against its finding."""
    promise, status = expected.expect, finding.status
    told = finding.reason + (f" → {finding.remedy}" if finding.remedy else "")
    if status is Status.WORKS:
        if promise is Promise.ABSENT:
            return verdict(finding, Result.FAIL, "works, though promised absent: the expectation file is out of date")
        return judge_evidence(expected, finding)
    if promise is Promise.WORKS:
        if status is Status.UNKNOWN:
            return verdict(finding, Result.MISS, f"could not be tried: {told}")
        return verdict(finding, Result.FAIL, f"promised to work, but is {status.value}: {told}")
    if status is Status.BROKEN:
        return verdict(finding, Result.FAIL, f"{promise.value} was promised, but it is there and broken: {told}")
    return verdict(finding, Result.SKIP, f"{expected.because or promise.value} ({finding.reason})")


def judge_evidence(expected: Expected, finding: Finding) -> Verdict:
    """Whether what was executed shows what the finding says: the right answer, on the promised kind of device."""
    for evidence in finding.evidence:
        if evidence.expected and evidence.value != evidence.expected:
            reason = f"said to work, but {evidence.executed} answered {evidence.value!r}, not {evidence.expected!r}"
            return verdict(finding, Result.FAIL, reason)
    wanted, proven = expected.device_kind, finding.device_kind
    if wanted in (None, proven) and (doubt := judge_witnesses(finding)):
        return verdict(finding, Result.FAIL, doubt)
    if wanted is None:
        return verdict(finding, Result.PASS, finding.version or "works")
    if proven is DeviceKind.UNKNOWN:
        return verdict(finding, Result.FAIL, "said to work, but nothing was executed on a named device")
    if proven is wanted:
        return verdict(finding, Result.PASS, f"executed on the {proven.value}")
    if wanted is DeviceKind.CPU:
        reason = f"executed on a {proven.value}, though only the cpu was promised: the expectation file is out of date"
    else:
        reason = f"promised on the {wanted.value}, but the evidence is from the {proven.value}"
    return verdict(finding, Result.FAIL, reason)


def judge_witnesses(finding: Finding) -> str:
    """Why an accelerator's work is to be doubted: fewer than two kinds of witnesses spoke; "" when it need not be."""
    if finding.device_kind not in (DeviceKind.GPU, DeviceKind.NPU):
        return ""
    spoke = {said.kind for said in finding.witnesses if said.spoke}
    if len(spoke) >= WITNESSES:
        return ""
    who = f"only {', '.join(kind.value for kind in spoke)}" if spoke else "nobody"
    silent = "; ".join(f"{said.source}: {said.text}" for said in finding.witnesses if not said.spoke)
    return f"said to work on the {finding.device_kind.value}, but {who} testifies ({silent or 'no other was asked'})"


def verdict(finding: Finding, result: Result, reason: str) -> Verdict:
    """A verdict on a finding."""
    device = next((evidence.device for evidence in finding.evidence if evidence.device), "")
    return Verdict(
        subject=finding.subject, result=result, reason=reason, device=device, duration_s=finding.duration_s or None
    )


def judge_run(expected: ExpectedRun, done: Completed | None, trouble: str = "") -> Verdict:
    """A promised run against what the command printed.

    Args:
        done: None when it could not be started.
        trouble: why not.
    """
    subject = f"run:{expected.name}"
    if done is None:
        return Verdict(subject=subject, result=Result.MISS, reason=trouble)
    result, reason, device = judge_completed(expected, done)
    return Verdict(subject=subject, result=result, reason=reason, device=device, duration_s=done.duration_s)


def judge_completed(expected: ExpectedRun, done: Completed) -> tuple[Result, str, str]:
    """Result, reason and devices of a run that was started."""
    said = done.stderr.strip().partition("\n")[0] or "it said nothing"
    if done.timed_out:
        return Result.FAIL, f"no end within {done.duration_s:.0f} s", ""
    if done.status == EXIT_NOT_ON_ACCELERATOR:
        return Result.FAIL, f"not on the accelerator that was demanded: {said}", ""
    if done.status:
        return Result.FAIL, f"exit status {done.status}: {said}", ""
    try:
        outcome, answer = read_outcome(expected, done.stdout)
    except msgspec.MsgspecError as error:
        return Result.FAIL, f"exit status 0, but no outcome: {error}", ""
    parts = ", ".join(f"{part.device} ({part.device_kind.value})" for part in outcome.placement.parts)
    if not outcome.placement.all_on(expected.device_kind):
        wanted = expected.device_kind.value
        return Result.FAIL, f"promised wholly on the {wanted}, but proven is: {parts or 'nothing'}", parts
    if outcome.errors_count:
        return Result.FAIL, f"{outcome.errors_count} inputs failed: {answer.strip()}", parts
    if expected.answer not in answer:
        return Result.FAIL, f"{expected.answer!r} is not in the answer {answer.strip()[:200]!r}", parts
    return Result.PASS, f"answered rightly; {outcome.placement.source}", parts


def read_outcome(expected: ExpectedRun, stdout: str) -> tuple[RunOutcome, str]:
    """The outcome, and the text that the answer must be in.

    Raises:
        msgspec.MsgspecError: what was printed is no outcome.
    """
    if not expected.input_files:
        outcome = msgspec.json.decode(stdout, type=RunOutcome)
        return outcome, outcome.text
    *results, last = stdout.strip().split("\n")
    return msgspec.json.decode(last, type=ImagesOutcome).outcome, "\n".join(results)
