"""A regular file read in small windows within a budget: what every reader of model files stands on.

Reading, not mapping: a file that is cut while it is read gives a short read here, and a SIGBUS there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from runners.contract import ModelRejected

HEADER_LIMIT_BYTES = 256 << 20  # most that is read of one file; real headers are below 20 MB
U64 = struct.Struct("<Q")
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


class Source:
    """A position in an open file.

    Args:
        descriptor: of a regular file, open for reading; the caller closes it.
        size_bytes: its size.
        name: how messages call it.
        window_bytes: how much is read at once.

    Attributes:
        position: offset of the next byte, 0 <= position <= size_bytes.
    """

    def __init__(self, descriptor: int, size_bytes: int, name: str, window_bytes: int = 1 << 15) -> None:
        self.size_bytes = size_bytes
        self.name = name
        self.position = 0
        self._descriptor = descriptor
        self._window_bytes = window_bytes
        self._window = b""
        self._start = 0
        self._left_bytes = HEADER_LIMIT_BYTES

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size_bytes - self.position

    def truncated(self, needed: int, what: str) -> ModelRejected:
        """The error for `needed` bytes from here, of which there are fewer."""
        return ModelRejected(
            f"{self.name}: {what} at offset {self.position} needs {needed} bytes, and the file ends after "
            f"{self.remaining} more (at {self.size_bytes}): it is truncated or damaged",
            "download or copy the file again, and compare its size and checksum",
        )

    def need(self, count: int, what: str) -> None:
        """Raise `ModelRejected` unless `count` bytes are left; to be asked before memory is taken for them."""
        if count > self.size_bytes - self.position:
            raise self.truncated(count, what)

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes.

        Args:
            count: bounded by the caller: that much memory is used.
            what: what they are, for the message when they are not there.
        """
        self.need(count, what)
        at = self.position - self._start
        if at < 0 or at + count > len(self._window):
            self._fill(count, what)
            at = 0
        self.position += count
        return self._window[at : at + count]

    def skip(self, count: int, what: str) -> None:
        """Go over `count` bytes without reading them."""
        self.need(count, what)
        self.position += count

    def skip_strings(self, count: int, what: str) -> None:
        """Go over `count` strings, each behind its length (64 bits, little-endian); none is decoded."""
        self.need(8 * count, what)
        left, unpack = count, U64.unpack_from
        while left:
            self.need(8 * left, what)
            at = self.position - self._start
            if at < 0 or at + 8 > len(self._window):
                self._fill(8, what)
                at = 0
            window, last = self._window, len(self._window) - 8
            for left in range(left, -1, -1):  # noqa: B020 (the count goes on in the next window)
                if at > last or not left:
                    break
                at += 8 + unpack(window, at)[0]
            if self._start + at > self.size_bytes:
                raise ModelRejected(
                    f"{self.name}: string {count - left} of the {count} of {what} ends at offset {self._start + at}, "
                    f"behind the end of the file at {self.size_bytes}: it is truncated or damaged",
                    "download or copy the file again, and compare its size and checksum",
                )
            self.position = self._start + at

    def peek(self, count: int) -> bytes:
        """Up to `count` of the next bytes; the position stays."""
        position = self.position
        data = self.take(min(count, self.remaining), "the beginning")
        self.position = position
        return data

    def piece(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes at `offset`, outside of window and budget: for who reads the whole file.

        Raises:
            OSError: with the system's own words.
        """
        return os.pread(self._descriptor, count, offset)

    def _fill(self, count: int, what: str) -> None:
        """Make the window begin at the position and hold at least `count` bytes."""
        wanted = min(max(count, self._window_bytes), self.remaining)
        self._left_bytes -= wanted
        if self._left_bytes < 0:
            raise ModelRejected(
                f"{self.name}: {HEADER_LIMIT_BYTES >> 20} MiB were read and its header still goes on with {what}: "
                "no real model has one that large"
            )
        try:
            window = os.pread(self._descriptor, wanted, self.position)
        except OSError as error:
            raise ModelRejected(f"{self.name}: reading at offset {self.position}: {error.strerror}") from error
        self._window, self._start = window, self.position
        if len(window) < count:  # somebody cut the file meanwhile
            self.size_bytes = self.position + len(window)
            raise self.truncated(count, what)


@contextmanager
def open_source(path: str, window_bytes: int = 1 << 15) -> Iterator[Source]:
    """Open a regular file; nothing else is ever opened: a pipe would block, and a device may act on it.

    Raises:
        ModelRejected: it is not there, not readable or not a regular file.
    """
    try:
        _require_regular(path, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _not_open(path, error) from error
    except ValueError as error:  # a NUL, or what is no text, in the path
        raise ModelRejected(f"{path!r} is no file name: {error}") from error
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        yield Source(descriptor, status.st_size, path, window_bytes)
    finally:
        os.close(descriptor)


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in KINDS if test(status.st_mode)), "not a regular file")
    remedy = "name the model file inside of it" if stat.S_ISDIR(status.st_mode) else "name a regular file"
    raise ModelRejected(f"{path} is {kind}, not a model file", remedy)


def _not_open(path: str, error: OSError) -> ModelRejected:
    if error.errno == errno.ENOENT:
        if not path:
            return ModelRejected("no model file was named")
        if os.path.islink(path):
            return ModelRejected(
                f"{path} is a link to {os.readlink(path)}, which does not exist", "fetch the file that it names"
            )
        return ModelRejected(f"{path}: there is no such file", "check the path and the model folder")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ModelRejected(
            f"{path} can't be read by this user: {error.strerror}",
            "allow reading, e.g. chmod a+r on the file and a+x on its folders",
        )
    return ModelRejected(f"{path} can't be opened: {error.strerror}")
