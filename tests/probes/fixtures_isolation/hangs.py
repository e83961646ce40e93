"""Never answers, and does not mind SIGTERM."""

from __future__ import annotations

import signal
import time

LAYER = 2
DEADLINE_S = 1.5


def check(host):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
