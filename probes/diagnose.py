"""Explains a failed check from a table of known symptoms: `probes/diagnoses.toml`. A newcomer adds a row, not code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from probes.contract import Fact, Finding, Status

TABLE = Path(__file__).parent / "diagnoses.toml"
FACT_PROBES = ("hardware", "jetpack")  # whose facts a row's conditions are about


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table.

    Attributes:
        symptom: regular expression, searched in the reason and in each piece of evidence.
        unless: regular expression, searched in the reason: with it the check has told the cause itself.
        subjects: regular expression for the subject of the finding ("vulkan", "onnxruntime/cuda"), whole; "" for any.
        facts: conditions on what is known of the device: a text is a regular expression for the whole fact, another
            value must be equal. A fact that is not known fulfils no condition.
        cause: one sentence on why.
        remedy: what to do: the exact package, group, setting.
        source: where the knowledge is from.
    """

    symptom: str
    unless: str = ""
    subjects: str = ""
    facts: Mapping[str, str | bool | int] = {}
    cause: str
    remedy: str
    source: str

    def fits(self, finding: Finding, facts: Mapping[str, Fact]) -> bool:
        """Whether this row explains the finding on a device with these facts."""
        if self.subjects and not re.fullmatch(self.subjects, finding.subject):
            return False
        if self.unless and re.search(self.unless, finding.reason):
            return False
        if not all(_holds(wanted, facts.get(name)) for name, wanted in self.facts.items()):
            return False
        texts = (finding.reason, *(evidence.value for evidence in finding.evidence))
        return any(re.search(self.symptom, text) for text in texts)


def _holds(wanted: str | bool | int, fact: Fact) -> bool:
    if isinstance(wanted, str):
        return isinstance(fact, str) and re.fullmatch(wanted, fact) is not None
    return type(fact) is type(wanted) and fact == wanted


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    diagnosis: tuple[Diagnosis, ...]


@functools.cache
def diagnoses(path: Path = TABLE) -> tuple[Diagnosis, ...]:
    """The rows of the table, in order; it is read when the first failed check asks.

    Raises:
        msgspec.ValidationError: a row has a wrong or missing key.
    """
    return msgspec.toml.decode(path.read_bytes(), type=_Table).diagnosis


def diagnose(finding: Finding, facts: Mapping[str, Fact], rows: Sequence[Diagnosis] | None = None) -> Finding:
    """Explain a finding by the first row that fits.

    Args:
        finding: any; comes back unchanged when all is well with it (WORKS, without a reason) or no row fits.
        facts: what is known of the device, see `merged_facts`.
        rows: None for the shipped table.

    Returns: the finding with `facts["cause"]` added to, and the remedy filled in where the check gave none.
    """
    if finding.status is Status.WORKS and not finding.reason:
        return finding
    row = next((row for row in (diagnoses() if rows is None else rows) if row.fits(finding, facts)), None)
    if row is None:
        return finding
    known = finding.facts.get("cause")
    if isinstance(known, str) and row.cause in known:  # explained before: a kept finding
        return finding
    cause = f"{known}; {row.cause}" if known else row.cause
    return msgspec.structs.replace(
        finding, remedy=finding.remedy or row.remedy, facts={**finding.facts, "cause": cause}
    )


def diagnose_all(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Explain each of a survey's findings with what the survey found out about the device."""
    findings = tuple(findings)
    facts = merged_facts(findings)
    return tuple(diagnose(finding, facts) for finding in findings)


def merged_facts(findings: Iterable[Finding]) -> dict[str, Fact]:
    """The facts about the device itself, from the findings of `FACT_PROBES` among these."""
    facts: dict[str, Fact] = {}
    for finding in findings:
        if finding.subject in FACT_PROBES:
            facts.update({name: fact for name, fact in finding.facts.items() if fact is not None})
    return facts
