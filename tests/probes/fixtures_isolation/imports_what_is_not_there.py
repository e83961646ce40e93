"""Needs a module at import."""

from __future__ import annotations

import no_such_module  # noqa: F401

LAYER = 2


def check(host):
    raise AssertionError
