"""Ends its process with status 3."""

from __future__ import annotations

import sys

LAYER = 2


def check(host):
    print("cannot open display", file=sys.stderr)
    sys.exit(3)
