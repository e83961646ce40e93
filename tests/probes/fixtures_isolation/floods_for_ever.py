"""Writes to stderr without an end."""

from __future__ import annotations

import os

LAYER = 2
DEADLINE_S = 1.5
BLOCK = b"flood\n" * 10_000


def check(host):
    while True:
        os.write(2, BLOCK)
