"""The other end of the wire, as small as it can be: commands one device and waits for what becomes of it."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from agent.topics import Topics
from agent.wire import Command, CommandState, Event, StatusMessage, StreamChunk, encode


class NoAnswer(Exception):
    """The device did not do in time what was waited for; the message says what."""


class ControlPlane:
    """A connection to a broker on behalf of somebody who commands one device.

    Attributes:
        states: every state that was published, in the order of arrival.
    """

    def __init__(self, host: str, port: int, topics: Topics) -> None:
        self.topics = topics
        self.status: StatusMessage | None = None
        self.capabilities: bytes | None = None
        self.states: list[CommandState] = []
        self.on_chunk: Callable[[StreamChunk], None] = lambda chunk: None
        self.on_event: Callable[[Event], None] = lambda event: None
        self._changed = threading.Condition()
        self._errors: queue.Queue[str] = queue.Queue()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"control-{uuid.uuid4().hex[:8]}",
            protocol=mqtt.MQTTv5,
        )
        self._client.on_connect = self._subscribe
        self._client.on_message = self._receive
        self._client.connect(host, port)
        self._client.loop_start()

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _subscribe(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(self.topics.all_of_device(), qos=1)

    def _receive(self, _client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        kind = (self.topics.parse(message.topic) or ("", ""))[0]
        try:
            self._take(kind, bytes(message.payload))
        except msgspec.MsgspecError as error:
            self._errors.put(f"{message.topic}: {error}")

    def _take(self, kind: str, payload: bytes) -> None:
        if kind == "stream":
            self.on_chunk(msgspec.json.decode(payload, type=StreamChunk))
        elif kind == "events":
            self.on_event(msgspec.json.decode(payload, type=Event))
        with self._changed:
            if kind == "status":
                self.status = msgspec.json.decode(payload, type=StatusMessage)
            elif kind == "capabilities":
                self.capabilities = payload
            elif kind == "command_state":
                self.states.append(msgspec.json.decode(payload, type=CommandState))
            self._changed.notify_all()

    def send(self, verb: str, arguments: dict[str, Any], command_id: str = "") -> str:
        """Publish a command; returns its id."""
        command = Command(id=command_id or f"{verb}-{uuid.uuid4().hex[:8]}", verb=verb, arguments=arguments)
        self._client.publish(self.topics.commands, encode(command), qos=1)
        return command.id

    def wait(self, what: str, ready: Callable[[], Any], timeout_s: float) -> Any:
        """Wait until `ready()` gives something true, and return it.

        Raises:
            NoAnswer: not within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (value := ready()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NoAnswer(f"no {what} within {timeout_s:.0f} s")
                self._changed.wait(min(left, 0.5))
        if not self._errors.empty():
            raise NoAnswer(f"a message that is not as agreed: {self._errors.get()}")
        return value

    def states_of(self, command_id: str) -> list[CommandState]:
        """What was published about one command so far."""
        return [state for state in self.states if state.id == command_id]

    def end_of(self, command_id: str, timeout_s: float) -> CommandState:
        """Wait for a command's last state.

        Raises:
            NoAnswer: it did not come in time.
        """

        def final() -> CommandState | None:
            return next((state for state in self.states_of(command_id) if state.state.final), None)

        end: CommandState = self.wait(f"end of command {command_id}", final, timeout_s)
        return end
