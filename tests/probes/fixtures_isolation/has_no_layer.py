"""Forgot LAYER."""

from __future__ import annotations


def check(host):
    raise AssertionError
