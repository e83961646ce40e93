"""`report.html`: one self-contained page with what a device can do and what was run on it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from agent import show
from agent.page_stack import e, layers_html, verbatim
from probes.contract import CapabilityReport, Status
from runners.contract import Placement
from runners.route import Plan
from runners.timing import Timing

STYLE_FILE = Path(__file__).parent / "data" / "page.css"


class RunSection(msgspec.Struct, frozen=True, kw_only=True):
    """One run as the page tells it.

    Attributes:
        title: what was run.
        text: the answer of a language model; "" for a vision run.
        results: vision results as in the JSON lines.
    """

    title: str
    plan: Plan
    placement: Placement
    timing: Timing
    text: str = ""
    results: Sequence[dict[str, object]] = ()


def write_page(
    path: Path,
    report: CapabilityReport,
    runs: Sequence[RunSection],
    notes: Sequence[str],
) -> None:
    """Write the page whole or not at all.

    Args:
        path: where it goes.
        report: the device's findings.
        runs: what was run, in order.
        notes: sentences that stand at the end.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_text(render(report, runs, notes), encoding="utf-8")
    os.replace(temporary, path)


def write_report_page(path: Path, report: CapabilityReport) -> None:
    """Write a page of the device's findings alone."""
    write_page(path, report, (), ())


def render(report: CapabilityReport, runs: Sequence[RunSection], notes: Sequence[str]) -> str:
    """The page as text."""
    title = report.device.model or report.device.id
    style = STYLE_FILE.read_text(encoding="utf-8")
    body = [
        f"<h1>{e(title)}</h1>",
        identity_line(report),
        "<h2>What works here, executed</h2>",
        layers_html(report),
    ]
    for run in runs:
        body += run_section(run)
    if notes:
        body += ["<h2>Commands</h2>", "<ul>", *(f"<li>{e(note)}</li>" for note in notes), "</ul>"]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{e(title)} · edge-agent</title><style>{style}</style></head>"
    )
    return f"{head}<body>{''.join(body)}</body></html>\n"


def identity_line(report: CapabilityReport) -> str:
    """Who, when, with which agent."""
    device = report.device
    parts = [device.id, device.module, device.soc, device.architecture, device.l4t and f"L4T {device.l4t}"]
    parts += [report.taken_at, f"edge-agent {report.agent_version}", f"fingerprint {report.fingerprint}"]
    clock = "" if report.clock_synchronised else " (clock not known to be synchronised)"
    return f'<p class="soft">{e(" · ".join(part for part in parts if part) + clock)}</p>'


def row(cells: Iterable[str]) -> str:
    """One table row of cells that are HTML already."""
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def state(status: Status, told: str) -> str:
    """A status with its colour."""
    return f'<b class="{status.value}">{e(told)}</b>'


def run_section(run: RunSection) -> list[str]:
    """One run: plan, proof, figures, answer or pictures."""
    figures = [row((f"<b>{e(name)}</b>", e(value))) for name, value in show.timing_rows(run.timing)]
    parts = [f"<h2>{e(run.title)}</h2>", plan_table(run.plan)]
    parts.append(f"<p><b>Placement:</b> {e(show.placement_text(run.placement))}</p>")
    if run.text:
        parts.append(f"<pre>{verbatim(run.text)}</pre>")
    parts.append(f'<div class="wide"><table>{"".join(figures)}</table></div>')
    if run.results:
        parts.append(f'<div class="pictures">{"".join(picture(result) for result in run.results)}</div>')
    return parts


def plan_table(plan: Plan) -> str:
    """The roads, open and refused."""
    rows = []
    for place, route in enumerate(plan.accepted, 1):
        rows.append(
            row(
                (
                    e(show.road(route)),
                    state(Status.WORKS, f"{place}. accepted"),
                    e(show.chain(route, Path(plan.model).name)),
                )
            )
        )
    for route in plan.refused:
        why = route.reason + (f"\n→ {route.remedy}" if route.remedy else "")
        rows.append(row((e(show.road(route)), state(Status.BROKEN, "refused"), e(why))))
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def picture(result: dict[str, object]) -> str:
    """One annotated picture with its classes, embedded."""
    caption = e(show.classes_text(result))
    annotated = result.get("annotated")
    if not annotated:
        return f"<figure><figcaption>{caption}</figcaption></figure>"
    file = Path(str(annotated))
    kind = "png" if file.suffix == ".png" else "jpeg"
    data = base64.b64encode(file.read_bytes()).decode("ascii")
    image = f'<img alt="{caption}" src="data:image/{kind};base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
