"""Writes 1 GiB to stderr and stdout, then answers."""

from __future__ import annotations

import os

from probes.contract import Finding, Status

LAYER = 2
BLOCK = b"x" * (1 << 20)


def check(host):
    for _ in range(512):
        os.write(2, BLOCK)
        os.write(1, BLOCK)
    return Finding(subject="floods", layer=LAYER, status=Status.WORKS)
