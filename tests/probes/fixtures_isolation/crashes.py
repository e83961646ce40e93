"""Reads address 0 in native code."""

from __future__ import annotations

import ctypes

LAYER = 2


def check(host):
    ctypes.string_at(0)
