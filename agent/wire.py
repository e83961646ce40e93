"""What goes over MQTT: commands in; states, status, streams and events out. JSON of these structs, no more."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.clock import boot_id, wall_text
from agent.topics import TopicError, check_level
from probes import wall_clock

SENTENCE_LIMIT = 2000  # characters: a requester's own text comes back in it, and it is kept for good


class State(enum.Enum):
    """The life of a command: accepted, running, then one of the others, for good."""

    ACCEPTED = "accepted"  # recorded on disk; it waits for its turn
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"  # never started: not understood, not allowed, no room
    EXPIRED = "expired"  # never started: too late
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing more follows."""
        return self not in (State.ACCEPTED, State.RUNNING)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a control plane asks. Fields that are not known here are ignored.

    Attributes:
        id: unique for good: a second command of this id is answered with the state of the first.
        verb: "probe", "plan", "run", "cancel".
        arguments: see the verb.
        issued_at: ISO 8601, UTC; for people and for a plausible clock.
        expires_at: ISO 8601, UTC; a command that has not started by then is `expired`.
    """

    id: str
    verb: str
    arguments: dict[str, Any] = {}
    issued_at: str | None = None
    expires_at: str | None = None


class CommandError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command was not carried out.

    Attributes:
        code: stable word for programs, e.g. "interrupted", "busy", "not_on_gpu".
        sentence: what was tried, on what, and what came back.
        remedy: what to do; "" when nothing is known.
    """

    code: str
    sentence: str
    remedy: str = ""


class CommandState(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command.

    Attributes:
        sequence: 0 for the first state of a command, then one more each time; a repeated answer repeats it.
        progress: share done, 0 to 1; None when it can't be told.
        stage: what is being done at the moment, in words.
        result: of the verb, with `succeeded` only.
        at: wall time of the change, ISO 8601, UTC.
        clock_synchronised: whether to believe `at`; None when the device can't tell.
        boot_id: the kernel's name of the boot in which the state was reached.
    """

    id: str
    verb: str
    state: State
    sequence: int
    progress: float | None = None
    stage: str = ""
    result: dict[str, Any] | None = None
    error: CommandError | None = None
    at: str
    clock_synchronised: bool | None = None
    boot_id: str = ""


class Presence(enum.Enum):
    """Whether a device can be reached, and whether it is well."""

    ONLINE = "online"
    OFFLINE = "offline"
    DEGRADED = "degraded"


class StatusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Birth, last will, and changes between; retained.

    Attributes:
        connection: number of this connection: a will belongs to the birth of the same number.
        reasons: sentences on what is not well; empty unless degraded.
        dropped: messages that could not be kept, by kind, since the agent's first start.
        uptime_s: seconds since the agent started, by a clock that never jumps; None in a will.
    """

    state: Presence
    boot_id: str
    connection: int
    agent_version: str
    reasons: tuple[str, ...] = ()
    dropped: Mapping[str, int] = {}
    uptime_s: float | None = None
    at: str
    clock_synchronised: bool | None = None


class StreamChunk(msgspec.Struct, frozen=True, kw_only=True):
    """New text of a command that runs.

    Attributes:
        sequence: 0, 1, 2 ...; a gap is a lost chunk, the whole text stands in the result.
        text: whole characters.
    """

    id: str
    sequence: int
    text: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a pipeline.

    Attributes:
        pipeline: its name, as in the topic.
        sequence: 0, 1, 2 ... within one command.
        command_id: the command that caused it.
        data: as in the JSON lines of `edge-agent run --json`.
    """

    pipeline: str
    sequence: int
    command_id: str
    data: Mapping[str, Any]
    at: str
    clock_synchronised: bool | None = None


class MalformedCommand(Exception):
    """A payload that is no command.

    Attributes:
        sentence: what is wrong with it.
        command_id: its id, if at least that could be read; else "".
        verb: likewise.
    """

    def __init__(self, sentence: str, command_id: str = "", verb: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.command_id = command_id
        self.verb = verb


class _Loose(msgspec.Struct):
    """The two fields that make an answer possible."""

    id: Any = ""
    verb: Any = ""


_encoder = msgspec.json.Encoder()
_command_decoder = msgspec.json.Decoder(Command)


def encode(message: msgspec.Struct) -> bytes:
    """A message as JSON."""
    return _encoder.encode(message)


def decode_command(payload: bytes) -> Command:
    """A payload as a command.

    Raises:
        MalformedCommand: with the sentence to answer with, and the id if there is one.
    """
    try:
        command = _command_decoder.decode(payload)
        check_level(command.id, "the command id")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        command_id, verb = _loosely(payload)
        raise MalformedCommand(f"not a command: {error}", command_id, verb) from error
    except TopicError as error:
        raise MalformedCommand(f"not a command: {error}") from error
    return command


def _loosely(payload: bytes) -> tuple[str, str]:
    """Id and verb of a payload that is otherwise wrong; "" for what can't be read."""
    try:
        loose = msgspec.json.decode(payload, type=_Loose)
        command_id = check_level(loose.id, "the command id") if isinstance(loose.id, str) else ""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TopicError):
        return "", ""
    return command_id, loose.verb[:64] if isinstance(loose.verb, str) else ""


def told(text: str) -> str:
    """Text for a message: of bounded length, and without what UTF-8 has no bytes for (a file name can hold it)."""
    text = text if len(text) <= SENTENCE_LIMIT else f"{text[:SENTENCE_LIMIT]} ... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def make_state(
    command_id: str, verb: str, state: State, sequence: int, error: CommandError | None = None, **fields: Any
) -> CommandState:
    """A state as of now: wall time, clock and boot are filled in, and its error is made fit to be sent."""
    if error is not None:
        error = CommandError(code=told(error.code), sentence=told(error.sentence), remedy=told(error.remedy))
    return CommandState(
        id=command_id,
        verb=verb,
        state=state,
        sequence=sequence,
        at=wall_text(),
        clock_synchronised=wall_clock.by_files(),
        boot_id=boot_id(),
        error=error,
        **fields,
    )
