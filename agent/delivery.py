"""Which messages the broker has: what is in flight, what waits to be tried again, and what is given up."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable
from typing import Any

from agent.outbox import Outbox
from agent.records import FINAL, Message

WINDOW = 16  # messages in flight
REFUSED_PAUSE_S = 60.0  # before a message that the broker refused is tried again
LOSSES_BEFORE_GIVING_UP = 5  # connections lost in a row with the same message in flight
NOBODY_LISTENS = 0x10  # MQTT 5, PUBACK: "No matching subscribers"
UNHEARD_TRIES = 8  # of a final state that nobody listened to, 2 + 4 + ... s apart: 72 s in all
UNHEARD_STEP_S = 2.0


class Delivery:
    """The messages of the outbox on one connection after another; used by the MQTT thread alone.

    Attributes:
        window: messages that may be in flight at once.
        packet_limit_bytes: largest packet that the broker takes; 0 for no limit.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.window = WINDOW
        self.packet_limit_bytes = 0
        self._outbox = outbox
        self._inflight: dict[int, Message] = {}
        self._acknowledged: list[int] = []
        self._held: dict[int, float] = {}
        self._losses: collections.Counter[int] = collections.Counter()
        self._unheard: collections.Counter[int] = collections.Counter()

    def connected(self, properties: Any) -> None:
        """Take the broker's limits from CONNACK."""
        self.window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
        self.packet_limit_bytes = getattr(properties, "MaximumPacketSize", 0)

    def due(self) -> Iterable[Message]:
        """What is to be sent now, as far as the window has room."""
        room = self.window - len(self._inflight)
        if room <= 0:
            return
        now_s = time.monotonic()
        self._held = {number: until_s for number, until_s in self._held.items() if until_s > now_s}
        for message in self._outbox.pending(self._taken(), room):
            if self.packet_limit_bytes and message.size_bytes > self.packet_limit_bytes:
                self.give_up(message, f"the broker takes packets of at most {self.packet_limit_bytes} bytes")
            else:
                yield message

    def _taken(self) -> set[int]:
        return {*(message.id for message in self._inflight.values()), *self._held, *self._acknowledged}

    def give_up(self, message: Message, reason: str) -> None:
        """A message that can never be delivered."""
        self._outbox.give_up(message, reason)

    def sent(self, mid: int, message: Message) -> None:
        """It is on its way with this packet identifier."""
        self._inflight[mid] = message

    def acknowledged(self, mid: int, reason: Any) -> tuple[str, str] | None:
        """Take a PUBACK.

        Args:
            mid: its packet identifier.
            reason: paho's reason code.

        Returns: topic, and why the broker refuses it ("" when it does not); None for a message not of the outbox.
        """
        message = self._inflight.pop(mid, None)
        if message is None:
            return None
        self._losses.pop(message.id, None)
        if reason.is_failure:
            self._held[message.id] = time.monotonic() + REFUSED_PAUSE_S
            return message.topic, f"the broker refused a message for {message.topic}: {reason}"
        if reason.value == NOBODY_LISTENS and message.importance == FINAL:
            self._unheard[message.id] += 1
            if self._unheard[message.id] < UNHEARD_TRIES:  # whoever asked may be coming back, like us
                self._held[message.id] = time.monotonic() + UNHEARD_STEP_S * self._unheard[message.id]
                return message.topic, ""
        self._unheard.pop(message.id, None)
        self._acknowledged.append(message.id)
        return message.topic, ""

    def settle(self) -> None:
        """Forget what the broker has, all at once: one write to disk."""
        done, self._acknowledged = self._acknowledged, []
        if done:
            self._outbox.done(done)

    def idle(self) -> bool:
        """Whether nothing is in flight and nothing waits that could be sent now."""
        return not self._inflight and not self._outbox.pending(self._taken(), 1)

    def lost(self, count: bool) -> None:
        """The connection is gone; what was in flight is sent again on the next one.

        Args:
            count: whether the loss may be the fault of the oldest message in flight, which would then keep
                everything behind it back for ever.
        """
        self.settle()
        inflight, self._inflight = self._inflight, {}
        if not inflight or not count:
            return
        oldest = min(inflight.values(), key=lambda message: message.id)
        self._losses[oldest.id] += 1
        if self._losses[oldest.id] >= LOSSES_BEFORE_GIVING_UP:
            del self._losses[oldest.id]
            self.give_up(oldest, f"{LOSSES_BEFORE_GIVING_UP} connections in a row were lost while sending it")
