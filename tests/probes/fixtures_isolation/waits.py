"""Takes as long as WAITS_S says, and answers."""

from __future__ import annotations

import os
import time

from probes.contract import Finding, Status

LAYER = 3
COST_S = 5


def check(host):
    time.sleep(float(os.environ.get("WAITS_S", "0.3")))
    return Finding(subject="waits", layer=LAYER, status=Status.WORKS)
