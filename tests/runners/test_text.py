"""From token bytes to text: whole characters, and nothing of a stop text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.text import AnswerText

CASES = Path(__file__).parent.parent / "fixtures" / "language"
STOP_CASES: list[dict[str, Any]] = json.loads((CASES / "stop.json").read_text())
BYTE_CASES = [case for case in json.loads((CASES / "utf8.json").read_text()) if "pieces" in case]


def told(pieces: list[bytes], stop: list[str] | tuple[str, ...] = ()) -> tuple[str, str, list[str]]:
    """The whole answer, why it ended, and the pieces that were shown."""
    answer, shown = AnswerText(stop), []
    for piece in pieces:
        shown.append(answer.feed(piece))
        if answer.stopped:
            break
    shown.append(answer.finish())
    return "".join(shown), "stop" if answer.stopped else "eos", shown


def test_all_cases_are_there() -> None:
    assert len(STOP_CASES) == 16
    assert len(BYTE_CASES) == 7


@pytest.mark.parametrize("case", STOP_CASES, ids=[str(case["stop"]) for case in STOP_CASES])
@pytest.mark.parametrize("cut", ["tokens", "characters", "bytes", "whole"])
def test_a_stop_text_is_never_seen_however_it_is_cut(case: dict[str, Any], cut: str) -> None:
    text = "".join(case["tokens"])
    pieces = {
        "tokens": [token.encode() for token in case["tokens"]],
        "characters": [character.encode() for character in text],
        "bytes": [bytes([value]) for value in text.encode()],
        "whole": [text.encode()],
    }[cut]
    assert told(pieces, case["stop"])[:2] == (case["expect"], case["finish"])


@pytest.mark.parametrize("case", BYTE_CASES, ids=[case["name"] for case in BYTE_CASES])
@pytest.mark.parametrize("single", [False, True], ids=["pieces", "single bytes"])
def test_characters_cut_over_tokens_come_out_whole(case: dict[str, Any], single: bool) -> None:
    pieces = [bytes.fromhex(piece) for piece in case["pieces"]]
    if single:
        pieces = [bytes([value]) for piece in pieces for value in piece]
    text, _, shown = told(pieces)
    assert text in case.get("expect_any", [case.get("expect")])
    if "expect" in case and "\N{REPLACEMENT CHARACTER}" not in case["expect"]:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in shown)


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    answer = AnswerText(["END"])
    assert answer.feed(b"abc") == "abc"
    assert answer.feed(b"E") == ""
    assert answer.feed(b"x") == "Ex"
    assert answer.feed("€".encode()[:2]) == ""
    assert answer.feed("€".encode()[2:]) == "€"


def test_nothing_comes_out_after_a_stop_text() -> None:
    answer = AnswerText(["."])
    assert answer.feed(b"one. two") == "one"
    assert answer.stopped
    assert answer.feed(b"three") == ""
    assert answer.finish() == ""


def test_an_empty_stop_text_is_ignored() -> None:
    assert told([b"abc"], [""]) == ("abc", "eos", ["abc", ""])


def test_the_stop_text_that_is_complete_first_ends_the_answer() -> None:
    for pieces in ([b"xabcd"], [b"x", b"a", b"b", b"c", b"d"]):
        assert told(pieces, ["abcd", "bc"])[0] == "xa"


@given(
    text=st.text(alphabet="abé🌍", max_size=12),
    stop=st.lists(st.text(alphabet="abé🌍", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 48), max_size=8),
)
def test_the_answer_does_not_depend_on_where_the_bytes_are_cut(text: str, stop: list[str], cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    answer, reason, _ = told(pieces, stop)
    assert (answer, reason) == told([data], stop)[:2]
    assert text.startswith(answer)
    assert not any(one in answer for one in stop)
    assert (reason == "stop") == any(one in text for one in stop)
