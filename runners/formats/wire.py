"""Protocol buffers' wire format, read from a file field by field; payloads are gone over, not read.

Source: protobuf.dev, "Encoding". Groups (wire types 3 and 4) are of proto1 and don't occur in ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runners.contract import ModelRejected
from runners.formats.source import Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
FIELDS_LIMIT = 1_000_000  # in one file, as many as 40 000 nodes with attributes have; about a second
MESSAGE_COST = 3  # a message takes as long as this many fields


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        value: of a varint; the number of bytes of anything else, which begin where the source then stands.
    """

    number: int
    wire: int
    value: int


class Wire:
    """Reads messages from a source.

    Attributes:
        source: its position is that of the next byte.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._left = FIELDS_LIMIT

    def fields(self, length: int, what: str) -> Iterator[Field]:
        """The fields of a message that begins here; the caller may read a payload, wholly, partly or not at all.

        Args:
            length: of the message in bytes.
            what: what the message is, for messages to people.

        Raises:
            ModelRejected: damaged, cut off, or more fields than any model has.
        """
        source = self.source
        source.need(length, what)
        self._left -= MESSAGE_COST
        end = source.position + length
        while source.position < end:
            self._left -= 1
            if self._left < 0:
                raise ModelRejected(f"{source.name} has more than {FIELDS_LIMIT} fields: no real model has that many")
            tag = self.varint(what)
            number, wire = tag >> 3, tag & 7
            if wire == VARINT:
                yield Field(number, wire, self.varint(what))
                continue
            if number == 0 or wire not in (BYTES, FIXED64, FIXED32):
                raise self.damaged(f"a field with tag {tag} in {what}, which protocol buffers don't have")
            count = FIXED_BYTES.get(wire)
            size = self.varint(what) if count is None else count
            if size > end - source.position:
                if end == source.size_bytes:
                    raise self._incomplete(size, what)
                raise self.damaged(f"a field of {size} bytes in {what}, of which {end - source.position} are left")
            behind = source.position + size
            yield Field(number, wire, size)
            source.position = behind

    def varint(self, what: str) -> int:
        """An unsigned number of up to 64 bits."""
        take = self.source.take
        byte = take(1, what)[0]
        if byte < 0x80:
            return byte
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            byte = take(1, what)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF
        raise self.damaged(f"a number longer than 64 bits in {what}")

    def text(self, length: int, limit: int, what: str) -> str:
        """A text of `length` bytes, at most `limit` bytes of it."""
        return self.source.take(min(length, limit), what).decode("utf-8", "backslashreplace")

    def damaged(self, what: str) -> ModelRejected:
        """The error for something that can't be, at the present position."""
        return ModelRejected(
            f"{self.source.name} is damaged, or no ONNX model: {what} (offset {self.source.position})",
            "download or copy the file again, and compare its size and checksum",
        )

    def _incomplete(self, size: int, what: str) -> ModelRejected:
        have = self.source.size_bytes
        return ModelRejected(
            f"{self.source.name} is incomplete: it has {have} of at least {self.source.position + size} bytes "
            f"(a field of {what} goes on)",
            "download or copy the rest of it, and compare its checksum",
        )


def signed(value: int) -> int:
    """The number that a 64-bit varint stands for in a field of type int64."""
    return value - (1 << 64) if value >= 1 << 63 else value
