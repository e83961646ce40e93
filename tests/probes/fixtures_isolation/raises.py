"""Has a bug."""

from __future__ import annotations

LAYER = 2


def check(host):
    return {}["missing key"]
