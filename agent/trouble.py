"""Connection trouble in words, and a log that does not say the same thing every second."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from agent.config import MqttSection

SAY_AGAIN_S = 60.0


class SayAgain:
    """Logs a sentence when it is new, and the same one only every `SAY_AGAIN_S` seconds, with a count."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last, self._said_s, self._silent = "", 0.0, 0

    def __call__(self, sentence: str) -> None:
        """Say it, or count it."""
        now_s = time.monotonic()
        if sentence == self._last and now_s - self._said_s < SAY_AGAIN_S:
            self._silent += 1
            return
        again = f" ({self._silent} more times since)" if self._silent and sentence == self._last else ""
        self._log.warning("%s%s", sentence, again)
        self._last, self._said_s, self._silent = sentence, now_s, 0

    def reset(self) -> None:
        """The trouble is over: the next sentence is new again."""
        self._last, self._silent = "", 0


def explain(error: Exception, settings: MqttSection) -> str:
    """Why a connection could not be made, with what to do about it where that is known."""
    if isinstance(error, socket.gaierror):
        if error.errno == socket.EAI_NONAME:
            return f"no host is called {settings.host!r}: likely a mistake in mqtt.host"
        return f"the name {settings.host!r} can't be resolved at the moment ({error.strerror})"
    verify = getattr(error, "verify_message", "")
    if verify:
        hint = "; the device's clock may not be set yet" if "not yet valid" in verify else ""
        return f"the broker's certificate was not accepted: {verify}{hint}"
    if isinstance(error, TimeoutError):
        return f"no answer in {settings.connect_timeout_s:g} s"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def explain_refusal(reason: Any, settings: MqttSection) -> str:
    """Why the broker refused us, from CONNACK's reason code."""
    hints = {
        "Bad user name or password": "see mqtt.username and mqtt.password_file",
        "Not authorized": "see mqtt.username, mqtt.password_file and the broker's access list",
        "Unsupported protocol version": f"mqtt.protocol is {settings.protocol!r}",
    }
    hint = hints.get(str(reason), "")
    return f"the broker refused: {reason}" + (f" ({hint})" if hint else "")
