"""The map of the stack and explanations of its terms, for a terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from agent.asked import Asked
from agent.show import COLOURS
from agent.term_state import NOT_CHECKED, TermState
from agent.tree import SIGNS, headline
from probes.contract import CapabilityReport, Status
from probes.stack import Confusion, Stack, Term
from runners.formats.gguf import printable


def stack_table(stack: Stack, states: dict[str, TermState], report: CapabilityReport) -> Tree:
    """All layers, each with its terms and their state."""
    tree = Tree(Text(printable(headline(report)), style="bold"), guide_style="bright_black")
    for layer in stack.layers:
        branch = tree.add(Text.assemble((f"{layer.layer} {layer.name}", "bold"), f"  {layer.holds}"))
        for term in stack.terms:
            if term.first_layer == layer.layer:
                add_term(branch, term, states[term.term])
    return tree


def add_term(branch: Tree, term: Term, state: TermState) -> None:
    """One term; what no check tells takes no second line."""
    line = state_text(state, term.term + "  ")
    if state.state == NOT_CHECKED:
        line.append(f"  {term.kind.partition(':')[0]}", style="bright_black")
    node = branch.add(line)
    if state.state != NOT_CHECKED:
        add_reason(node, state)


def add_reason(node: Tree, state: TermState) -> None:
    """Why, and what to do."""
    if state.reason:
        node.add(Text(printable(state.reason)))
    if state.remedy:
        node.add(Text(printable(f"→ {state.remedy}"), style="bold"))


def state_text(state: TermState, label: str = "") -> Text:
    """Sign, label, state in its colour, and the kind of device."""
    if state.state == NOT_CHECKED:
        return Text.assemble("· ", label, (NOT_CHECKED, "bright_black"))
    status = Status(state.state)
    text = Text.assemble((SIGNS[status] + " ", COLOURS[status]), label, (state.state.upper(), COLOURS[status]))
    return text.append(f" ({state.device_kind})") if state.device_kind else text


def explanation(stack: Stack, meant: Asked, states: dict[str, TermState]) -> Group:
    """The questions with their answers, then each term."""
    parts = [question(confusion) for confusion in meant.confusions]
    return Group(*parts, *(term_table(stack, term, states[term.term]) for term in meant.terms))


def question(confusion: Confusion) -> Text:
    """One question and its answer."""
    text = Text.assemble((confusion.question, "bold"), " ", (confusion.answer.capitalize() + ". ", "bold yellow"))
    return text.append(confusion.reason + "\n")


def term_table(stack: Stack, term: Term, state: TermState) -> Table:
    """One term with all that the map and this device say about it."""
    table = Table(title=Text(term.term, style="bold"), title_justify="left", show_header=False, box=None)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    layers = {layer.layer: layer.name for layer in stack.layers}
    rows = [
        ("layer", f"{term.layer} ({layers[term.first_layer]})"),
        ("kind", term.kind),
        ("rests on", term.rests_on),
        ("on a Jetson", term.on_a_jetson),
        ("confused with", ", ".join(stack.confused_with(term))),
    ]
    for name, told in rows:
        if told:
            table.add_row(name, Text(told))
    table.add_row("here", state_text(state))
    if state.reason:
        table.add_row("", Text(printable(state.reason)))
    table.add_row("what to do", Text(printable(to_do(state))))
    return table


def to_do(state: TermState) -> str:
    """The remedy, or why there is none."""
    if state.remedy:
        return state.remedy
    if state.state == Status.WORKS.value:
        return "nothing: it works here" + (", on the CPU" if state.device_kind == "cpu" else "")
    if state.state == NOT_CHECKED:
        return "ask the thing itself: it is not among what edge-agent executes"
    return f"see the whole finding: edge-agent probe {' '.join(state.subjects)}"


def index(stack: Stack) -> Group:
    """All that can be asked."""
    lines = [Text("Terms, from the application down to the hardware", style="bold")]
    for layer in reversed(stack.layers):
        names = [term.term for term in stack.terms if term.first_layer == layer.layer]
        lines.append(Text(f"  {layer.layer} {layer.name}: {'; '.join(names)}"))
    lines.append(Text("Questions", style="bold"))
    lines += [Text(f"  {confusion.question}") for confusion in stack.confusions]
    return Group(*lines)
