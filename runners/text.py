"""From a model's token bytes to text that may be shown: whole characters, and nothing of a stop text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class AnswerText:
    """Turns the bytes of tokens into pieces of text as early as they are certain.

    Bytes of an unfinished character are held back, and so is text that may become a stop text. A byte that can't be
    UTF-8 becomes one U+FFFD. The stop text that is complete first ends the answer, however the text was cut into
    pieces; it is not part of the answer. Once `stopped` is true, nothing more comes out.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(text for text in stop if text)
        self._held = ""

    def feed(self, data: bytes) -> str:
        """The text that is certain now, after the bytes of one more token; often ""."""
        return self._advance(self._decoder.decode(data))

    def finish(self) -> str:
        """What was held back, at the end of the answer; an unfinished character comes out as U+FFFD."""
        shown = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return shown

    def _advance(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._held + new
        end = first_stop(text, self._stop)
        if end is not None:
            self.stopped, self._held = True, ""
            return text[:end]
        certain = len(text) - held_length(text, self._stop)
        self._held = text[certain:]
        return text[:certain]


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the stop text that is complete first begins, the longest of those; None when there is none."""
    found = [(at + len(one), at) for one in stop if (at := text.find(one)) >= 0]
    return min(found)[1] if found else None


def held_length(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a stop text."""
    longest = min(len(text), max(map(len, stop)) - 1)
    for length in range(longest, 0, -1):
        if any(one.startswith(text[-length:]) for one in stop):
            return length
    return 0
