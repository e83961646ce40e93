"""The inside of a check's own process: it runs one check, hands its finding over, and ends at once.

The other side is `probes.isolation`. A runner's command uses `answer` just as `python -m probes NAME --child` does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import importlib.util
import os
import resource
import select
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import msgspec

from probes.contract import Evidence, Finding, Status, cut
from probes.host import Host
from probes.listing import FOLDER, ProbeFile


def answer(subject: str, layer: int, work: Callable[[], Finding], fd: int = 1) -> NoReturn:
    """Run `work` and write what it found, as JSON, to `fd`; this process ends here.

    An exception becomes BROKEN with its type and message as reason and the traceback as evidence. Exit handlers and
    the destructors of native libraries don't run: drivers have been seen to crash or to hang in them.

    Args:
        subject: of the finding.
        layer: 0 to 7.
        work: the check.
        fd: where `isolation` reads; 1 (stdout) for a person.
    """
    faulthandler.enable()
    prefer_for_oom_killer()
    if fd != 1:
        die_with_parent()
        be_nice()
    try:
        finding = work()
        if isinstance(finding, Finding):  # what else it may be is told by whoever reads it
            finding = msgspec.structs.replace(finding, memory_peak_bytes=memory_peak_bytes())
        data = msgspec.json.encode(finding)
    except Exception as error:  # noqa: BLE001 - the boundary of isolation: a bug in one check is one finding
        data = msgspec.json.encode(failed(subject, layer, error))
    while data:
        data = data[os.write(fd, data) :]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def memory_peak_bytes() -> int | None:
    """The most that was resident of this process, or of one that it waited for; None when the kernel does not say.

    Source: proc(5), VmHWM; getrusage(2), whose figure for the process itself may be its parent's.
    """
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/status", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            if line.startswith("VmHWM:"):
                of_commands = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
                return max(int(line.split()[1]), of_commands) << 10
    return None


def failed(subject: str, layer: int, error: Exception) -> Finding:
    """The finding about a check that let an exception out."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Finding(
        subject=subject,
        layer=layer,
        status=Status.BROKEN,
        reason=f"the check raised {type(error).__name__}: {cut(str(error), 300)}",
        evidence=(Evidence(executed="traceback", value=cut(trace)),),
    )


def run_probe(file: ProbeFile, host: Host) -> Finding:
    """Import a probe and let it check the device."""

    def broken(reason: str, value: str = "") -> Finding:
        evidence = (Evidence(executed="traceback", value=cut(value)),) if value else ()
        return Finding(subject=file.name, layer=file.layer, status=Status.BROKEN, reason=reason, evidence=evidence)

    if file.problem:
        return broken(file.problem)
    try:
        module = load(file)
    except Exception as error:  # noqa: BLE001 - whatever a module does while it is imported is its finding
        return broken(f"{file.path} can't be imported: {type(error).__name__}: {error}", traceback.format_exc())
    finding: Finding = module.check(host)
    return finding


def load(file: ProbeFile) -> ModuleType:
    """The probe's module; one from a folder of the environment is loaded from its file."""
    if file.path == str(FOLDER / f"{file.name}.py"):
        return importlib.import_module(f"probes.{file.name}")
    spec = importlib.util.spec_from_file_location(f"probe_{file.name}", file.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def die_with_parent() -> None:
    """Have the kernel kill this whole process group when the other end of stdin closes, as it does with the parent.

    Works while native code hangs and holds the interpreter, which a watching thread does not; and takes the commands
    that were started along, which PR_SET_PDEATHSIG does not. Source: fcntl(2), F_SETOWN, F_SETSIG, O_ASYNC.
    """
    if os.getsid(0) != os.getpid() or not stat.S_ISFIFO(os.fstat(0).st_mode):
        return  # not started by `isolation`: typing on a terminal's stdin must kill nobody
    line = os.dup(0)  # stays open to the end, out of reach for whoever reads stdin
    fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(line, 0)
    if poll.poll(0):  # the parent went before we were ready: no signal will come
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def be_nice(increment: int = 10) -> None:
    """Let the device's own work go first. Source: nice(2); never more than what we were started with allows."""
    with contextlib.suppress(OSError):
        os.nice(increment)


def prefer_for_oom_killer(score: int = 1000) -> None:
    """When memory runs out, the kernel should take this process and not the agent.

    Args:
        score: -1000 to 1000, see proc(5), oom_score_adj. A container may forbid it; the kernel then goes by size.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))
