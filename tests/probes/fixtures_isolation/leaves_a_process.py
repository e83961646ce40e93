"""Answers, and leaves a process that holds all pipes open; its number is in the facts."""

from __future__ import annotations

import subprocess

from probes.contract import Finding, Status

LAYER = 2


def check(host):
    left = subprocess.Popen(["sleep", "600"], close_fds=False)
    return Finding(subject="leaves_a_process", layer=LAYER, status=Status.WORKS, facts={"left_pid": left.pid})
