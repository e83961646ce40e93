"""Where the device is, and how a command is run there. A rack's target has the same one method."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hil.expectation import Machine
from hil.verdicts import Completed

PROJECT = Path(__file__).parent.parent.parent
READ_MACHINE = """
echo "architecture $(uname -m)"
tr '\\0' '\\n' 2>/dev/null </proc/device-tree/compatible | sed 's/^/compatible /'
sed -n '1s/^# R\\([0-9]*\\) .*/l4t \\1/p' /etc/nv_tegra_release 2>/dev/null
cat /proc/driver/nvidia/gpus/*/information 2>/dev/null | sed -n 's/^Model:[[:space:]]*/nvidia_gpu /p'
ls /dev/dri 2>/dev/null | sed -n 's/^renderD/render_node renderD/p'
"""
FIND_FILE = """
import importlib.util, pathlib, sys
package, _, name = sys.argv[1].partition("/")
spec = importlib.util.find_spec(package)
for folder in (spec.submodule_search_locations or ()) if spec else ():
    print(next(pathlib.Path(folder).rglob(name), ""))
    break
"""


class TargetUnreachable(Exception):
    """The device, or the agent on it, can't be reached; the message says how it was tried."""


class Target(Protocol):
    """A device under test.

    Attributes:
        python: the command there that runs the Python in which edge-agent is installed.
    """

    python: tuple[str, ...]

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Run a command on the device.

        Args:
            argv: the command.
            timeout_s: seconds, > 0; then it and its children are killed.

        Raises:
            TargetUnreachable: it could not be started.
        """
        ...


class LocalTarget:
    """This machine."""

    def __init__(self, python: str = "") -> None:
        """Choose the agent.

        Args:
            python: of the virtual environment with the release under test; "" for this one, with this working tree.
        """
        self.python: tuple[str, ...] = (python or sys.executable,)
        # `python -m agent` looks into the current folder first: an installed release must not find the working tree.
        self._cwd = "/" if python else PROJECT

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Run a command here; see `Target.run`."""
        began_s = time.monotonic()
        try:
            child = subprocess.Popen(
                argv,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise TargetUnreachable(f"{argv[0]}: {error.strerror}") from None
        timed_out = False
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        return Completed(
            argv=tuple(argv),
            status=child.returncode,
            stdout=out,
            stderr=err,
            duration_s=time.monotonic() - began_s,
            timed_out=timed_out,
        )


class Recorded:
    """A target that keeps every command with its output as evidence."""

    def __init__(self, target: Target, folder: Path) -> None:
        """Keep what `target` runs in `folder`/commands.jsonl."""
        self.python = target.python
        self._target = target
        self._path = folder / "commands.jsonl"
        self._path.write_bytes(b"")

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Run a command and keep it; see `Target.run`."""
        done = self._target.run(argv, timeout_s)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(done) + b"\n")
        return done


def read_machine(target: Target) -> Machine:
    """What is known of a machine before any agent runs on it."""
    return parse_machine(target.run(("sh", "-c", READ_MACHINE), 30.0).stdout)


def parse_machine(text: str) -> Machine:
    """Lines of "key value" as a `Machine`."""

    def values(key: str) -> tuple[str, ...]:
        return tuple(re.findall(rf"^{key} (.+)$", text, re.MULTILINE))

    return Machine(
        architecture=next(iter(values("architecture")), ""),
        compatible=values("compatible"),
        l4t=next((int(value) for value in values("l4t")), None),
        nvidia_gpus=values("nvidia_gpu"),
        render_nodes=values("render_node"),
    )


def find_file(target: Target, name: str) -> str:
    """Where "<package>/<file name>" is on the device; "" when it is not there."""
    return target.run((*target.python, "-c", FIND_FILE, name), 60.0).stdout.strip()
