"""Runs one check in a process of its own, at arm's length: it may crash, hang, flood or eat memory, and is a finding.

See docs/decisions/0001-one-child-per-check.md. The inside of that process is `probes.child`; what its end means is
`probes.ending`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from probes.contract import Finding, Status
from probes.ending import ANSWER_BYTES, Ending, judge
from probes.ground import ground
from probes.host import Host
from probes.limits import REMEDY, narrow_address_space
from probes.listing import ProbeFile, probe_files
from probes.scratch import scratch

PACKAGE_ROOT = Path(__file__).resolve().parent.parent  # where `probes` and `runners` can be imported from
DEADLINE_S = 30.0
MEMORY_BYTES = 2 << 30
TAIL_BYTES = 16 << 10  # kept of stderr: a crash dump ends with a long list of modules
CHUNK_BYTES = 64 << 10
LAST_CHUNKS = 64  # read of each stream after the end; a process that got away may be writing still
ESCAPE_ROUNDS = 5
MARK = "EDGE_AGENT_CHECK"  # in the environment of a check and of all that it starts
LOOK_S = 0.1  # between two looks at the memory of the processes known
MEMBERS_S = 1.0  # between two searches for new processes: each reads all of /proc
REAP_S = 2.0  # from SIGKILL to the end; longer only for a process that is stuck in a driver


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check, named by data: what is to be started, and what it may cost.

    Attributes:
        subject: of the finding it must give.
        layer: likewise.
        argv: command line; " --fd N" is added: where it must write its finding as JSON.
        deadline_s: seconds, > 0; it is killed then.
        memory_bytes: resident, of the process and all it started; it is killed above.
        cost_s: seconds that it is thought to take; the longest are started first.
        rests_on: parts of `probes.ground` on which its answer rests; empty for a reading.
        uses_gpu: whether it executes something on a GPU where there is one.
        keep_caches: whether what drivers compile for it is kept for later, in the user's own caches.
    """

    subject: str
    layer: int
    argv: tuple[str, ...]
    deadline_s: float = DEADLINE_S
    memory_bytes: int = MEMORY_BYTES
    cost_s: float = 1.0
    rests_on: tuple[str, ...] = ()
    uses_gpu: bool = False
    keep_caches: bool = False


def list_probes(environ: Mapping[str, str] | None = None) -> list[str]:
    """The names of all probes in layer order, see `probes.listing`; nothing is imported for it."""
    return list(probe_files(environ))


def probe_check(
    name: str, root: str | Path = "/", file: ProbeFile | None = None, *, as_user: str = "", deep: bool = False
) -> Check:
    """The check that executes a probe.

    Args:
        name: one of `list_probes`.
        root: folder of a recorded device, or "/".
        file: what is known about it, when it was looked up already.
        as_user: whose permissions count, see `Host`.
        deep: let it take long for more certainty.

    Raises:
        KeyError: there is no such probe.
    """
    file = probe_files()[name] if file is None else file
    argv: tuple[str, ...] = (sys.executable, "-m", "probes", name, "--root", os.path.abspath(root))
    argv += (("--as-user", as_user) if as_user else ()) + (("--deep",) if deep else ()) + ("--child",)
    return Check(
        subject=name,
        layer=file.layer,
        argv=argv,
        deadline_s=file.deadline_s or DEADLINE_S,
        memory_bytes=int(file.memory_mib * (1 << 20)) if file.memory_mib else MEMORY_BYTES,
        cost_s=file.cost_s,
        rests_on=file.rests_on if Path(root).resolve() == Path("/") else (),
        uses_gpu=file.uses_gpu,
    )


def execute(check: Check, environ: Mapping[str, str] | None = None, stop_fd: int | None = None) -> Finding:
    """Run a check to its end, whatever that is; no process of its group is left.

    Args:
        check: what to run.
        environ: its whole environment; None for this process's own.
        stop_fd: becomes readable when the check is to be given up; may be shared.

    Returns: its finding; BROKEN when it crashed, hung, ate too much memory, was given up or gave no finding.
    """
    environ = os.environ if environ is None else environ
    # Before, not after: what changes while it runs makes it stale.
    rests_on = ground(Host(environ=environ), check.rests_on)
    taken_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    started_s = time.monotonic()
    finding = explain_limit(judge(check.subject, check.layer, run(check, environ, stop_fd)))
    duration_s = round(time.monotonic() - started_s, 4)
    return msgspec.structs.replace(finding, duration_s=duration_s, taken_at=taken_at, ground=rests_on)


def explain_limit(finding: Finding) -> Finding:
    """A failure, with the limit on addresses under which it happened, if there is one."""
    limit = narrow_address_space() if finding.status is Status.BROKEN else ""
    if not limit or limit in finding.reason:
        return finding
    return msgspec.structs.replace(finding, reason=f"{finding.reason}; {limit}", remedy=finding.remedy or REMEDY)


def run(check: Check, environ: Mapping[str, str], stop_fd: int | None = None) -> Ending:
    """Start the process, follow it, end it and its group."""
    with scratch(environ, keep_caches=check.keep_caches) as its_environ:
        try:
            child = _Child(check.argv, {**its_environ, "PYTHONFAULTHANDLER": "1"})
        except OSError as error:
            return Ending(returncode=None, killed=f"{check.argv[0]} could not be started: {error.strerror}")
        try:
            killed = child.follow(check, stop_fd)
        finally:  # Ctrl-C as well
            returncode = child.end()
    return Ending(
        returncode=returncode,
        killed=killed,
        answer=bytes(child.answer.kept),
        output=bytes(child.output.kept),
        errors=bytes(child.errors.kept),
    )


