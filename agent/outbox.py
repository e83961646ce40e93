"""Messages on their way to the broker: on disk where that works, in memory where it does not, bounded in both."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Collection

import msgspec

from agent.records import Message, without_result
from agent.store import Store, StoreUnavailable

VOLATILE_LIMIT_BYTES = 1 << 20  # of messages that could not be written to disk
BOUND_EVERY_MESSAGES = 64
log = logging.getLogger("agent.outbox")


class Outbox:
    """A queue that survives. Messages leave it when the broker has acknowledged them, not when they are sent.

    Attributes:
        unavailable: why nothing can be written to disk at the moment; "" when it can.
        dropped: messages that were given up, by kind.
    """

    def __init__(self, store: Store, limit_bytes: int, age_s: float) -> None:
        self.unavailable = ""
        self.dropped: collections.Counter[str] = collections.Counter()
        self._store = store
        self._limit_bytes = limit_bytes
        self._age_s = age_s
        self._lock = threading.Lock()
        self._volatile: collections.OrderedDict[int, Message] = collections.OrderedDict()
        self._volatile_bytes = 0
        self._next_volatile_id = -1
        self._acknowledged: set[int] = set()  # sent, but the disk did not take the deletion
        self._since_bound = 0
        self.wake: Callable[[], None] = lambda: None

    def record(self, write: Callable[[list[Message]], object], messages: list[Message]) -> bool:
        """Write something to the store in one transaction with the messages that tell of it.

        Args:
            write: a method of the store that takes the messages.
            messages: kept in memory when the store can't take them.

        Returns: whether it is on disk.
        """
        written = True
        try:
            write(messages)
            self._say("")
        except StoreUnavailable as error:
            written = False
            self._say(error.reason)
            self._keep_in_memory(messages)
        self._since_bound += len(messages)
        if self._since_bound >= BOUND_EVERY_MESSAGES:
            self.bound()
        self.wake()
        return written  # not `unavailable`: another thread may have changed that by now

    def add(self, *messages: Message) -> None:
        """Keep messages until the broker has them."""
        self.record(self._store.add_messages, list(messages))

    def pending(self, skip: Collection[int], limit: int) -> list[Message]:
        """Messages not acknowledged yet, in order; those that are only in memory come last.

        Args:
            skip: ids that are in flight already or are to wait.
            limit: at most so many.
        """
        left_out = {*skip, *self._acknowledged}
        try:
            kept = self._store.pending_messages(limit, left_out)
        except StoreUnavailable as error:
            self._say(error.reason)
            kept = []
        with self._lock:
            kept += self._volatile.values()
        return [message for message in kept if message.id not in left_out][:limit]

    def done(self, ids: Collection[int]) -> None:
        """Forget messages: the broker has them."""
        with self._lock:
            for number in ids:
                message = self._volatile.pop(number, None)
                self._volatile_bytes -= message.size_bytes if message else 0
        self._acknowledged.update(number for number in ids if number > 0)
        if not self._acknowledged:
            return
        try:
            self._store.delete_messages(sorted(self._acknowledged))
            self._acknowledged.clear()
        except StoreUnavailable as error:
            self._say(error.reason)

    def give_up(self, message: Message, reason: str) -> None:
        """Drop a message that can never be delivered, say so and count it; a command's end is told in short instead."""
        shorter = without_result(message, reason)
        if shorter is not None:
            self.add(shorter)
        log.error("dropped a message of %d bytes for %s: %s", len(message.payload), message.topic, reason)
        self.dropped["undeliverable"] += 1
        self.done([message.id])

    def bound(self) -> None:
        """Keep within bytes and age; what is dropped is counted."""
        self._since_bound = 0
        try:
            dropped = self._store.bound_messages(self._limit_bytes, self._age_s)
        except StoreUnavailable as error:
            self._say(error.reason)
            return
        if dropped:
            self.dropped.update(dropped)
            log.warning("outbox over its limits, dropped: %s", ", ".join(f"{n} {k}" for k, n in dropped.items()))

    def check_disk(self) -> None:
        """Try a small write, so that `unavailable` is true of now."""
        try:
            self._store.set_value("last_check", "")
            self._say("")
        except StoreUnavailable as error:
            self._say(error.reason)

    def _keep_in_memory(self, messages: list[Message]) -> None:
        with self._lock:
            for message in messages:
                kept = msgspec.structs.replace(message, id=self._next_volatile_id)
                self._volatile[kept.id] = kept
                self._next_volatile_id -= 1
                self._volatile_bytes += kept.size_bytes
            while self._volatile_bytes > VOLATILE_LIMIT_BYTES:
                _, oldest = self._volatile.popitem(last=False)
                self._volatile_bytes -= oldest.size_bytes
                self.dropped["no_disk"] += 1

    def _say(self, reason: str) -> None:
        """One line per change, not one per failed write."""
        if reason and not self.unavailable:
            log.error("can't write: %s; messages are kept in memory, and new runs are refused", reason)
        elif self.unavailable and not reason:
            log.warning("writing to disk works again")
        self.unavailable = reason
