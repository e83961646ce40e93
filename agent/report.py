"""The capability report: a survey of all checks, explained, with the identity of the device."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.clock import wall_text
from agent.identity import first_serial
from agent.version import VERSION
from probes.contract import SCHEMA_VERSION, CapabilityReport, DeviceIdentity, Fact, Finding, Status, cut, fingerprint
from probes.diagnose import diagnose_all, merged_facts
from probes.ground import ground
from probes.host import RECORDED, Host
from probes.isolation import Check, probe_check
from probes.listing import ProbeFile, probe_files
from probes.survey import survey
from probes.wall_clock import synchronised

IDENTITY_FACTS = ("model", "module", "soc", "serial", "architecture", "l4t", "jetpack")
DEVICE_TREE_SERIAL = "/proc/device-tree/serial-number"
MACHINE_ID_SALT = b"edge-agent device id"  # machine-id(5) is confidential: only a keyed hash may leave the device
REPORT_BYTES = 48 << 10  # what a small broker and a slow link still take in one message
EVIDENCE_STEPS = (1024, 256, 64)  # characters left of each reading, one after the other, until a report fits


def survey_report(
    host: Host | None = None,
    subjects: Sequence[str] = (),
    device_id: str = "",
    on_finding: Callable[[Finding], None] | None = None,
    jobs: int | None = None,
    kept: CapabilityReport | None = None,
    wait: Callable[[], None] | None = None,
) -> CapabilityReport:
    """Execute the checks of all probes and runners, each in a process of its own, and report.

    Args:
        host: the machine; None for this one.
        subjects: only these checks, see `known_subjects`; empty for all.
        device_id: the configured one; "" derives it, see `derive_device_id`.
        on_finding: called with each finding as it comes, before it is explained.
        jobs: checks at once; None lets `survey` choose.
        kept: an earlier report of this device; what it found is not executed again as long as it is true, see
            `still_true`.
        wait: called when all has been read, and before anything is executed; returns when that may begin.

    Raises:
        KeyError: a subject is not known.
    """
    host = Host() if host is None else host
    checks = all_checks(host)
    wanted = [checks[subject] for subject in subjects] if subjects else list(checks.values())
    # A recorded device has no runtimes: their checks would say what this machine can do.
    impossible = [check for check in wanted if host.recorded and is_runner(check)]
    findings = [not_executed(check, RECORDED) for check in impossible]
    findings += still_true(kept, wanted, host)
    found = {finding.subject for finding in findings}
    environ = None if host.recorded else host.environ
    for part in parts([check for check in wanted if check.subject not in found], wait):
        findings += survey(part, jobs=jobs, on_finding=on_finding, environ=environ)
    return build_report(findings, host, device_id=device_id)


def parts(checks: Sequence[Check], wait: Callable[[], None] | None) -> Iterator[Sequence[Check]]:
    """What to survey at once: all, or first what only reads and, after the wait, what executes something."""
    if wait is None:
        yield checks
        return
    yield [check for check in checks if not executes(check)]
    executing = [check for check in checks if executes(check)]
    if executing:
        wait()
        yield executing


def executes(check: Check) -> bool:
    """Whether it executes something that a busy device could feel."""
    return check.uses_gpu or bool(check.rests_on)


def not_executed(check: Check, reason: str) -> Finding:
    """What is said about a check that was not carried out."""
    return Finding(subject=check.subject, layer=check.layer, status=Status.UNKNOWN, reason=reason)


def still_true(kept: CapabilityReport | None, checks: Iterable[Check], host: Host) -> list[Finding]:
    """The findings of an earlier report that need not be taken again.

    These are those that worked, or for which nothing was there, and whose ground is what it was. What was broken may
    have been so for a reason that has passed, such as full memory: it is tried again.
    """
    if kept is None or kept.schema_version != SCHEMA_VERSION:
        return []
    before = {finding.subject: finding for finding in kept.findings}
    true: list[Finding] = []
    known: dict[str, bytes] = {}
    for check in checks:
        finding = before.get(check.subject)
        if finding is None or finding.status not in (Status.WORKS, Status.ABSENT) or finding.layer != check.layer:
            continue
        if finding.ground and finding.ground == ground(host, check.rests_on, known):
            true.append(finding)
    return true


def known_subjects() -> list[str]:
    """The names of all checks in layer order: probes, and each runner with each of its backends."""
    return list(all_checks(Host()))


def all_checks(host: Host, files: Mapping[str, ProbeFile] | None = None) -> dict[str, Check]:
    """Every check by its subject, in layer order; nothing is executed for it.

    Args:
        host: the machine.
        files: what `probe_files` gave; None looks.
    """
    from runners.checks import runner_checks

    files = probe_files(host.environ or None) if files is None else files

    checks = [probe_check(file.name, host.root, file, as_user=host.as_user, deep=host.deep) for file in files.values()]
    checks += runner_checks()
    return {check.subject: check for check in sorted(checks, key=lambda check: check.layer)}


def is_runner(check: Check) -> bool:
    """Whether this is a runner's check: their subjects are "runtime/backend"."""
    return "/" in check.subject


