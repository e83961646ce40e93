"""`edge-agent probe --quick`: only what can be read, in this process, in a third of a second."""

from __future__ import annotations

from collections.abc import Sequence

from agent.report import all_checks, build_report, is_runner, not_executed
from probes.child import failed, load
from probes.contract import CapabilityReport, Finding
from probes.host import QUICK, Host
from probes.listing import probe_files


def quick_report(host: Host, subjects: Sequence[str] = ()) -> CapabilityReport:
    """A report in which nothing was executed: the checks that would have are UNKNOWN, with what they could read.

    Args:
        host: made with `quick=True`.
        subjects: only these checks; empty for all.

    Raises:
        KeyError: a subject is not known.
    """
    files = probe_files(host.environ or None)
    checks = all_checks(host, files)
    wanted = [checks[subject] for subject in subjects] if subjects else list(checks.values())

    def read(subject: str, layer: int) -> Finding:
        try:
            finding: Finding = load(files[subject]).check(host)
        except Exception as error:  # noqa: BLE001 - a bug in one check is one finding, here as in a child
            return failed(subject, layer, error)
        return finding

    shipped = {name for name, file in files.items() if not file.problem and is_shipped(file.path)}
    findings = [
        not_executed(check, host.not_executed or QUICK)
        if is_runner(check) or check.subject not in shipped
        else read(check.subject, check.layer)
        for check in wanted
    ]
    return build_report(findings, host)


def is_shipped(path: str) -> bool:
    """Whether a probe is one of ours: only those are known to execute nothing when they are told so."""
    from pathlib import Path

    from probes.listing import FOLDER

    return Path(path).parent == FOLDER
