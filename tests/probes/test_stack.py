"""The map as data says what its page says."""

import re
from pathlib import Path

from probes.stack import load_stack

PAGE = (Path(__file__).parents[1] / "fixtures" / "stack.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> list[tuple[str, ...]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def test_every_layer_is_as_on_the_page() -> None:
    told = [(f"{layer.layer} {layer.name}", layer.holds, layer.examples) for layer in load_stack().layers]
    assert told == rows("Layers")
    assert len(told) == 8


def test_every_term_is_as_on_the_page() -> None:
    told = [(term.term, term.layer, term.kind, term.rests_on, term.on_a_jetson) for term in load_stack().terms]
    assert told == rows("Terms")
    assert len(told) == 40


def test_every_question_of_the_page_has_an_answer() -> None:
    lines = section("Confusions").splitlines()[1:]
    asked = re.findall(r"[^?]+\?", re.sub(r"\s+", " ", " ".join(lines)))
    told = {confusion.question: confusion for confusion in load_stack().confusions}
    assert [question.strip() for question in asked] == list(told)
    assert len(told) == 14
    assert {confusion.answer for confusion in told.values()} == {"no", "half"}
    assert all(confusion.reason for confusion in told.values())


def test_confusions_are_about_known_terms() -> None:
    terms = {term.term for term in load_stack().terms}
    assert [name for confusion in load_stack().confusions for name in confusion.terms if name not in terms] == []
