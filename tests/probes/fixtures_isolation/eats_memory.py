"""Takes 600 MB, slowly enough to be seen."""

from __future__ import annotations

import time

from probes.contract import Finding, Status

LAYER = 2


def check(host):
    eaten = []
    for _ in range(60):
        eaten.append(bytearray(b"x" * 10_000_000))
        time.sleep(0.02)
    time.sleep(2)
    return Finding(subject="eats_memory", layer=LAYER, status=Status.WORKS)
