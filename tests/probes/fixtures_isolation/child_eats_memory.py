"""Starts a process that takes 600 MB."""

from __future__ import annotations

import subprocess
import sys

LAYER = 2


def check(host):
    subprocess.run([sys.executable, "-c", "import time; eaten = b'x' * 600_000_000; time.sleep(600)"], check=False)
