"""Class names in an ONNX file's metadata: exporters write them as lines, as a list, or as a Python or JSON mapping.

Read by regular expressions, never evaluated: the text is whatever somebody put into the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Keys in order of trust. "names" is Ultralytics', "character" RapidAI's, the others occur in several model zoos.
KEYS = ("names", "labels", "label", "character", "classes", "class_names", "categories", "id2label")
LABELS_LIMIT = 100_000
QUOTED = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')"""
TEXT = re.compile(QUOTED)
PAIR = re.compile(rf"""["']?(\d{{1,9}})["']?\s*:\s*{QUOTED}""")
ESCAPE = re.compile(r"\\(.)")


def read_labels(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Class names in the order of the classes; empty when the metadata has none.

    A mapping counts only when its numbers are 0, 1, 2, ... without a gap: otherwise a class would get a wrong name.
    """
    for key in KEYS:
        labels = _parse(properties.get(key, "").strip())
        if labels:
            return labels
    return ()


def _parse(text: str) -> tuple[str, ...]:
    if text.startswith("{"):
        numbered = {int(found[1]): _unquoted(found[2], found[3]) for found in PAIR.finditer(text)}
        complete = sorted(numbered) == list(range(len(numbered)))
        return tuple(numbered[number] for number in range(len(numbered))) if complete else ()
    if text.startswith(("[", "(")):
        return tuple(_unquoted(found[1], found[2]) for found in TEXT.finditer(text))[:LABELS_LIMIT]
    if not text:
        return ()
    parts = text.splitlines() if "\n" in text else text.split(",")
    labels = tuple(part.strip() for part in parts)
    return labels[:LABELS_LIMIT] if len(labels) > 1 else ()


def _unquoted(double: str | None, single: str | None) -> str:
    return ESCAPE.sub(r"\1", double if double is not None else single or "")
