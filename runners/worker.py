"""A worker: a process of its own for each loaded model, and the side of it that everybody else talks to.

Native code of a runtime may crash, hang or be taken by the kernel's OOM killer: here that is a `WorkerDied`, and
whoever asked lives on. Killing the process gives the memory back. `python -m runners.worker --fd N` is that process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from probes.ending import signal_name
from runners.contract import (
    Cancelled,
    DeadlineExceeded,
    ModelRejected,
    OpenOptions,
    OutOfDeviceMemory,
    RequestRejected,
    RunnerError,
    RuntimeUnavailable,
    WorkerDied,
)
from runners.framing import Closed, Connection
from runners.messages import Cancel, Classify, Done, Failed, Generate, Open, Opened, Piece, Reply, Result

PACKAGE_ROOT = Path(__file__).resolve().parent.parent  # where `runners` can be imported from
STDERR_TAIL_BYTES = 16 << 10
TAIL_LINES = 3
POLITE_S = 3.0  # from the end of the conversation to SIGKILL
REAP_S = 5.0  # from SIGKILL to the end; longer only for a process that is stuck in a driver
CANCEL_POLL_S = 0.1
# How long a thread of libgomp spins at a barrier before it sleeps. Its default ruins the speed as soon as anything else
# wants the cores; no spinning at all costs most of it on idle ones. Measured with SmolLM2-135M, 2 threads on 2 cores,
# tokens/s idle, and with 2 busy loops beside: default 170, 2-57; GOMP_SPINCOUNT=0 50, 45-108; this 170, 57-76.
PATIENT_OPENMP = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
NO_DEBUGGER = {"GGML_NO_BACKTRACE": "1"}  # ggml starts gdb when it aborts, whose output hides the cause
ERRORS: dict[str, type[RunnerError]] = {
    error.code: error
    for error in (
        RunnerError,
        ModelRejected,
        RequestRejected,
        RuntimeUnavailable,
        OutOfDeviceMemory,
        DeadlineExceeded,
        WorkerDied,
        Cancelled,
    )
}
Wanted = TypeVar("Wanted", Opened, Done)


class Worker:
    """One loaded model in its own process; made by `start`, ended by `close` or at the end of a `with`.

    One request at a time; `cancel` and `close` may be called from any thread.

    Attributes:
        opened: where the model lies, and how long loading took.
        pid: of the process, which also leads a session and process group of its own.
    """

    opened: Opened

    def __init__(self, environ: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = spawn(theirs.fileno(), {**PATIENT_OPENMP, **NO_DEBUGGER, **environ})
            except OSError as error:
                ours.close()
                raise WorkerDied(f"the model's process could not be started: {error}") from error
        self.pid = self._process.pid
        self._connection: Connection[Reply] = Connection(ours, Reply)  # type: ignore[arg-type]
        self._tail = bytearray()
        self._oom_kills = oom_kills()
        self._drain = threading.Thread(target=self._keep_tail, name=f"worker-{self.pid}-log", daemon=True)
        self._drain.start()
        self._request_lock = threading.Lock()
        self._busy_lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._ended = False
        self._closing = False
        self._busy = False

    @classmethod
    def start(
        cls,
        runtime: str,
        model_path: str,
        options: OpenOptions,
        environ: Mapping[str, str] | None = None,
        deadline_s: float = 300.0,
        cancelled: Callable[[], bool] | None = None,
    ) -> Worker:
        """Start a process and load a model in it.

        Args:
            runtime: name of a runner, "llama_cpp".
            model_path: the file; a relative path starts at the current directory.
            options: as the runner's `open` takes them.
            environ: the process's whole environment; None for this process's own.
            deadline_s: seconds for the start and the loading together, > 0.
            cancelled: asked a few times per second meanwhile; true ends it.

        Raises:
            RunnerError: the runner's own, or `WorkerDied`, `DeadlineExceeded`, `Cancelled`. No process is left.
        """
        worker = cls(os.environ if environ is None else environ)
        try:
            message = Open(model_path=model_path, runtime=runtime, options=options)
            worker._send(message)
            until_s = time.monotonic() + deadline_s
            name = f"loading {Path(model_path).name} with {runtime}"
            worker.opened = worker._wait_for(Opened, name, until_s, deadline_s, cancelled=cancelled)
        except BaseException:
            worker.kill()
            raise
        return worker

    def request(
        self,
        message: Generate | Classify,
        on_piece: Callable[[str], None] | None = None,
        on_result: Callable[[Mapping[str, Any]], None] | None = None,
        deadline_s: float | None = None,
    ) -> Done:
        """Carry out one request, and wait for its end.

        Whatever else is raised meanwhile (Ctrl-C, an error in a callback) ends the process: what it would still say
        could not be told from the answer to the next request.

        Args:
            message: what to do.
            on_piece: called with each new piece of text, in order.
            on_result: called with each result of a vision pipeline, in order.
            deadline_s: seconds, > 0; the process is killed then. None waits for ever.

        Returns: its timing carries the load time and the process's largest resident size, beside the runner's own.

        Raises:
            RunnerError: the runner's own; the model stays loaded.
            WorkerDied, DeadlineExceeded: the process is gone.
        """
        with self._request_lock:
            try:
                with self._busy_lock:
                    self._send(message)
                    self._busy = True
                until_s = None if deadline_s is None else time.monotonic() + deadline_s
                what = type(message).__name__.lower()
                done = self._wait_for(Done, what, until_s, deadline_s, on_piece, on_result)
            except RunnerError:
                raise
            except BaseException:
                self.kill()
                raise
            finally:
                self._busy = False
        timing = msgspec.structs.replace(
            done.timing, load_s=self.opened.load_s, peak_memory_bytes=peak_memory_bytes(self.pid)
        )
        return msgspec.structs.replace(done, timing=timing)

    def cancel(self) -> bool:
        """End the request in hand: its `request` returns with what there is.

        Returns: whether there was one; the request may still end by itself first.
        """
        with self._busy_lock:  # never ahead of the request that it is meant for
            if not self._busy:
                return False
            try:
                self._connection.send(Cancel())
            except Closed:
                return False
            return True

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return not self._ended and not exited(self.pid)

    @property
    def log_tail(self) -> str:
        """The last lines that the process wrote, at most 16 KiB."""
        return bytes(self._tail).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let the process give its memory back and end; kill it when it does not within seconds."""
        self._closing = True
        self._connection.end()
        self._end(POLITE_S)

    def kill(self) -> None:
        """End the process, and all that it started, now."""
        self._closing = True
        self._connection.end()
        self._end(0.0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: Open | Generate | Classify) -> None:
        try:
            self._connection.send(message)
        except Closed as error:
            raise self._died("taking a request") from error

    def _wait_for(
        self,
        wanted: type[Wanted],
        what: str,
        until_s: float | None,
        deadline_s: float | None,
        on_piece: Callable[[str], None] | None = None,
        on_result: Callable[[Mapping[str, Any]], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Wanted:
        while True:
            reply = self._receive(what, until_s, deadline_s, cancelled)
            if isinstance(reply, Piece):
                if on_piece:
                    on_piece(reply.text)
            elif isinstance(reply, Result):
                if on_result:
                    on_result(reply.data)
            elif isinstance(reply, Failed):
                raise rebuilt(reply)
            elif isinstance(reply, wanted):
                return reply

    def _receive(
        self, what: str, until_s: float | None, deadline_s: float | None, cancelled: Callable[[], bool] | None
    ) -> Reply:
        while True:
            if cancelled is not None and cancelled():
                raise Cancelled(f"{what} was cancelled")
            step_s = until_s
            if cancelled is not None:
                poll_s = time.monotonic() + CANCEL_POLL_S
                step_s = poll_s if until_s is None else min(poll_s, until_s)
            try:
                return self._connection.receive(step_s)
            except TimeoutError:
                if until_s is not None and time.monotonic() >= until_s:
                    self.kill()
                    raise DeadlineExceeded(
                        f"{what} did not end within {deadline_s:g} s; its process was killed"
                    ) from None
            except Closed as error:
                raise self._died(what) from error

    def _died(self, what: str) -> RunnerError:
        if self._closing:
            self._end(POLITE_S)
            return Cancelled(f"{what} was ended: the model was closed")
        self._end(POLITE_S)
        return WorkerDied(*death(what, self._process.returncode, self.log_tail, oom_kills() > self._oom_kills))

    def _keep_tail(self) -> None:
        """Read what the process prints, so that it never waits for a reader, and keep the end of it."""
        output = self._process.stdout
        assert output is not None  # a pipe was asked for
        while data := os.read(output.fileno(), 1 << 16):
            self._tail += data
            del self._tail[:-STDERR_TAIL_BYTES]

    def _end(self, patience_s: float) -> None:
        with self._end_lock:
            if self._ended:
                return
            until_s = time.monotonic() + patience_s
            while not exited(self.pid) and time.monotonic() < until_s:
                time.sleep(0.005)
            with contextlib.suppress(ProcessLookupError):  # not reaped yet, so the number is still this group's
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # nobody may hang with it
                self._process.wait(REAP_S)
            self._drain.join(1.0)  # a grandchild that left the group could hold the pipe
            if self._process.stdout is not None and not self._drain.is_alive():
                self._process.stdout.close()
            self._connection.close()
            self._ended = True


def spawn(fd: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process, with `fd` as its socket, in a session of its own."""
    arguments = ("--fd", str(fd), "--directory", os.getcwd())
    return subprocess.Popen(
        [sys.executable, "-m", "runners.worker", *arguments],
        cwd=PACKAGE_ROOT,
        env=environ,
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def exited(pid: int) -> bool:
    """Whether a child process has ended; it stays to be reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped already


def rebuilt(failed: Failed) -> RunnerError:
    """The error that happened in the process."""
    error = ERRORS.get(failed.code, RunnerError)(failed.reason, failed.remedy)
    error.code = failed.code
    return error


def death(what: str, returncode: int | None, log_tail: str, oom_killer_ran: bool) -> tuple[str, str]:
    """What to say of a process that ended by itself: the reason and the remedy.

    Args:
        what: what it was doing.
        returncode: as `subprocess` tells it, negative for a signal; None when not even SIGKILL ended it.
        log_tail: the last that it printed.
        oom_killer_ran: whether the kernel's OOM killer took any process meanwhile.
    """
    remedy = ""
    if returncode is None:
        how = "does not end, not even by SIGKILL: stuck inside the kernel, in a driver"
        remedy = "reboot the device: its memory is not given back before"
    elif returncode < 0:
        name = signal_name(-returncode)
        how = f"was killed by {name}"
        if name == "SIGKILL":
            how += ": the kernel's OOM killer ran" if oom_killer_ran else " (the OOM killer, or somebody)"
            remedy = "choose a smaller model, quantisation or context, or free memory" if oom_killer_ran else ""
        elif name == "SIGILL":
            remedy = "the runtime was built for another processor: build it for this one (llama.cpp: -DGGML_NATIVE=OFF)"
    else:
        how = f"ended with status {returncode}"
    last = " | ".join(log_tail.splitlines()[-TAIL_LINES:])
    return f"{what}: the model's process {how}" + (f"; it last said: {last}" if last else ""), remedy


def oom_kills() -> int:
    """How many processes the kernel's OOM killer took since boot; 0 where the kernel does not count."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def peak_memory_bytes(pid: int) -> int | None:
    """Largest resident size of a process so far, or None when it is gone. Source: VmHWM, proc(5)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def main() -> None:
    """Be the process of a worker."""
    parser = argparse.ArgumentParser(prog="python -m runners.worker", description="The process of one loaded model.")
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    parser.add_argument("--directory", required=True, help="where relative paths of requests start")
    arguments = parser.parse_args()
    from runners.worker_child import serve

    os.chdir(arguments.directory)
    serve(arguments.fd)


if __name__ == "__main__":
    main()
