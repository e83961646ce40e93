"""`edge-agent stack` and `edge-agent explain`: the map of the stack, with each term's state on this device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agent import asked, term_state
from agent.cli import EXIT_USAGE, fail
from agent.commands_local import fail_with, print_json
from agent.commands_probe import ProbeOptions, check_usage, take
from agent.report import known_subjects
from agent.term_state import TermState
from probes.contract import CapabilityReport
from probes.stack import Confusion, Stack, Term, load_stack
from runners.contract import RunnerError


def run_stack(as_json: bool, **options: Any) -> int:
    """Show the whole map with the state of each term; returns the exit status."""
    stack = load_stack()
    try:
        report = taken(stack.terms, as_json, options)
    except RunnerError as error:
        return fail_with(error, as_json=False)
    assert report is not None
    states = term_state.states(stack, report)
    if as_json:
        print_json(stack_document(stack, states, report))
    else:
        from agent.show import make_console
        from agent.show_map import stack_table

        make_console().print(stack_table(stack, states, report))
    return 0


def run_explain(words: Sequence[str], as_json: bool, **options: Any) -> int:
    """Explain a term or answer a question; without words list what can be asked. Returns the exit status."""
    stack = load_stack()
    text = " ".join(words).strip()
    if not text:
        return list_all(stack, as_json)
    meant = asked.find(stack, text)
    if not meant.terms:
        near = asked.near(stack, text)
        hint = f"; near: {', '.join(near)}" if near else ""
        fail(f"the map has no term {text!r}{hint}. All terms and questions: edge-agent explain", EXIT_USAGE)
    try:
        report = taken(meant.terms, as_json, options)
    except RunnerError as error:
        return fail_with(error, as_json=False)
    states = {term.term: term_state.state_of(term, report) for term in meant.terms}
    if as_json:
        print_json(
            {
                "asked": text,
                "questions": [question_document(confusion) for confusion in meant.confusions],
                "terms": [term_document(stack, term, states[term.term]) for term in meant.terms],
            }
        )
    else:
        from agent.show import make_console
        from agent.show_map import explanation

        make_console().print(explanation(stack, meant, states))
    return 0


def taken(terms: Sequence[Term], as_json: bool, options: dict[str, Any]) -> CapabilityReport | None:
    """The report that tells these terms' states; None when no check does: nothing is executed then.

    Raises:
        RunnerError: the saved report can't be read.
    """
    subjects = term_state.subjects_of(terms, known_subjects())
    wanted = ProbeOptions(as_json=as_json, **options)
    check_usage((), wanted)
    return take(subjects, wanted) if subjects else None


def list_all(stack: Stack, as_json: bool) -> int:
    """Every term and every question."""
    if as_json:
        terms = [{"term": term.term, "aliases": term.aliases, "layer": term.layer} for term in stack.terms]
        print_json({"terms": terms, "questions": [confusion.question for confusion in stack.confusions]})
    else:
        from agent.show import make_console
        from agent.show_map import index

        make_console().print(index(stack))
    return 0


def stack_document(stack: Stack, states: dict[str, TermState], report: CapabilityReport) -> dict[str, Any]:
    """The map as JSON: layers from 0 to 7, each with its terms."""
    return {
        "device": report.device,
        "taken_at": report.taken_at,
        "layers": [
            {
                **msgspec.to_builtins(layer),
                "terms": [
                    term_document(stack, term, states[term.term])
                    for term in stack.terms
                    if term.first_layer == layer.layer
                ],
            }
            for layer in stack.layers
        ],
    }


def term_document(stack: Stack, term: Term, state: TermState) -> dict[str, Any]:
    """One term as JSON."""
    return {
        "term": term.term,
        "aliases": term.aliases,
        "layer": term.layer,
        "kind": term.kind,
        "rests_on": term.rests_on,
        "on_a_jetson": term.on_a_jetson,
        "confused_with": stack.confused_with(term),
        "state": state.state,
        "device_kind": state.device_kind,
        "reason": state.reason,
        "remedy": state.remedy,
        "subjects": state.subjects,
    }


def question_document(confusion: Confusion) -> dict[str, Any]:
    """One question with its answer as JSON."""
    return {
        "question": confusion.question,
        "answer": confusion.answer,
        "reason": confusion.reason,
        "terms": confusion.terms,
    }
