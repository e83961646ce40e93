"""Runs a GPU probe's check in a process of its own, as native drivers may crash, with a clean environment."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from probes.contract import Finding, Status

PROJECT = Path(__file__).parent.parent.parent
LOADERS = ("VK_", "OCL_", "POCL_", "__EGL_", "EGL_", "WGPU_", "LIBGL_", "GALLIUM_", "MESA_")
CODE = """
import sys, msgspec
from probes.host import Host
from probes import {name}
sys.stdout.write("\\n" + msgspec.json.encode({name}.check(Host())).decode())
"""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LOADERS)}
    return clean | {"PYTHONPATH": str(PROJECT)} | changes


def check(name: str, changes: Mapping[str, str] | None = None, first: str = "") -> Finding:
    """The finding of `probes/<name>.py` under changed variables, after the statements in `first`."""
    done = subprocess.run(
        [sys.executable, "-c", first + CODE.format(name=name)],
        env=environment(changes or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout.rpartition("\n")[2], type=Finding)


@functools.cache
def undisturbed(name: str) -> Finding:
    return check(name)


def working(name: str) -> Finding:
    """What the probe says here when nothing is disturbed; skips loudly where there is no such API at all."""
    found = undisturbed(name)
    if found.status is Status.ABSENT:
        pytest.skip(f"{name} was not executed: {found.reason}; {found.remedy}")
    return found


def assert_proven(found: Finding) -> None:
    """The kernel ran on a device, and every number was right."""
    assert found.status is Status.WORKS, found.reason
    assert found.evidence
    for evidence in found.evidence:
        assert evidence.value == evidence.expected
        assert "1048576 of 1048576 numbers right" in evidence.value
        assert evidence.device in {d.name for d in found.devices}
        assert evidence.device_kind in {d.kind for d in found.devices}
        assert evidence.elapsed_s is not None
        assert 0 < evidence.elapsed_s < 10
