"""The stack as layers for a page: each finding a box with its state, and all that is known about it on a click.

No script: a box is a `<details>`. No state is told by colour alone: each has a sign and a word as well.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from agent.diff import fact_text, state
from agent.show import gib, headline, seconds
from agent.tree import FRESH_S, SIGNS, age_s, age_text
from probes.contract import CapabilityReport, Device, Evidence, Finding, Status, Witness
from probes.stack import Layer, load_stack

# Neither HTML nor a reader can do anything with these: controls, surrogates, and marks that turn the writing direction.
UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
NOTHING = "no check of edge-agent is at this layer"
ELSEWHERE = {  # layers whose things are executed, but not as findings of their own
    3: "edge-agent plan MODEL tells the road of a model file",
    6: "each backend is a box of its runtime, at layers 4 and 5",
}


def e(text: object) -> str:
    """Text made safe for HTML, line breaks kept."""
    return verbatim(text).replace("\n", "<br>")


def verbatim(text: object) -> str:
    """Text made safe for `<pre>`."""
    return html.escape(UNREADABLE.sub("\ufffd", str(text)))


def layers_html(report: CapabilityReport) -> str:
    """The whole stack, applications on top and hardware at the bottom, with a legend that counts."""
    bands = [band(layer, report) for layer in reversed(load_stack().layers)]
    return legend(report) + f'<div class="stack">{"".join(bands)}</div>'


def legend(report: CapabilityReport) -> str:
    """What the signs mean, and how many checks ended so."""
    meanings = {
        Status.WORKS: "executed, right answer",
        Status.BROKEN: "there, but fails",
        Status.ABSENT: "not there",
        Status.UNKNOWN: "could not be tried",
    }
    parts = [
        f'<li class="{status.value}"><b>{SIGNS[status]} '
        f"{sum(finding.status is status for finding in report.findings)} {status.value}</b> <span>{meaning}</span></li>"
        for status, meaning in meanings.items()
    ]
    hint = '<p class="soft hint">A click on a box tells reason, remedy, devices, evidence and age.</p>'
    return f'<ul class="legend">{"".join(parts)}</ul>{hint}'


def band(layer: Layer, report: CapabilityReport) -> str:
    """One layer with its findings."""
    findings = [finding for finding in report.findings if finding.layer == layer.layer]
    boxes = "".join(box(finding, report) for finding in findings)
    content = f'<div class="boxes">{boxes}</div>' if boxes else f'<p class="none">{e(without_findings(layer))}</p>'
    return (
        f'<section class="layer"><h3><span class="number">{layer.layer}</span> {e(layer.name)}'
        f" <small>{e(layer.holds)}</small></h3>{content}</section>"
    )


def without_findings(layer: Layer) -> str:
    """What is said of a layer that has no box."""
    return f"{ELSEWHERE.get(layer.layer, NOTHING)} ({layer.examples})"


def box(finding: Finding, report: CapabilityReport) -> str:
    """One finding: closed it tells the state and the main thing, open it tells everything."""
    status = finding.status.value
    return (
        f'<details class="box {status}" id="{e(finding.subject)}"><summary><span class="sign">{SIGNS[finding.status]}'
        f'</span> <b>{e(finding.subject)}</b> <span class="state">{state(finding)}</span>'
        f'<span class="gist">{e(gist(finding))}</span></summary>'
        f'<div class="more">{"".join(more(finding, report))}</div></details>'
    )


def gist(finding: Finding) -> str:
    """One short line: the devices with which it works, or why it does not."""
    if finding.status is not Status.WORKS:
        return finding.reason
    return ", ".join(finding.device_names) or headline(finding) or finding.reason


def more(finding: Finding, report: CapabilityReport) -> Iterable[str]:
    """Everything that is known about a finding, the useful first."""
    if finding.reason:
        yield f"<p>{e(finding.reason)}</p>"
    if cause := finding.facts.get("cause"):
        yield f"<p><b>because</b> {e(cause)}</p>"
    if finding.remedy:
        yield f'<p class="remedy"><b>→ what to do</b> {e(finding.remedy)}</p>'
    if finding.version:
        yield f"<p><b>version</b> {e(finding.version)}</p>"
    yield from listing("devices", map(device_html, finding.devices))
    yield from listing("executed or read", map(evidence_html, finding.evidence))
    yield from listing("witnesses", map(witness_html, finding.witnesses))
    facts = [
        f"<b>{e(name)}</b> {e(fact_text(fact))}" for name, fact in sorted(finding.facts.items()) if name != "cause"
    ]
    if facts:
        items = "".join(f"<li>{fact}</li>" for fact in facts)
        yield f"<details><summary>{len(facts)} readings</summary><ul>{items}</ul></details>"
    yield f'<p class="soft">{e(when(finding, report))}</p>'


def listing(title: str, items: Iterable[str]) -> Iterable[str]:
    """A headed list of things that are HTML already; nothing when there are none."""
    joined = "".join(f"<li>{item}</li>" for item in items)
    if joined:
        yield f"<h4>{title}</h4><ul>{joined}</ul>"


def device_html(device: Device) -> str:
    """One device as its API lists it."""
    memory = gib(device.memory_bytes) if device.memory_bytes is not None else ""
    parts = [device.vendor, device.driver, device.api_version, memory]
    return f"{device.index}: <b>{e(device.name)}</b> ({device.kind.value}) " + e(" · ".join(filter(None, parts)))


def evidence_html(evidence: Evidence) -> str:
    """What was run or read, and the answer."""
    told = [e(evidence.executed)]
    if evidence.device:
        told.append(f"on <b>{e(evidence.device)}</b> ({evidence.device_kind.value})")
    if evidence.elapsed_s is not None:
        clock = f" by the {evidence.timer}'s clock" if evidence.timer else ""
        told.append(e(f"in {seconds(evidence.elapsed_s)}{clock}"))
    if evidence.device and evidence.expected:
        told.append("✔ the right answer" if evidence.is_right else "✘ not the right answer")
    answer = f"<pre>{verbatim(evidence.value)}</pre>" if evidence.value else ""
    wanted = f"<p>expected</p><pre>{verbatim(evidence.expected)}</pre>"
    return " ".join(told) + answer + (wanted if evidence.expected not in ("", evidence.value) else "")


def witness_html(witness: Witness) -> str:
    """Who was asked whether the device did the work."""
    said = "✔ testifies" if witness.spoke else "– silent"
    return f"<b>{witness.kind.value}</b> {said} ({e(witness.source)}): {e(witness.text)}"


def when(finding: Finding, report: CapabilityReport) -> str:
    """When it was executed, how old that was at the report's time, and how long it took."""
    old_s = age_s(finding, report)
    parts = [f"taken {finding.taken_at}" if finding.taken_at else "nothing was executed"]
    if old_s is not None and old_s >= FRESH_S:
        parts.append(f"{age_text(old_s)} before this report")
    if finding.duration_s:
        parts.append(f"took {seconds(finding.duration_s)}")
    return " · ".join(parts)
