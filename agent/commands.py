"""The life of commands: recorded before it is acknowledged, carried out once, and its end told for certain."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agent.activity import EVENTS_TOGETHER, Activity
from agent.clock import monotonic_s
from agent.config import Config
from agent.expiry import TIME_LIMIT, is_late, unreadable_time
from agent.outbox import Outbox
from agent.records import CommandRow, Incoming, Message, last_state
from agent.store import Store, StoreUnavailable
from agent.survey import Survey
from agent.topics import Topics
from agent.verb import Verb, VerbFailed, load_verb
from agent.wire import (
    Command,
    CommandError,
    CommandState,
    MalformedCommand,
    State,
    decode_command,
    encode,
    make_state,
)

GRACE_S = 10.0  # a command that does not end so long after its deadline is given up, its thread left behind
ATTEMPTS = 2  # a repeatable command that took the agent down twice is not tried a third time
CANCEL_WAIT_S = 10.0
log = logging.getLogger("agent.commands")


class Lane:
    """Commands of one verb: those that run and those that wait. A stuck verb blocks no other verb."""

    def __init__(self) -> None:
        self.waiting: collections.deque[Activity] = collections.deque()
        self.active: dict[str, Activity] = {}


class Commands:
    """All commands of one agent."""

    def __init__(
        self,
        config: Config,
        topics: Topics,
        store: Store,
        outbox: Outbox,
        survey: Survey,
        send_live: Callable[[str, bytes], None],
        find_verb: Callable[[str], Verb | None] = load_verb,
    ) -> None:
        """Prepare; nothing is carried out before `start`.

        Args:
            config: what is allowed, and the deadlines.
            topics: of this device.
            store: where commands are recorded.
            outbox: where their states go.
            survey: the device's report, for verbs.
            send_live: publishes with QoS 0, for streams.
            find_verb: verb by name.
        """
        self.config, self.topics, self.survey = config, topics, survey
        self.outbox, self.send_live = outbox, send_live
        self._store, self._find_verb = store, find_verb
        self._lock = threading.RLock()
        self._lanes: dict[str, Lane] = collections.defaultdict(Lane)
        self._known: dict[str, Activity] = {}  # not finished, by id
        self._unrecorded: dict[str, CommandState] = {}  # the disk did not take these
        self._stopping = False
        self._started = False
        self._settled = False
        self.beat_s = time.monotonic()

    # -- coming in

    def receive(self, incoming: Incoming) -> bool:
        """Take a payload from the command topic.

        Returns: whether it has been dealt with for certain and may be acknowledged to the broker.
        """
        if self._stopping:
            return False
        try:
            if len(incoming.payload) > self.config.commands.payload_limit_bytes:
                limit = self.config.commands.payload_limit_bytes
                raise MalformedCommand(f"{len(incoming.payload)} bytes, at most {limit} are allowed")
            command = decode_command(incoming.payload)
        except MalformedCommand as error:
            if not error.command_id:
                log.warning("ignored a payload of %d bytes: %s", len(incoming.payload), error.sentence)
                return True
            command = Command(id=error.command_id, verb=error.verb or "unknown")
            self._refuse(command, incoming, "malformed", error.sentence)
            return True
        known = self._recorded(command.id)
        if known is not None:
            self._repeat(known, incoming)
        else:
            self._take(command, incoming)
        return True

    def _take(self, command: Command, incoming: Incoming) -> None:
        """Judge a new command: it is recorded as accepted, or as why not."""
        verb = self._find_verb(command.verb)
        if incoming.retained:
            return self._refuse(
                command, incoming, "retained", "a retained command is not carried out: nobody asks for it now"
            )
        if verb is None:
            allowed = ", ".join(self.config.commands.allowed)
            return self._refuse(
                command, incoming, "unknown_verb", f"no verb {command.verb[:64]!r}; this agent knows {allowed}"
            )
        if command.verb not in self.config.commands.allowed:
            return self._refuse(
                command, incoming, "not_allowed", f"{command.verb} is not in commands.allowed of this device"
            )
        try:
            arguments = msgspec.convert(command.arguments, verb.Arguments)
        except (msgspec.ValidationError, ValueError) as error:
            return self._refuse(command, incoming, "bad_arguments", f"{command.verb}: {error}")
        unclear = unreadable_time(command)
        if unclear:
            return self._refuse(command, incoming, "malformed", unclear)
        late = is_late(command)
        if late:
            return self._refuse(command, incoming, "expired", late, State.EXPIRED)
        with self._lock:
            lane = self._lanes[command.verb]
            if len(lane.waiting) >= self.config.commands.queue_limit and len(lane.active) >= verb.CONCURRENCY:
                sentence = f"{len(lane.active)} {command.verb} commands run and {len(lane.waiting)} wait already"
                return self._refuse(command, incoming, "busy", sentence)
            self._accept(command, incoming, verb, arguments)

    def _accept(self, command: Command, incoming: Incoming, verb: Verb, arguments: Any) -> None:
        state = make_state(command.id, command.verb, State.ACCEPTED, 0)
        activity = Activity(self, command, state, verb, arguments)
        activity.reply_to(self._response_topic(incoming.response_topic), incoming.correlation)
        activity.set_expiry(incoming.expires_in_s)
        recorded = self._record_new(command, incoming, state, volatile=verb.REPEATABLE)
        if recorded:
            self._known[command.id] = activity
            self._lanes[command.verb].waiting.append(activity)
            if self._started:
                self._pump(command.verb)

    def _record_new(self, command: Command, incoming: Incoming, state: CommandState, volatile: bool = True) -> bool:
        """Write a command's first state; without a disk only what is `volatile` goes on.

        Returns: whether the command goes on.
        """
        response_topic = self._response_topic(incoming.response_topic)
        row = CommandRow(
            id=command.id,
            verb=command.verb,
            arguments=b"{}" if state.state.final else msgspec.json.encode(command.arguments),
            issued_at=command.issued_at and command.issued_at[:TIME_LIMIT],
            expires_at=command.expires_at and command.expires_at[:TIME_LIMIT],
            state=state.state.value,
            sequence=state.sequence,
            state_json=encode(state),
            response_topic=response_topic,
            correlation=incoming.correlation,
        )
        messages = self._messages(state, response_topic, incoming.correlation)
        if volatile:
            self.outbox.record(lambda kept: self._store.add_command(row, kept), messages)
            return True
        try:
            known = self._store.add_command(row, messages)
            self.outbox.wake()
            return known is None
        except StoreUnavailable as error:
            sentence = f"can't be recorded, so it could be carried out twice: {error.reason}"
            self._refuse(command, incoming, "store_unavailable", sentence, remedy="make room on the device's disk")
            return False

    def _refuse(
        self,
        command: Command,
        incoming: Incoming,
        code: str,
        sentence: str,
        state: State = State.REJECTED,
        remedy: str = "",
    ) -> None:
        log.warning("command %s (%s) %s: %s", command.id, command.verb[:64], state.value, sentence)
        error = CommandError(code=code, sentence=sentence, remedy=remedy)
        self._record_new(command, incoming, make_state(command.id, command.verb[:64], state, 0, error=error))

    def _recorded(self, command_id: str) -> CommandState | None:
        """The last state of a command that is known already."""
        with self._lock:
            if command_id in self._known:
                return self._known[command_id].state
            if command_id in self._unrecorded:
                return self._unrecorded[command_id]
        try:
            row = self._store.find_command(command_id)
        except StoreUnavailable:
            return None  # whatever must not be doubled is refused when it is recorded
        return None if row is None else last_state(row)

    def _repeat(self, state: CommandState, incoming: Incoming) -> None:
        """Answer a command that has been here before with what is known of it."""
        log.info("command %s again: %s, not carried out a second time", state.id, state.state.value)
        if not incoming.retained:  # one that the broker keeps would be answered at every connect
            topic = self._response_topic(incoming.response_topic)
            self.outbox.add(*self._messages(state, topic, incoming.correlation))

    def _response_topic(self, topic: str) -> str:
        """Where the requester wants answers; not on our own command topic, not on a pattern."""
        unfit = not topic or set("+#\0") & set(topic) or topic.startswith("$") or topic == self.topics.commands
        return "" if unfit else topic

    def _messages(self, state: CommandState, response_topic: str, correlation: bytes) -> list[Message]:
        payload = encode(state)
        importance = 3 if state.state.final else 1
        messages = [Message(topic=self.topics.command_state(state.id), payload=payload, importance=importance)]
        if response_topic:
            messages.append(
                Message(topic=response_topic, payload=payload, importance=importance, correlation=correlation)
            )
        return messages

    # -- carrying out

    def start(self) -> None:
        """Settle what an earlier life left unfinished, then begin."""
        self._settle_all()
        if not self._settled:
            log.error("can't tell which commands were interrupted: %s", self.outbox.unavailable)
        with self._lock:
            self._started = True
            for verb in list(self._lanes):
                self._pump(verb)

    def _settle_all(self) -> None:
        """Settle what an earlier life left unfinished, once the disk tells."""
        try:
            rows = self._store.unfinished_commands()
        except StoreUnavailable as error:
            self.outbox.unavailable = self.outbox.unavailable or error.reason
            return
        with self._lock:
            self._settled = True
            for row in rows:
                if row.id not in self._known and row.id not in self._unrecorded:
                    self._settle(row)
                    if self._started:
                        self._pump(row.verb)

    def _settle(self, row: CommandRow) -> None:
        verb = self._find_verb(row.verb)
        state = last_state(row)
        again = verb is not None and verb.REPEATABLE and row.attempts < ATTEMPTS
        try:
            arguments = msgspec.convert(msgspec.json.decode(row.arguments), verb.Arguments) if verb and again else None
        except msgspec.MsgspecError:  # another version of the agent took it
            again = False
        if verb is not None and again:
            command = Command(id=row.id, verb=row.verb, issued_at=row.issued_at, expires_at=row.expires_at)
            activity = Activity(self, command, state, verb, arguments)
            activity.reply_to(row.response_topic, row.correlation)
            self._known[row.id] = activity
            self._lanes[row.verb].waiting.append(activity)
            log.info("command %s (%s) was interrupted and is carried out again", row.id, row.verb)
            return
        sentence = f"the agent ended while the command was {row.state}; what it had done by then is not known"
        error = CommandError(code="interrupted", sentence=sentence, remedy="send it again with a new id")
        ended = make_state(row.id, row.verb, State.FAILED, row.sequence + 1, error=error)
        log.warning("command %s (%s) failed: interrupted", row.id, row.verb)
        self._write(ended, row.response_topic, row.correlation)

    def _pump(self, verb: str) -> None:
        """Start what may start."""
        with self._lock:
            lane = self._lanes[verb]
            while lane.waiting and not self._stopping and len(lane.active) < lane.waiting[0].verb.CONCURRENCY:
                activity = lane.waiting.popleft()
                late = activity.late()
                if late:
                    activity.end(State.EXPIRED, CommandError(code="expired", sentence=late))
                    continue
                lane.active[activity.command_id] = activity
                activity.start(getattr(self.config.commands, f"{verb}_deadline_s", 300.0))

    def moved(self, activity: Activity, state: CommandState, starts: bool) -> None:
        """Record and publish an activity's new state; called by the activity."""
        self._write(state, activity.response_topic, activity.correlation, starts)
        if state.state.final:
            with self._lock:
                self._known.pop(state.id, None)

    def left(self, activity: Activity) -> None:
        """An activity's thread has ended, or is given up: the next one may start."""
        with self._lock:
            self._lanes[activity.state.verb].active.pop(activity.command_id, None)
            self._pump(activity.state.verb)

    def _write(self, state: CommandState, response_topic: str, correlation: bytes, starts: bool = False) -> None:
        def write(messages: list[Message]) -> None:
            self._store.update_command(state.id, state.state.value, state.sequence, encode(state), messages, starts)

        with self._lock:
            if self.outbox.record(write, self._messages(state, response_topic, correlation)):
                self._unrecorded.pop(state.id, None)
            else:
                self._unrecorded[state.id] = state

    # -- cancelling, deadlines, the end

    def cancel(self, command_id: str) -> str:
        """Ask for a command to end; see `agent.verb.Context.cancel_command`."""
        with self._lock:
            activity = self._known.get(command_id)
            if activity is not None and activity in self._lanes[activity.state.verb].waiting:
                self._lanes[activity.state.verb].waiting.remove(activity)
                activity.end(State.CANCELLED, CommandError(code="cancelled", sentence="cancelled before it began"))
                return activity.state.state.value
        if activity is None:
            known = self._recorded(command_id)
            if known is None:
                raise VerbFailed("unknown_command", f"no command {command_id!r} was received by this device")
            raise VerbFailed("not_running", f"command {command_id} is not running: it has {known.state.value} already")
        activity.ask_to_end("cancelled")
        activity.finished.wait(CANCEL_WAIT_S)
        return activity.state.state.value

    def tick(self) -> None:
        """Once a second: deadlines, commands that waited too long, states the disk did not take."""
        self.beat_s = time.monotonic()
        if not self._settled:
            self._settle_all()
        now_s = monotonic_s()
        with self._lock:
            lanes = [(lane, list(lane.active.values()), list(lane.waiting)) for lane in self._lanes.values()]
        for lane, active, waiting in lanes:
            for activity in active:
                activity.flush_events(EVENTS_TOGETHER)
                if now_s > activity.deadline_s + GRACE_S:
                    self._abandon(activity)
                elif now_s > activity.deadline_s:
                    activity.ask_to_end("deadline")
            for activity in waiting:
                late = activity.late()
                with self._lock:
                    if late and activity in lane.waiting:
                        lane.waiting.remove(activity)
                        activity.end(State.EXPIRED, CommandError(code="expired", sentence=late))
        self._record_late()

    def _abandon(self, activity: Activity) -> None:
        log.error("command %s does not end; its thread is left behind", activity.command_id)
        activity.end(State.FAILED, activity.deadline_error())
        self.left(activity)

    def _record_late(self) -> None:
        with self._lock:
            for state in list(self._unrecorded.values()):
                try:
                    self._store.update_command(state.id, state.state.value, state.sequence, encode(state), [])
                except StoreUnavailable:
                    return
                del self._unrecorded[state.id]

    def stop(self, timeout_s: float) -> None:
        """End everything: what runs is told to, and is recorded as interrupted; no new command is taken."""
        with self._lock:
            self._stopping = True
            active = [activity for lane in self._lanes.values() for activity in lane.active.values()]
            waiting = [activity for lane in self._lanes.values() for activity in lane.waiting]
        for activity in active:
            activity.ask_to_end("stopping")
        until_s = time.monotonic() + timeout_s
        for activity in active:
            activity.finished.wait(max(0.0, until_s - time.monotonic()))
        for activity in active + [one for one in waiting if not one.verb.REPEATABLE]:
            activity.end(State.FAILED, activity.interrupted_error())