def build_report(
    findings: Iterable[Finding], host: Host, agent_version: str = VERSION, device_id: str = ""
) -> CapabilityReport:
    """Make a report of findings.

    Args:
        findings: in any order; those that failed are explained from the table of diagnoses here.
        host: where the identity is read that no finding tells.
        agent_version: this software's.
        device_id: the configured one; "" derives it.

    Returns: the report, findings by layer, then by subject.
    """
    explained = fitting(diagnose_all(sorted(findings, key=lambda finding: (finding.layer, finding.subject))))
    identity = {name: text(fact) for name, fact in merged_facts(explained).items() if name in IDENTITY_FACTS}
    return CapabilityReport(
        device=DeviceIdentity(id=device_id or derive_device_id(host, identity.get("serial", "")), **identity),
        taken_at=wall_text(host.wall_s()),
        clock_synchronised=clock_synchronised(host),
        agent_version=agent_version,
        findings=explained,
        fingerprint=fingerprint(explained),
    )


def fitting(findings: tuple[Finding, ...], limit_bytes: int = REPORT_BYTES) -> tuple[Finding, ...]:
    """The findings, with long readings shortened where all together would not fit into a message.

    Answers that are compared with a known one stay whole: what was proven does not depend on a report's size.
    """
    for length in EVIDENCE_STEPS:
        if len(msgspec.json.encode(findings)) <= limit_bytes:
            break
        findings = tuple(shortened(finding, length) for finding in findings)
    return findings


def shortened(finding: Finding, length: int) -> Finding:
    """A finding whose readings have at most `length` characters each; their end is kept, where errors stand."""
    evidence = tuple(
        e if e.expected else msgspec.structs.replace(e, value=cut(e.value, length)) for e in finding.evidence
    )
    return msgspec.structs.replace(finding, evidence=evidence)


def text(fact: Fact) -> str:
    """A fact as the identity has it; "" for one that is not known."""
    return "" if fact is None else str(fact)


def derive_device_id(host: Host, serial: str = "") -> str:
    """A name for a device that was given none: by serial number, else by machine-id, else by host name.

    A serial number of zeros is none. Cloned images share machine-id and host name, so these two are for reports that
    are looked at once; the daemon keeps a name of its own instead, see `agent.identity`.

    Args:
        host: the machine.
        serial: as the hardware probe tells; "" for the one that is read here.
    """
    serial = cleaned(serial) or first_serial(host.line)
    if serial:
        return f"jetson-{serial}" if host.exists(DEVICE_TREE_SERIAL) else f"edge-{serial}"
    machine_id = host.line("/etc/machine-id") or ""
    if re.fullmatch(r"[0-9a-f]{32}", machine_id) and set(machine_id) != {"0"}:
        return "edge-" + hashlib.blake2b(machine_id.encode(), key=MACHINE_ID_SALT, digest_size=6).hexdigest()
    name = cleaned(host.line("/etc/hostname") or "")
    return f"edge-{name}" if name else "edge-unnamed"


def cleaned(name: str) -> str:
    """A name for use in topics and file names: letters, digits and dashes; "" for zeros alone."""
    name = re.sub(r"[^0-9a-z-]+", "-", name.lower()).strip("-")
    return name if name.strip("0-") else ""


def clock_synchronised(host: Host) -> bool | None:
    """Whether the wall clock follows a time server; None for a recorded device, or when nobody says."""
    return None if host.recorded else synchronised(host.in_container(), host.wall_s())
