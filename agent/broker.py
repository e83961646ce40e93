"""The embedded broker (`iotcore`: rumqttd in a wheel) on a loopback port, for the demonstration and quick tests."""

from __future__ import annotations

import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

PACKET_LIMIT_BYTES = 4 << 20
# One protocol version per broker: a message with MQTT 5 properties that goes to a 3.1.1 subscriber ends rumqttd 0.20's
# thread for all 3.1.1 connections.
SETTINGS = """\
id = 0
[router]
id = 0
max_connections = 100
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[{listener}]
name = "{listener}"
listen = "{host}:{port}"
next_connection_delay_ms = 1
[{listener}.connections]
connection_timeout_ms = 60000
max_payload_size = {limit}
max_inflight_count = 100
dynamic_filters = true
"""


class BrokerError(Exception):
    """The embedded broker can't be started; the message says why and what to do."""


class Broker:
    """A broker on 127.0.0.1 in a child process; it also ends when this process does. Use `start` in a `with`.

    Attributes:
        host: "127.0.0.1".
        port: of its only listener.
    """

    host = "127.0.0.1"

    def __init__(self, port: int, protocol: str) -> None:
        self.port = port
        self._protocol = protocol
        self._folder = tempfile.TemporaryDirectory(prefix="edge-agent-broker-")
        self._broker: Any = None

    @classmethod
    def start(cls, protocol: str = "5", port: int = 0) -> Broker:
        """A broker that takes connections.

        Args:
            protocol: "5" or "3.1.1".
            port: 0 takes a free one.

        Raises:
            BrokerError: iotcore is not installed or does not start.
        """
        broker = cls(port or free_port(), protocol)
        try:
            broker._start()
        except BaseException:
            broker.close()
            raise
        return broker

    def _start(self) -> None:
        try:
            import iotcore
        except ImportError as error:
            raise BrokerError(
                f"the embedded broker can't be imported ({error}); install it with: pip install 'edge-agent[demo]'"
            ) from error
        listener = "v5.1" if self._protocol == "5" else "v4.1"
        path = Path(self._folder.name) / "rumqttd.toml"
        text = SETTINGS.format(listener=listener, host=self.host, port=self.port, limit=PACKET_LIMIT_BYTES)
        path.write_text(text, encoding="utf-8")
        try:
            self._broker = iotcore.Broker(config_path=str(path))
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the child keeps it: Ctrl-C is ours
            try:
                self._broker.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except (OSError, RuntimeError, ValueError) as error:
            raise BrokerError(f"the embedded broker does not start: {error}") from error

    def close(self) -> None:
        """End the child; can be called twice."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.stop()
        self._folder.cleanup()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
