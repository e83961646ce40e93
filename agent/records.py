"""What passes between the parts of the daemon: a message that came in, a command on record, a message to go out."""

from __future__ import annotations

import msgspec

from agent.wire import CommandError, CommandState, State, encode, make_state

FINAL = 3  # importance of a command's final state


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came in on the command topic.

    Attributes:
        retained: the broker had kept it: nobody asks for it now.
        expires_in_s: what is left of MQTT 5's message expiry; None without.
    """

    payload: bytes
    retained: bool = False
    response_topic: str = ""
    correlation: bytes = b""
    expires_in_s: float | None = None


class CommandRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded command.

    Attributes:
        arguments: JSON.
        state: of `wire.State`, as text.
        state_json: the last `CommandState`, as published.
        attempts: how often it was started.
        response_topic: where the requester wants states besides `commands/<id>`; "" for nowhere.
    """

    id: str
    verb: str
    arguments: bytes
    issued_at: str | None = None
    expires_at: str | None = None
    state: str
    sequence: int
    state_json: bytes
    attempts: int = 0
    response_topic: str = ""
    correlation: bytes = b""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the broker, kept until the broker has it.

    Attributes:
        id: ascending; negative for a message that could not be written to disk. None before it is kept.
        importance: what is dropped first when there is no room: 0 events, 1 progress, 2 reports, 3 final states.
        correlation: MQTT 5 correlation data; b"" for none.
    """

    topic: str
    payload: bytes
    retain: bool = False
    importance: int = 0
    correlation: bytes = b""
    id: int = 0

    @property
    def size_bytes(self) -> int:
        """What it counts against the limit."""
        return len(self.payload) + len(self.topic) + len(self.correlation) + 64


def last_state(row: CommandRow) -> CommandState:
    """A command's recorded state; put together anew where the record can't be read (another version, a bad disk)."""
    try:
        return msgspec.json.decode(row.state_json, type=CommandState)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        known = {state.value: state for state in State}
        sentence = f"the command was {row.state} once; the rest of its record can't be read"
        error = CommandError(code="record_unreadable", sentence=sentence)
        return make_state(row.id, row.verb, known.get(row.state, State.FAILED), row.sequence, error=error)


def without_result(message: Message, why: str) -> Message | None:
    """A command's final state that can't be delivered whole, without its result: its end must still be told.

    Args:
        message: what could not be delivered.
        why: in words.

    Returns: None when this is no such state, or there is no result to leave out.
    """
    if message.importance < FINAL:
        return None
    try:
        state = msgspec.json.decode(message.payload, type=CommandState)
    except msgspec.MsgspecError:
        return None
    if state.result is None:
        return None
    told = f"the result, {len(message.payload)} bytes with all, could not be sent: {why}"
    return msgspec.structs.replace(
        message, id=0, payload=encode(msgspec.structs.replace(state, result=None, stage=told))
    )
