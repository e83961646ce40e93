"""One command from its acceptance to its end: its thread, and what its verb may use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agent.clock import monotonic_s, wall_text
from agent.expiry import is_late
from agent.records import Message
from agent.verb import Verb, VerbFailed
from agent.wire import Command, CommandError, CommandState, Event, State, StreamChunk, encode, make_state
from probes import wall_clock

if TYPE_CHECKING:
    from agent.commands import Commands

PROGRESS_EVERY_S = 1.0
EVENTS_TOGETHER = 32  # written to disk in one transaction
EVENTS_WAIT_S = 0.5
log = logging.getLogger("agent.commands")


class Activity:
    """A command that is not finished. It is the `agent.verb.Context` of its verb.

    Attributes:
        state: the last one that was told.
        deadline_s: `clock.monotonic_s` at which it is asked to end; infinite until it starts.
        finished: set with the final state.
    """

    def __init__(self, commands: Commands, command: Command, state: CommandState, verb: Verb, arguments: Any) -> None:
        self.command_id = command.id
        self.state = state
        self.verb = verb
        self.config = commands.config
        self.survey = commands.survey
        self.response_topic, self.correlation = "", b""
        self.deadline_s = float("inf")
        self.finished = threading.Event()
        self._commands, self._command, self._arguments = commands, command, arguments
        self._expires_s = float("inf")
        self._end_reason = ""
        self._began = False
        self._lock = threading.RLock()
        self._progress_s = float("-inf")
        self._chunks = self._events = 0
        self._events_kept: list[Message] = []
        self._events_since_s = 0.0

    # -- for `Commands`

    def reply_to(self, response_topic: str, correlation: bytes) -> None:
        """Where states go besides `commands/<id>`; "" for nowhere."""
        self.response_topic, self.correlation = response_topic, correlation

    def set_expiry(self, expires_in_s: float | None) -> None:
        """MQTT 5's message expiry goes on counting while the command waits here."""
        if expires_in_s is not None:
            self._expires_s = monotonic_s() + expires_in_s

    def late(self) -> str:
        """Why it must not start any more, or ""."""
        if monotonic_s() > self._expires_s:
            return "its message expiry passed while it waited"
        return is_late(self._command)

    def start(self, deadline_s: float) -> None:
        """Carry it out in a thread of its own, for at most `deadline_s` seconds."""
        self.deadline_s = monotonic_s() + deadline_s
        self._progress_s = monotonic_s()
        self._deadline_length_s = deadline_s
        threading.Thread(target=self._run, name=f"command-{self.command_id}", daemon=True).start()

    def ask_to_end(self, reason: str) -> None:
        """Let `cancelled` be true; the first reason counts ("cancelled", "deadline", "stopping")."""
        with self._lock:
            self._end_reason = self._end_reason or reason

    def end(self, state: State, error: CommandError | None = None, result: dict[str, Any] | None = None) -> None:
        """Reach a final state; later ones are ignored."""
        self.flush_events()
        self._move(state, error=error, result=result)

    def deadline_error(self) -> CommandError:
        """It took too long."""
        sentence = f"{self.state.verb} took longer than its {self._deadline_length_s:g} s"
        return CommandError(
            code="deadline_exceeded", sentence=sentence, remedy=f"raise commands.{self.state.verb}_deadline_s"
        )

    def interrupted_error(self) -> CommandError:
        """The agent ends."""
        sentence = f"the agent was stopped while the command was {self.state.state.value}"
        return CommandError(code="interrupted", sentence=sentence, remedy="send it again with a new id")

    def _move(self, state: State, **fields: Any) -> None:
        with self._lock:
            if self.finished.is_set():
                return
            starts, self._began = not self._began and state is State.RUNNING, True
            told = make_state(self.command_id, self.state.verb, state, self.state.sequence + 1, **fields)
            if state.final:
                encode(told)  # a result that is no JSON must fail here, while another end can still be told
                self.finished.set()
            self.state = told
            self._commands.moved(self, self.state, starts)

    def _run(self) -> None:
        try:
            self._move(State.RUNNING)
            log.info("command %s (%s) runs", self.command_id, self.state.verb)
            result = self.verb.run(self._arguments, self)
            self.end(State.SUCCEEDED, result=msgspec.to_builtins(result))
        except Exception as error:  # noqa: BLE001  a command that fails must not end the agent
            self._fail(error)
        finally:
            if not self.finished.is_set():  # not even `_fail` came through, or the verb has ended its own thread
                nothing = CommandError(code="internal", sentence=f"{self.state.verb} ended without a result")
                self.end(State.FAILED, nothing)
            log.info("command %s %s", self.command_id, self.state.state.value)
            self._commands.left(self)

    def _fail(self, error: Exception) -> None:
        code, reason = getattr(error, "code", ""), getattr(error, "reason", "")
        told = CommandError(code=str(code), sentence=str(reason), remedy=str(getattr(error, "remedy", "")))
        why = self._end_reason or ("deadline" if monotonic_s() > self.deadline_s else "")
        if code == "cancelled" and why == "deadline":
            self.end(State.FAILED, self.deadline_error())
        elif code == "cancelled" and why == "stopping":
            self.end(State.FAILED, self.interrupted_error())
        elif code == "cancelled":
            self.end(State.CANCELLED, told)
        elif code and reason:  # a VerbFailed, or a RunnerError, whose module the daemon does not import
            log.warning("command %s (%s) failed: %s", self.command_id, self.state.verb, reason)
            self.end(State.FAILED, told)
        else:
            log.exception("command %s (%s)", self.command_id, self.state.verb)
            sentence = f"internal error: {type(error).__name__}: {error}"
            self.end(State.FAILED, CommandError(code="internal", sentence=sentence))

    # -- for the verb: `agent.verb.Context`

    def cancelled(self) -> bool:
        """Whether to stop."""
        return bool(self._end_reason) or monotonic_s() > self.deadline_s

    def stop_if_cancelled(self) -> None:
        """Raise `VerbFailed` with the code "cancelled" if it is to stop."""
        if self.cancelled():
            raise VerbFailed("cancelled", f"{self.state.verb} was cancelled")

    def seconds_left(self) -> float:
        """Until the deadline."""
        return max(0.0, self.deadline_s - monotonic_s())

    def progress(self, stage: str, share: float | None = None) -> None:
        """Tell what is being done."""
        now_s = monotonic_s()
        if now_s - self._progress_s >= PROGRESS_EVERY_S:
            self._progress_s = now_s
            self._move(State.RUNNING, stage=stage, progress=share)

    def stream(self, text: str) -> None:
        """Send new text."""
        chunk = StreamChunk(id=self.command_id, sequence=self._chunks, text=text)
        self._chunks += 1
        self._commands.send_live(self._commands.topics.stream(self.command_id), encode(chunk))

    def event(self, pipeline: str, data: Mapping[str, Any]) -> None:
        """Send one result; a few are written to disk together."""
        event = Event(
            pipeline=pipeline,
            sequence=self._events,
            command_id=self.command_id,
            data=data,
            at=wall_text(),
            clock_synchronised=wall_clock.by_files(),
        )
        self._events += 1
        with self._lock:
            if not self._events_kept:
                self._events_since_s = monotonic_s()
            self._events_kept.append(Message(topic=self._commands.topics.events(pipeline), payload=encode(event)))
        self.flush_events(EVENTS_TOGETHER)

    def flush_events(self, at_least: int = 1) -> None:
        """Write events that wait to disk, if there are so many of them or the oldest has waited long enough."""
        with self._lock:
            waited = monotonic_s() - self._events_since_s > EVENTS_WAIT_S
            if not self._events_kept or (len(self._events_kept) < at_least and not waited):
                return
            kept, self._events_kept = self._events_kept, []
        self._commands.outbox.add(*kept)

    def cancel_command(self, command_id: str) -> str:
        """Ask for another command to end."""
        if command_id == self.command_id:
            raise VerbFailed("not_running", "a cancel command can't cancel itself")
        return self._commands.cancel(command_id)
