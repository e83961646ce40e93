"""The map of the inference stack as data: layers, terms and what is often confused, from `stack.toml`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
        subjects: the findings that tell its state here, a runner's name for all its backends; none: not checked.
    """

    term: str
    layer: str
    kind: str
    rests_on: str
    on_a_jetson: str
    subjects: tuple[str, ...] = ()


class Confusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two things that are taken for one another.

    Attributes:
        answer: "no" or "half".
        terms: those it is about, as `Term.term` has them.
    """

    question: str
    answer: str
    reason: str
    terms: tuple[str, ...]


class Stack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole map."""

    layers: tuple[Layer, ...]
    terms: tuple[Term, ...]
    confusions: tuple[Confusion, ...]


@functools.cache
def load_stack() -> Stack:
    """The map as it ships."""
    return msgspec.convert(tomllib.loads(STACK_FILE.read_text(encoding="utf-8")), Stack)
