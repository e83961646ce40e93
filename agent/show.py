"""Findings, plans and runs as readable tables; imported only when something is shown to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from probes.contract import DeviceKind, Finding, Status
from runners.contract import Placement
from runners.formats.gguf import printable
from runners.route import Plan, Route
from runners.timing import Timing

if TYPE_CHECKING:
    from runners.model import ModelInfo

LAYERS = {
    0: "hardware",
    1: "OS and SDK",
    2: "compute API",
    3: "model format",
    4: "runtime",
    5: "LLM runtime",
    6: "backend",
    7: "application",
}
COLOURS = {
    Status.WORKS: "green",
    Status.BROKEN: "red",
    Status.ABSENT: "bright_black",
    Status.UNKNOWN: "yellow",
}


def make_console() -> Console:
    """A console that is wide enough for reasons when the output goes to a file."""
    # No markup: texts of drivers and files hold brackets, and are shown as they are.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=150)


def status_text(finding: Finding) -> Text:
    """The status with its colour, and the device kind where something was executed."""
    text = Text(finding.status.value.upper(), style=COLOURS[finding.status])
    if finding.status is Status.WORKS and finding.device_kind is not DeviceKind.UNKNOWN:
        text.append(f" ({finding.device_kind.value})", style="bold" if finding.device_kind is DeviceKind.GPU else "")
    return text


def finding_summary(finding: Finding) -> str:
    """What a person wants to read behind the status: devices, or the reason, and the remedy."""
    parts = []
    if finding.status is Status.WORKS:
        parts.append(", ".join(finding.device_names) or headline(finding))
    if finding.reason:
        parts.append(finding.reason)
    if finding.remedy:
        parts.append(f"→ {finding.remedy}")
    return "\n".join(part for part in parts if part)


def headline(finding: Finding) -> str:
    """The facts that say most, for findings that read rather than execute."""
    facts = finding.facts
    if finding.subject == "memory":
        return f"{gib(facts.get('memory_available_bytes'))} of {gib(facts.get('memory_total_bytes'))} available"
    keys = (
        "model",
        "module",
        "soc",
        "compute_capability",
        "architecture",
        "cpu_model",
        "l4t",
        "jetpack",
        "distribution",
    )
    return ", ".join(str(facts[key]) for key in keys if facts.get(key))


def gib(number: object) -> str:
    """Bytes as GiB or MiB; "unknown" for None."""
    if not isinstance(number, int):
        return "unknown"
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def chain(route: Route, model: str) -> str:
    """A road as a chain: model -> runtime -> backend -> API -> device."""
    links = [model, route.runtime, route.backend, route.api, route.device]
    return " → ".join(link for link in links if link)


def print_plan(console: Console, plan: Plan, model: ModelInfo) -> None:
    """The model in a line, the roads that are open, and why each other one is refused."""
    console.print(Text(describe_model(model), style="bold"))
    for warning in model.warnings:
        console.print(f"  note: {warning}")
    table = Table(show_header=True, title_justify="left")
    table.add_column("road", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for place, route in enumerate(plan.accepted, 1):
        why = route.reason or chain(route, model_label(model))
        if route.fit:
            why += f"\nneeds {gib(route.fit.needed_bytes)}, {gib(route.fit.available_bytes)} available"
        table.add_row(road(route), Text(f"{place}. accepted", style="green"), why)
    for route in plan.refused:
        why = route.reason + (f"\n→ {route.remedy}" if route.remedy else "")
        table.add_row(road(route), Text("refused", style="red"), why)
    console.print(table)


def road(route: Route) -> str:
    """Runtime and backend, as the findings name them."""
    return f"{route.runtime}/{route.backend}" if route.backend else route.runtime


def model_label(model: ModelInfo) -> str:
    """The file's name, as a person knows it."""
    return printable(model.path.rpartition("/")[2])


def describe_model(model: ModelInfo) -> str:
    """A model file in one line."""
    parts = [model_label(model), model.name, f"{model.format} v{model.format_version}"]
    parts += [model.architecture, model.task, model.quantisation]
    if model.parameters:
        parts.append(f"{model.parameters / 1e6:.1f} M parameters")
    parts.append(gib(model.size_bytes))
    return " · ".join(part for part in parts if part)


def placement_text(placement: Placement) -> str:
    """Where the parts ran, and what proves it."""
    if not placement.parts:
        return f"not proven ({placement.source or 'the runtime gave no evidence'})"
    parts = []
    for part in placement.parts:
        counts = [f"{part.layers} layers" if part.layers else "", f"{part.nodes} nodes" if part.nodes else ""]
        counts.append(gib(part.bytes) if part.bytes else "")
        told = ", ".join(count for count in counts if count)
        parts.append(f"{part.device} ({part.device_kind.value}{': ' if told else ''}{told})")
    return "; ".join(parts) + f"  [proof: {placement.source}]"


def timing_rows(timing: Timing) -> list[tuple[str, str]]:
    """The figures that were measured, by name; those that were not are left out."""
    rows: list[tuple[str, str | None]] = [
        ("load", seconds(timing.load_s)),
        ("TTFT", seconds(timing.ttft_s)),
        ("TPOT", seconds(timing.tpot_s)),
        ("ITL p50 / p90 / p99", spread(timing, "itl")),
        ("decode", f"{timing.tokens_per_s:.1f} tokens/s" if timing.tokens_per_s else None),
        (
            "tokens in / out",
            f"{timing.prompt_tokens} / {timing.output_tokens}" if timing.output_tokens else None,
        ),
        ("frames", f"{timing.frames} ({timing.dropped or 0} dropped)" if timing.frames else None),
        ("throughput", f"{timing.frames_per_s:.1f} frames/s" if timing.frames_per_s else None),
        ("latency p50 / p90 / p99", spread(timing, "latency")),
        ("end to end", seconds(timing.end_to_end_s)),
        ("peak memory", gib(timing.peak_memory_bytes) if timing.peak_memory_bytes else None),
    ]
    return [(name, value) for name, value in rows if value is not None]


def seconds(value: float | None) -> str | None:
    """A duration in a unit that suits it."""
    if value is None:
        return None
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def spread(timing: Timing, name: str) -> str | None:
    """Three percentiles in one cell."""
    values = getattr(timing, name)
    return None if values is None else " / ".join(seconds(x) or "" for x in (values.p50_s, values.p90_s, values.p99_s))


def print_run(console: Console, model: str, route: Route, placement: Placement, timing: Timing) -> None:
    """How a run went: the road, the proof, the figures."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    table.add_row("road", chain(route, model))
    table.add_row("placement", placement_text(placement))
    for name, value in timing_rows(timing):
        table.add_row(name, value)
    console.print(table)


def classes_text(result: dict[str, object]) -> str:
    """One vision result in a line."""
    if result.get("error"):
        return f"{result['image']}: {result['error']}"
    classes: Sequence[dict[str, object]] = result.get("classes", ())  # type: ignore[assignment]
    told = ", ".join(f"{c['label']} {float(str(c['probability'])):.3f}" for c in classes)
    return f"{result['image']}: {told}"
