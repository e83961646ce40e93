"""Forks: parent and child hang. The child's number goes to the file named in FORKED_PID_FILE."""

from __future__ import annotations

import os
import time
from pathlib import Path

LAYER = 2
DEADLINE_S = 60


def check(host):
    forked = os.fork()
    if forked:
        part = Path(os.environ["FORKED_PID_FILE"] + ".part")
        part.write_text(f"{os.getpid()} {forked}")
        part.rename(os.environ["FORKED_PID_FILE"])
    time.sleep(600)
