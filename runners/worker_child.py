"""The child side of a worker: owns one loaded model, answers one request at a time over its socket, and ends with it.

It ends by itself when its socket closes, even in the middle of a native call: whoever started it can then be gone
without leaving a process. (PR_SET_PDEATHSIG would do the same for a dead parent, but also fires when only the parent's
thread that started it ends.)
"""

from __future__ import annotations

import functools
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from probes.child import prefer_for_oom_killer
from runners.contract import (
    FinishReason,
    LanguageSession,
    ModelRejected,
    OutOfDeviceMemory,
    RequestRejected,
    RunnerError,
    TensorSession,
)
from runners.framing import Closed, Connection
from runners.messages import (
    Cancel,
    Classify,
    Done,
    Failed,
    Generate,
    Open,
    Opened,
    Piece,
    Request,
    Result,
)
from runners.model import ModelInfo
from runners.timing import Timing

OOM_SCORE = 500  # of 1000: the kernel's OOM killer takes this process before the daemon
GRACE_S = 2.0  # from the end of the conversation to a hard exit


Outcome = TypeVar("Outcome")


class Work(msgspec.Struct):
    """A request, and the flag that cancels it."""

    request: Generate | Classify
    cancelled: threading.Event


def serve(fd: int) -> None:
    """Load the model that the first message names, and answer requests until the socket closes.

    Args:
        fd: of a connected socket.
    """
    prefer_for_oom_killer(OOM_SCORE)
    connection: Connection[Request] = Connection(socket.socket(fileno=fd), Request)  # type: ignore[arg-type]
    work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
    try:
        first = connection.receive()
        if not isinstance(first, Open):
            raise Closed("the first message did not name a model")
        threading.Thread(target=_read, args=(connection, work), daemon=True).start()
        opened = _guard(connection, functools.partial(_open, first))
        if opened is None:
            return
        model, session, told = opened
        connection.send(told)
        while (item := work.get()) is not None:
            done = _guard(connection, functools.partial(_answer, connection, model, session, item))
            if done is not None:
                connection.send(done)
        session.close()
    except Closed:
        return  # nobody is left to tell


def _read(connection: Connection[Request], work: queue.SimpleQueue[Work | None]) -> None:
    """Take messages as they come: a cancel has to be seen while the other thread is busy with a request."""
    cancelled = threading.Event()
    while True:
        try:
            message = connection.receive()
        except Closed:
            cancelled.set()
            work.put(None)
            time.sleep(GRACE_S)
            os._exit(1)
        if isinstance(message, Cancel):
            cancelled.set()
        elif isinstance(message, Generate | Classify):
            cancelled = threading.Event()
            work.put(Work(message, cancelled))


def _guard(connection: Connection[Request], do: Callable[[], Outcome]) -> Outcome | None:
    """What `do` returns; or None after its error was sent: the only place that catches everything."""
    try:
        return do()
    except RunnerError as error:
        failed = Failed(code=error.code, reason=error.reason, remedy=error.remedy)
    except MemoryError as error:
        failed = Failed(code=OutOfDeviceMemory.code, reason=f"the model's process ran out of memory: {error}")
    except Closed:
        raise
    except Exception as error:  # noqa: BLE001 (a bug below must reach whoever asked, as a sentence)
        traceback.print_exc()
        failed = Failed(
            code=RunnerError.code,
            reason=f"the model's process failed unexpectedly: {type(error).__name__}: {error}",
            remedy="this is a bug: report it with the agent's log",
        )
    connection.send(failed)
    return None


def _open(message: Open) -> tuple[ModelInfo, LanguageSession | TensorSession, Opened]:
    from runners.inspect import inspect
    from runners.registry import runner as find_runner

    start_s = time.monotonic()
    model = inspect(message.model_path)
    runner = find_runner(message.runtime)
    verdict = runner.accepts(model)
    if not verdict.accepted:
        raise ModelRejected(verdict.reason, verdict.remedy)
    session = runner.open(model, message.options)
    load_s = time.monotonic() - start_s
    return model, session, Opened(placement=session.placement(), load_s=load_s)


def _answer(connection: Connection[Request], model: ModelInfo, session: Any, work: Work) -> Done:
    """Carry out one request, with a session of either kind."""
    if work.cancelled.is_set():
        return Done(timing=Timing(), placement=session.placement(), finish_reason=FinishReason.CANCELLED)
    if isinstance(work.request, Generate):
        if not hasattr(session, "generate"):
            raise RequestRejected(f"{Path(model.path).name} is not a language model: it can't generate text")
        generation = session.generate(
            work.request.request, lambda piece: connection.send(Piece(text=piece)), work.cancelled.is_set
        )
        return Done(
            timing=generation.timing,
            placement=session.placement(),
            text=generation.text,
            finish_reason=generation.finish_reason,
        )
    if not hasattr(session, "run"):
        raise RequestRejected(f"{Path(model.path).name} is a language model: it can't classify images")
    from runners.vision.pipeline import classify

    timing = classify(
        session, model, work.request, lambda data: connection.send(Result(data=data)), work.cancelled.is_set
    )
    cancelled = work.cancelled.is_set()
    return Done(
        timing=timing,
        placement=session.placement(),
        finish_reason=FinishReason.CANCELLED if cancelled else FinishReason.STOP,
    )
