"""The only place that spells topics: `<prefix>/<device>/...`, built and taken apart."""

from __future__ import annotations

import msgspec

LEVEL_LIMIT = 128  # characters of a device id, command id or pipeline name
TOPIC_LIMIT_BYTES = 65535  # MQTT 3.1.1 section 1.5.3


class TopicError(ValueError):
    """A name that can't stand in a topic; the message says why."""


def check_level(name: str, what: str) -> str:
    """`name`, if it can be one level of a topic.

    Raises:
        TopicError: it is empty, too long, "." or "..", or has one of `/ + # $`, white space or a control character.
    """
    if not name:
        raise TopicError(f"{what} is empty")
    if len(name) > LEVEL_LIMIT:
        raise TopicError(f"{what} has {len(name)} characters, at most {LEVEL_LIMIT} are allowed")
    if name in (".", ".."):  # a command's id also names a folder
        raise TopicError(f"{what} {name!r} is no name")
    for character in name:
        if character in "/+#$" or not character.isprintable() or character.isspace():
            raise TopicError(f"{what} {name!r} has {character!r}, which can't stand in a topic level")
    return name


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of one device.

    Attributes:
        prefix: one or more levels, e.g. "edge/v1".
        device_id: one level.
    """

    prefix: str
    device_id: str

    def __post_init__(self) -> None:
        """Raise `TopicError` for names that can't stand in a topic."""
        for level in self.prefix.split("/"):
            check_level(level, "a level of the topic prefix")
        check_level(self.device_id, "the device id")

    @property
    def base(self) -> str:
        """What stands before every topic of this device, without a slash at its end."""
        return f"{self.prefix}/{self.device_id}"

    @property
    def status(self) -> str:
        """Online, offline, degraded; retained."""
        return f"{self.base}/status"

    @property
    def capabilities(self) -> str:
        """The capability report; retained."""
        return f"{self.base}/capabilities"

    @property
    def commands(self) -> str:
        """Where commands come in."""
        return f"{self.base}/commands"

    def command_state(self, command_id: str) -> str:
        """What became of one command."""
        return f"{self.base}/commands/{check_level(command_id, 'the command id')}"

    def stream(self, command_id: str) -> str:
        """Text or progress of one command while it runs."""
        return f"{self.base}/streams/{check_level(command_id, 'the command id')}"

    def events(self, pipeline: str) -> str:
        """Results of one pipeline."""
        return f"{self.base}/events/{check_level(pipeline, 'the pipeline')}"

    def all_of_device(self) -> str:
        """A subscription to everything this device publishes."""
        return f"{self.base}/#"

    def parse(self, topic: str) -> tuple[str, str] | None:
        """Take a topic of this device apart.

        Returns: its kind ("status", "capabilities", "commands", "command_state", "stream", "events") and
            the name at its end ("" where there is none), or None for a topic of somebody else.
        """
        if not topic.startswith(self.base + "/"):
            return None
        kind, *rest = topic[len(self.base) + 1 :].split("/")
        if not rest:
            return (kind, "") if kind in ("status", "capabilities", "commands") else None
        kinds = {"commands": "command_state", "streams": "stream", "events": "events"}
        return (kinds[kind], rest[0]) if kind in kinds and len(rest) == 1 and rest[0] else None
