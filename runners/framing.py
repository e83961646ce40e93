"""Messages over a socket: MessagePack, each behind its length in 4 bytes, big-endian."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from typing import Generic, TypeVar

import msgspec

from runners.contract import RequestRejected
from runners.messages import FRAME_LIMIT_BYTES

Message = TypeVar("Message")
HEADER = struct.Struct(">I")
READ_BYTES = 1 << 16


class Closed(Exception):
    """The other side is gone, between messages or in the middle of one."""


class Connection(Generic[Message]):
    """One side of a conversation; one thread may receive while others send.

    Args:
        stream: a connected stream socket; the connection owns it.
        incoming: the type, often a union of tagged structs, of what is received.
    """

    def __init__(self, stream: socket.socket, incoming: type[Message]) -> None:
        self._stream = stream
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._send_lock = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message.

        Raises:
            RequestRejected: it is larger than `FRAME_LIMIT_BYTES`; nothing was sent.
            Closed: the other side is gone.
        """
        data = self._encoder.encode(message)
        if len(data) > FRAME_LIMIT_BYTES:
            raise RequestRejected(
                f"a message of {len(data)} bytes does not fit into the {FRAME_LIMIT_BYTES} bytes "
                "that a model's process takes at once",
                "send less text, or fewer files, in one request",
            )
        try:
            with self._send_lock:
                self._stream.sendall(HEADER.pack(len(data)) + data)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, deadline_s: float | None = None) -> Message:
        """The next message.

        Args:
            deadline_s: when to stop waiting, on the monotonic clock; None waits for ever. What has come of a message
                until then is kept.

        Raises:
            TimeoutError: nothing whole has come by then.
            Closed: the other side is gone, or what it sent is not a message.
        """
        length = HEADER.unpack(self._take(HEADER.size, deadline_s, keep=True))[0]
        if length > FRAME_LIMIT_BYTES:
            raise Closed(f"a message of {length} bytes was announced")
        data = self._take(HEADER.size + length, deadline_s)[HEADER.size :]
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Closed(f"what came is not a message: {error}") from error

    def end(self) -> None:
        """Tell the other side that nothing more will come, and wake up who receives here."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was quicker

    def close(self) -> None:
        """Give the socket back."""
        self._stream.close()

    def _take(self, count: int, deadline_s: float | None, keep: bool = False) -> bytes:
        while len(self._buffer) < count:
            self._wait(deadline_s)
            try:
                data = self._stream.recv(READ_BYTES)
            except OSError as error:
                raise Closed(str(error)) from error
            if not data:
                raise Closed("the other side ended the conversation")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        if not keep:
            del self._buffer[:count]
        return taken

    def _wait(self, deadline_s: float | None) -> None:
        # poll, not settimeout: that would put the same time limit on a send in another thread
        if deadline_s is None:
            return
        ready = select.poll()
        try:
            ready.register(self._stream, select.POLLIN)
        except ValueError as error:
            raise Closed("this side was closed") from error
        if not ready.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            raise TimeoutError
