"""The map of the inference stack as data: layers, terms and what is often confused, from `stack.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

STACK_FILE = Path(__file__).with_name("stack.toml")


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of the stack."""

    layer: int
    name: str
    holds: str
    examples: str


class Term(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing of the stack.

    Attributes:
        layer: one, such as "2", or the first and last it reaches over, such as "2-3".
        on_a_jetson: what it is worth there; "" when nothing is to be said.
        aliases: other names under which people ask for it.
        subjects: the findings that tell its state here, a runner's name for all its backends; none: not checked.
            The first decides; of a runner's backends, the best.
        only_if_fact: a fact of the finding that must be true for the finding to be about this term.
        only_if_named: one of these must stand in the name or the driver of a device of the finding, for the same.
    """

    term: str
    layer: str
    kind: str
    rests_on: str
    on_a_jetson: str
    aliases: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    only_if_fact: str = ""
    only_if_named: tuple[str, ...] = ()

    @property
    def first_layer(self) -> int:
        """The layer at which it is drawn: the lowest that it reaches."""
        return int(self.layer.partition("-")[0])


class Confusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two things that are taken for one another.

    Attributes:
        answer: "no" or "half".
        terms: those it is about, as `Term.term` has them.
        aliases: what else it is about, which is no term of the map: "Qwen", "KV cache".
    """

    question: str
    answer: str
    reason: str
    terms: tuple[str, ...]
    aliases: tuple[str, ...] = ()


class Stack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole map."""

    layers: tuple[Layer, ...]
    terms: tuple[Term, ...]
    confusions: tuple[Confusion, ...]

    def term(self, name: str) -> Term:
        """The term of that very name.

        Raises:
            KeyError: there is none.
        """
        for term in self.terms:
            if term.term == name:
                return term
        raise KeyError(name)

    def confusions_of(self, term: Term) -> tuple[Confusion, ...]:
        """The questions that are about this term."""
        return tuple(confusion for confusion in self.confusions if term.term in confusion.terms)

    def confused_with(self, term: Term) -> tuple[str, ...]:
        """What it is often taken for: the other things of its questions."""
        own = (term.term, *term.aliases)
        others: list[str] = []
        for confusion in self.confusions_of(term):
            if any(name in confusion.question for name in own):  # others are answered in the term's context only
                others += [*confusion.aliases, *confusion.terms]
        return tuple(name for name in dict.fromkeys(others) if name != term.term)


@functools.cache
def load_stack() -> Stack:
    """The map as it ships."""
    return msgspec.toml.decode(STACK_FILE.read_bytes(), type=Stack)
