"""What somebody asks about the map: a term, one of its other names, or a question in any punctuation."""

from __future__ import annotations

import difflib
import re

import msgspec

from probes.stack import Confusion, Stack, Term

NEAR = 5  # near matches that are told
NEAR_ENOUGH = 0.5  # ratio of difflib


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was meant; both empty when nothing fits."""

    terms: tuple[Term, ...] = ()
    confusions: tuple[Confusion, ...] = ()


def find(stack: Stack, asked: str) -> Asked:
    """The terms and questions that `asked` names.

    A question as it stands on the map is answered with its terms; a term brings the questions that are about it. What
    is neither may be a question in other words: its names are then looked for, and must make up one of the questions.
    """
    plain = squeezed(asked)
    questions = tuple(c for c in stack.confusions if letters(c.question) == letters(asked) != "")
    if questions:
        return Asked(terms=terms_of(stack, questions), confusions=questions)
    for same in (squeezed, letters):  # exactly first: ".mnn" and "MNN" are two things
        terms = tuple(t for t in stack.terms if any(same(name) == same(plain) != "" for name in names_of(t)))
        about = tuple(c for c in stack.confusions if any(same(name) == same(plain) != "" for name in c.aliases))
        if terms or about:
            more = tuple(c for term in terms for c in stack.confusions_of(term))
            return Asked(terms=terms or terms_of(stack, about), confusions=tuple(dict.fromkeys((*about, *more))))
    return in_other_words(stack, plain)


def in_other_words(stack: Stack, plain: str) -> Asked:
    """The questions of which all names stand in the text, at least two."""
    text = plain
    found = []
    names = [(name, term.term) for term in stack.terms for name in names_of(term)]
    names += [(alias, alias) for confusion in stack.confusions for alias in confusion.aliases]
    for name, owner in sorted(names, key=lambda pair: -len(pair[0])):  # "TensorRT-LLM" before "TensorRT"
        pattern = rf"(?<![\w.]){re.escape(squeezed(name))}(?!\w)"
        if re.search(pattern, text):
            text = re.sub(pattern, " ", text)
            found.append(owner)
    questions = tuple(
        c for c in stack.confusions if set(c.terms) <= {*found} and len({*c.terms, *c.aliases} & {*found}) > 1
    )
    return Asked(terms=terms_of(stack, questions), confusions=questions)


def terms_of(stack: Stack, confusions: tuple[Confusion, ...]) -> tuple[Term, ...]:
    """The terms that the questions are about, each once."""
    return tuple(stack.term(name) for name in dict.fromkeys(name for c in confusions for name in c.terms))


def near(stack: Stack, asked: str) -> list[str]:
    """Terms, other names and questions that look like what was asked, the nearest first."""
    names = [name for term in stack.terms for name in names_of(term)]
    names += [text for confusion in stack.confusions for text in (*confusion.aliases, confusion.question)]
    by_text = {squeezed(name): name for name in reversed(names)}
    return [by_text[text] for text in difflib.get_close_matches(squeezed(asked), by_text, NEAR, NEAR_ENOUGH)]


def names_of(term: Term) -> tuple[str, ...]:
    """The term's own name and its others."""
    return (term.term, *term.aliases)


def squeezed(text: str) -> str:
    """In small letters, with single blanks."""
    return " ".join(text.casefold().split())


def letters(text: str) -> str:
    """Its letters and digits alone, small."""
    return re.sub(r"[\W_]+", "", text.casefold())