class _Stream:
    """Our end of a pipe, read without ever waiting; the first or the last bytes of it are kept, never all."""

    def __init__(self, fd: int, keep_bytes: int, keep_end: bool) -> None:
        self.fd = fd
        self.kept = bytearray()
        self._keep_bytes = keep_bytes
        self._keep_end = keep_end
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take what is there, at most one chunk; False when nothing (more) is."""
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if self._keep_end:
            self.kept += data
            del self.kept[: -self._keep_bytes]
        else:
            self.kept += data[: self._keep_bytes - len(self.kept)]
        return bool(data)


class _Child:
    """A check's process and our ends of its pipes."""

    def __init__(self, argv: tuple[str, ...], environ: Mapping[str, str]) -> None:
        answer_fd, their_fd = os.pipe()
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        try:
            self.process = subprocess.Popen(
                [*argv, "--fd", str(their_fd)],
                stdin=subprocess.PIPE,  # nothing is written; it closes when this process is gone, and the check with it
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(their_fd,),
                start_new_session=True,
                cwd=PACKAGE_ROOT,  # not where somebody keeps a file called vulkan.py
                env={**environ, MARK: self.mark.partition("=")[2]},
            )
        except BaseException:
            os.close(answer_fd)
            raise
        finally:
            os.close(their_fd)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pid = self.process.pid
        self.answer = _Stream(answer_fd, ANSWER_BYTES + 1, keep_end=False)
        self.output = _Stream(self.process.stdout.fileno(), TAIL_BYTES, keep_end=True)
        self.errors = _Stream(self.process.stderr.fileno(), TAIL_BYTES, keep_end=True)
        self._streams = (self.answer, self.output, self.errors)

    def follow(self, check: Check, stop_fd: int | None) -> str:
        """Read what it says until it ends; returns why it is to be killed, or ""."""
        until_s = time.monotonic() + check.deadline_s
        memory = _Memory(self.pid)
        with selectors.DefaultSelector() as selector, _end_signal(self.pid) as end_fd:
            for stream in self._streams:
                selector.register(stream.fd, selectors.EVENT_READ, stream)
            for fd in (end_fd, stop_fd):
                if fd is not None:
                    selector.register(fd, selectors.EVENT_READ)
            while not self.has_ended():
                now_s = time.monotonic()
                if now_s >= until_s:
                    verb = "did not end after its answer" if self.answer.kept else "no answer"
                    return f"{verb} in {check.deadline_s:g} s; killed"
                if memory.bytes(now_s) > check.memory_bytes:
                    used, allowed = memory.last_bytes >> 20, check.memory_bytes >> 20
                    return f"used {used} MiB of memory, {allowed} MiB are allowed; killed"
                for key, _ in selector.select(min(until_s - now_s, LOOK_S)):
                    if key.fd == stop_fd:
                        return "given up before it ended; killed"
                    if isinstance(key.data, _Stream) and not key.data.read():
                        selector.unregister(key.fd)
        return ""

    def has_ended(self) -> bool:
        """Whether the process itself has ended; it isn't reaped, so that its number stays its own."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # reaped by the kernel: whoever started us ignores SIGCHLD
            return True

    def end(self) -> int | None:
        """Kill the group and who left it, read what is left, close everything.

        Returns: the exit status; None if it lives on.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        returncode: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver: even SIGKILL waits for that
            returncode = self.process.wait(REAP_S)
        for _ in range(ESCAPE_ROUNDS):  # again: one may have been forking
            if not kill_marked(self.mark):
                break
        for stream in self._streams:
            for _ in range(LAST_CHUNKS):
                if not stream.read():
                    break
        os.close(self.answer.fd)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return returncode


def kill_marked(mark: str) -> int:
    """Kill the processes that have `mark` in their environment: a daemon leaves its group, and keeps that.

    Returns: how many. Source: proc(5), environ; one of another user can't be read, nor killed.
    """
    killed, wanted = 0, mark.encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read():
                os.kill(int(name), signal.SIGKILL)
                killed += 1
    return killed


@contextlib.contextmanager
def _end_signal(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the process ends; None on a kernel before 5.3 (JetPack 4)."""
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # Python may have been built with older headers
        yield None  # the end is then seen at the next look at the memory
        return
    try:
        yield fd
    finally:
        os.close(fd)


class _Memory:
    """The resident memory of a process group, looked at now and then. Shared pages count for each process."""

    def __init__(self, group: int) -> None:
        self.last_bytes = 0
        self._group = group
        self._members = [group]
        now_s = time.monotonic()
        self._look_s = now_s + LOOK_S
        self._search_s = now_s + MEMBERS_S

    def bytes(self, now_s: float) -> int:
        """The sum of the group; the last one when it is too early for a new look."""
        if now_s < self._look_s:
            return self.last_bytes
        if now_s >= self._search_s:
            self._members = group_members(self._group)
            self._search_s = now_s + MEMBERS_S
        self.last_bytes = sum(map(resident_bytes, self._members))
        self._look_s = now_s + LOOK_S
        return self.last_bytes


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone. Source: proc(5), statm."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def group_members(group: int) -> list[int]:
    """The processes of a group. Source: proc(5), stat: the command's name may hold blanks and brackets."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[2]) == group:
                members.append(int(name))
    return members
