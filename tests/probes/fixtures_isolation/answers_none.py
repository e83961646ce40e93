"""Forgets to return its finding."""

from __future__ import annotations

LAYER = 2


def check(host):
    return None
