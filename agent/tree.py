"""The report as a tree by layer, for a terminal: state, device, reason, remedy, witnesses and age of each finding."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from agent.clock import wall_seconds
from agent.show import LAYERS, finding_summary, status_text
from probes.contract import CapabilityReport, Finding, Status, Witness
from runners.formats.gguf import printable

SIGNS = {Status.WORKS: "✔", Status.BROKEN: "✘", Status.ABSENT: "–", Status.UNKNOWN: "?"}
FRESH_S = 60.0  # a finding that is not older than that belongs to this report


def report_tree(report: CapabilityReport) -> Tree:
    """All findings below their layers, in order."""
    tree = Tree(Text(printable(headline(report)), style="bold"), guide_style="bright_black")
    layer, branch = None, tree
    for finding in report.findings:
        if finding.layer != layer:
            layer = finding.layer
            branch = tree.add(Text(f"{layer} {LAYERS.get(layer, '')}", style="bold"))
        add_finding(branch, finding, age_s(finding, report))
    return tree


def headline(report: CapabilityReport) -> str:
    """The device in one line, with how many checks ended how."""
    identity = report.device
    release = f"L4T {identity.l4t}" if identity.l4t else ""
    jetpack = f"JetPack {identity.jetpack}" if identity.jetpack else ""
    named = " · ".join(
        filter(None, (identity.model or identity.architecture, identity.module, identity.soc, release, jetpack))
    )
    counts = [
        f"{count} {status.value}"
        for status in Status
        if (count := sum(finding.status is status for finding in report.findings))
    ]
    return f"{named or 'this device'} ({', '.join(counts)})"


def add_finding(branch: Tree, finding: Finding, old_s: float | None) -> None:
    """One finding: a line for its state, and a line for each thing there is to say about it."""
    line = Text.assemble((SIGNS[finding.status] + " ", status_text(finding).style), finding.subject, "  ")
    line.append_text(status_text(finding))
    if finding.version:
        line.append(f"  {printable(finding.version)}", style="cyan")
    if old_s is not None and old_s >= FRESH_S:
        line.append(f"  taken {age_text(old_s)} before", style="bright_black")
    node = branch.add(line)
    for told in finding_summary(finding).splitlines():
        node.add(Text(printable(told), style="bold" if told.startswith("→") else ""))
    if cause := finding.facts.get("cause"):
        node.add(Text(printable(f"because {cause}")))
    for witness in finding.witnesses:
        node.add(witness_line(witness))


def witness_line(witness: Witness) -> Text:
    """One who was asked whether the device did the work: what it said, or why it was silent."""
    sign, style = ("testifies", "green") if witness.spoke else ("silent", "yellow")
    line = Text(f"{witness.kind.value} {sign}: ", style=style)
    return line.append(printable(witness.text), style="bright_black")


def age_s(finding: Finding, report: CapabilityReport) -> float | None:
    """Seconds from the finding to the report; None when one of them does not tell its time."""
    taken_s, report_s = wall_seconds(finding.taken_at), wall_seconds(report.taken_at)
    return None if taken_s is None or report_s is None else report_s - taken_s


def age_text(seconds: float) -> str:
    """An age in one unit: "3 h", "2 days"."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
