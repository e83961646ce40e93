"""Copied from a neighbour, the name forgotten."""

from __future__ import annotations

from probes.contract import Finding, Status

LAYER = 2


def check(host):
    return Finding(subject="vulkan", layer=LAYER, status=Status.WORKS)
