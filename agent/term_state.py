"""The state of each term of the map on this device, told by the findings of a report."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.diff import kind_text, rank
from probes.contract import CapabilityReport, Device, DeviceKind, Finding, Status
from probes.stack import Stack, Term

NOT_CHECKED = "not checked"
NO_CHECK = "this edge-agent has no check for it"
ORDER = (Status.WORKS, Status.BROKEN, Status.UNKNOWN, Status.ABSENT)  # of a runner's backends, the first that is there


class TermState(msgspec.Struct, frozen=True, kw_only=True):
    """How a term stands here.

    Attributes:
        state: "works", "broken", "absent", "unknown" or "not checked".
        device_kind: "gpu", "cpu" or "npu" when something was executed there with the right answer; else "".
        reason: why, or with which devices; "" only when it works and there is nothing to add.
        remedy: what to do; "" when nothing is known, or nothing is needed.
        subjects: the findings that told it.
    """

    term: str
    state: str
    device_kind: str = ""
    reason: str = ""
    remedy: str = ""
    subjects: tuple[str, ...] = ()


def subjects_of(terms: Iterable[Term], known: Iterable[str]) -> list[str]:
    """The checks that tell the state of these terms, each once, in the order of `known`."""
    named = {subject for term in terms for subject in term.subjects}
    return [subject for subject in known if subject in named or subject.partition("/")[0] in named]


def states(stack: Stack, report: CapabilityReport) -> dict[str, TermState]:
    """Every term's state by its name."""
    return {term.term: state_of(term, report) for term in stack.terms}


def state_of(term: Term, report: CapabilityReport | None) -> TermState:
    """One term's state; `report` may be None for a term that no check tells."""
    if not term.subjects or report is None:
        return TermState(term=term.term, state=NOT_CHECKED, reason=NO_CHECK)
    found = [report.finding(subject) for subject in subjects_of([term], [f.subject for f in report.findings])]
    findings = sorted((f for f in found if f), key=lambda finding: importance(term, finding))
    if not findings:
        return TermState(
            term=term.term, state=NOT_CHECKED, reason=f"the report has no finding about {', '.join(term.subjects)}"
        )
    if term.only_if_fact:
        return by_fact(term, findings[0])
    if term.only_if_named:
        return by_name(term, findings[0])
    return told(term, findings)


def importance(term: Term, finding: Finding) -> tuple[int, int, int]:
    """Sorts the finding that decides to the front."""
    if finding.subject in term.subjects and "/" not in finding.subject:
        return term.subjects.index(finding.subject), 0, 0
    return 0, ORDER.index(finding.status), -rank(finding)


def told(term: Term, findings: list[Finding]) -> TermState:
    """The state of the first finding; the others are named when they are not as good."""
    first, *others = findings
    reason = summary(first) if len(findings) == 1 else f"{first.subject}: {summary(first) or first.status.value}"
    worse = [f"{f.subject} is {f.status.value}: {f.reason}" for f in others if f.status is not Status.WORKS]
    also = [f"{f.subject} works{kind_text(f)}" for f in others if f.status is Status.WORKS]
    return TermState(
        term=term.term,
        state=first.status.value,
        device_kind=kind(first),
        reason="; ".join(part for part in (reason, *also, *worse) if part),
        remedy=first.remedy or next((f.remedy for f in others if f.remedy and first.status is not Status.WORKS), ""),
        subjects=tuple(finding.subject for finding in findings),
    )


def by_fact(term: Term, finding: Finding) -> TermState:
    """The finding's state when it is about this term; ABSENT when it is about something else."""
    fact = finding.facts.get(term.only_if_fact)
    if finding.status is not Status.WORKS or fact is True:
        return told(term, [finding])
    status = Status.UNKNOWN if fact is None else Status.ABSENT
    what = finding.facts.get("model") or finding.facts.get("architecture") or "this device"
    reason = f"{what} is no Jetson" if fact is False else f"{finding.subject} does not tell {term.only_if_fact}"
    return TermState(term=term.term, state=status.value, reason=reason, subjects=(finding.subject,))


def by_name(term: Term, finding: Finding) -> TermState:
    """The state of those devices of the finding that bear the name; without one it is not there."""
    ours = [device for device in finding.devices if is_named(device, term.only_if_named)]
    if not ours:
        return unnamed(term, finding)
    names = {device.name for device in ours}
    executed = [evidence for evidence in finding.evidence if evidence.device in names and evidence.expected]
    right = [evidence for evidence in executed if evidence.is_right]
    status = (Status.WORKS if right else Status.BROKEN) if executed else Status.UNKNOWN
    kinds = [evidence.device_kind for evidence in right if evidence.device_kind is not DeviceKind.UNKNOWN]
    listed = ", ".join(f"{device.name} ({device.driver or device.kind.value})" for device in ours)
    trouble = "" if status is Status.WORKS else finding.reason
    return TermState(
        term=term.term,
        state=status.value,
        device_kind=kinds[0].value if kinds else "",
        reason="; ".join(part for part in (listed, trouble) if part),
        remedy="" if status is Status.WORKS else finding.remedy,
        subjects=(finding.subject,),
    )


def unnamed(term: Term, finding: Finding) -> TermState:
    """No device of the finding is of this kind."""
    if finding.devices:
        names = ", ".join(f"{device.name} ({device.driver or device.kind.value})" for device in finding.devices)
        reason = f"{finding.subject} lists no such device, but {names}"
        return TermState(term=term.term, state=Status.ABSENT.value, reason=reason, subjects=(finding.subject,))
    status = Status.ABSENT if finding.status is Status.ABSENT else Status.UNKNOWN
    reason = f"{finding.subject} lists no device: {finding.reason or finding.status.value}"
    return TermState(
        term=term.term, state=status.value, reason=reason, remedy=finding.remedy, subjects=(finding.subject,)
    )


def is_named(device: Device, names: tuple[str, ...]) -> bool:
    """Whether the device's name, driver or API version has one of the names, in any case."""
    text = f"{device.name}\n{device.driver}\n{device.api_version}".lower()
    return any(name.lower() in text for name in names)


def summary(finding: Finding) -> str:
    """The reason, or the devices with which it works."""
    if finding.reason:
        return finding.reason
    return ", ".join(finding.device_names) or finding.version


def kind(finding: Finding) -> str:
    """The device kind as text: "gpu"; "" when nothing was executed with the right answer."""
    return "" if finding.device_kind is DeviceKind.UNKNOWN else finding.device_kind.value
