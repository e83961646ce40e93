"""Verdicts for people and for machines: a table, and a JSON in the manner of KernelCI's KCIDB (schema 5.3)."""

from __future__ import annotations

import datetime
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hil.expectation import Expectation
from hil.verdicts import Result, Verdict
from probes.contract import CapabilityReport

ORIGIN = "edge_agent"
POWER_FACTS = ("power_mode", "power_mode_name", "clocks_locked")


def table(expectation: Expectation, verdicts: Sequence[Verdict]) -> str:
    """All verdicts, worst first, as text for a terminal."""
    order = list(Result)
    rows = sorted(verdicts, key=lambda verdict: order.index(verdict.result))
    width = max((len(row.subject) for row in rows), default=0)
    seen = f"last passed {expectation.seen}" if expectation.seen else "not yet seen on such a board"
    lines = [f"{expectation.board}: {expectation.title} ({seen})"]
    for row in rows:
        device = f" [{row.device}]" if row.device else ""
        lines.append(f"  {row.result.value}  {row.subject:<{width}}  {row.reason}{device}")
    counts = Counter(row.result for row in rows)
    lines.append("  " + ", ".join(f"{counts[result]} {result.value}" for result in order if counts[result]))
    return "\n".join(lines)


def kcidb(
    expectation: Expectation,
    verdicts: Iterable[Verdict],
    report: CapabilityReport | None,
    files: Sequence[Path],
    at: datetime.datetime,
    commit: str = "",
) -> dict[str, Any]:
    """All verdicts as one KCIDB object: a checkout, a build, and a test for each verdict.

    Args:
        files: the evidence, which goes with each test.
        at: when, with a time zone.
        commit: of the agent's source; "" when unknown, and then left out.
    """
    run_id = uuid.uuid4().hex
    checkout: dict[str, Any] = {"id": f"{ORIGIN}:{run_id}", "origin": ORIGIN}
    if commit:
        checkout["git_commit_hash"] = commit
    build = {"id": f"{ORIGIN}:{run_id}", "checkout_id": checkout["id"], "origin": ORIGIN, "status": "PASS"}
    evidence = [{"name": path.name, "url": path.resolve().as_uri()} for path in files]
    return {
        "version": {"major": 5, "minor": 3},
        "checkouts": [checkout],
        "builds": [build],
        "tests": [
            {
                "id": f"{ORIGIN}:{run_id}-{index}",
                "build_id": build["id"],
                "origin": ORIGIN,
                "path": kcidb_path(verdict.subject),
                "status": verdict.result.value,
                "start_time": at.isoformat(timespec="seconds"),
                **({} if verdict.duration_s is None else {"duration": round(verdict.duration_s, 3)}),
                "environment": environment(expectation, report),
                "misc": {"subject": verdict.subject, "reason": verdict.reason, "device": verdict.device},
                "output_files": evidence,
            }
            for index, verdict in enumerate(verdicts)
        ],
    }


def kcidb_path(subject: str) -> str:
    """A subject as KCIDB's dotted path."""
    return "hil." + re.sub(r"[^A-Za-z0-9_.-]", ".", subject)


def environment(expectation: Expectation, report: CapabilityReport | None) -> Mapping[str, Any]:
    """The board: what was promised, and what the report says it is."""
    misc: dict[str, Any] = {"board": expectation.board}
    if report is not None:
        device = report.device
        misc |= {"fingerprint": report.fingerprint, "agent_version": report.agent_version, "l4t": device.l4t}
        misc |= {"jetpack": device.jetpack, "module": device.module, "architecture": device.architecture}
        for finding in report.findings:
            misc |= {name: finding.facts[name] for name in POWER_FACTS if name in finding.facts}
    compatible = list(expectation.match.compatible) or [expectation.board]
    return {"comment": expectation.title, "compatible": compatible, "misc": misc}


def source_commit(folder: Path) -> str:
    """The commit of a working tree; "" where there is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
