"""The only place that speaks MQTT: one thread, one connection, paho-mqtt 2 with MQTT 5 or 3.1.1.

All calls into paho are made by that thread (its "external event loop" interface), so nothing needs a lock. Each
attempt takes a fresh paho client: what was not acknowledged is in the outbox, and is sent again from there.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from agent.config import MqttSection
from agent.delivery import Delivery
from agent.outbox import Outbox
from agent.paho import connect_arguments, import_paho, make_client, make_properties
from agent.records import Incoming, Message
from agent.topics import Topics
from agent.trouble import SayAgain, explain, explain_refusal

FIRST_PAUSE_S = 1.0
STEADY_S = 30.0  # a connection that stood so long was a good one: the next pause starts small again
DROPS_BEFORE_OLDER_PROTOCOL = 2  # connections dropped before CONNACK: how MQTT 3.1.1 brokers answer MQTT 5
SHORT_S = 10.0  # a connection that was lost so soon, SHORT_LIVES times in a row, has a cause that lasts
SHORT_LIVES = 3
TAKEN_OVER = 0x8E  # MQTT 5, DISCONNECT: "Session taken over"; not every broker says so
TWIN = "; another agent seems to use the same agent.device_id"
LIVE_LIMIT = 2000  # QoS 0 messages waiting for the socket
TURN_S = 1.0
log = logging.getLogger("agent.mqtt")


class Mqtt:
    """The connection to the broker; kept up until `stop`.

    Attributes:
        connected: whether the broker has accepted us and not gone since.
        trouble: why not; "" when connected or before the first attempt.
        protocol: "5" or "3.1.1", as last tried.
        beat_s: monotonic time of the thread's last turn, for the watchdog.
        refusals: sentences on what the broker does not let us do.
    """

    def __init__(
        self,
        settings: MqttSection,
        topics: Topics,
        outbox: Outbox,
        *,
        status: Callable[[bool, int], bytes],
        next_connection: Callable[[], int],
        on_command: Callable[[Incoming], bool],
        on_connected: Callable[[bool], None],
    ) -> None:
        """Prepare; nothing is sent before `start`.

        Args:
            settings: broker and credentials.
            topics: of this device.
            outbox: where messages with QoS 1 wait.
            status: payload of the status topic; arguments: online, number of the connection.
            next_connection: a number that is higher each time.
            on_command: called for each command, in the MQTT thread; true acknowledges it to the broker.
            on_connected: called after each connect; argument: whether the broker still knew us.

        Raises:
            PahoUnsuitable: no usable paho-mqtt is installed.
        """
        self.connected = False
        self.trouble = ""
        self.protocol = "3.1.1" if settings.protocol == "3.1.1" else "5"
        self.beat_s = time.monotonic()
        self.refusals: dict[str, str] = {}
        self._paho = import_paho(settings.tls.wanted)
        self._settings, self._topics, self._outbox = settings, topics, outbox
        self._status, self._next_connection = status, next_connection
        self._on_command, self._on_connected = on_command, on_connected
        self._client: Any = None
        self._connection = 0
        self._delivery = Delivery(outbox)
        self._live: collections.deque[tuple[str, bytes]] = collections.deque()
        self._status_mids: set[int] = set()
        self._status_wanted = False
        self._drops = self._short_lives = 0
        self._connected_s = float("-inf")
        self._answered = False  # whether a CONNACK came on this connection
        self._say = SayAgain(log)
        self._stop_at_s: float | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        outbox.wake = self.wake

    # -- called from other threads

    def start(self) -> None:
        """Begin to connect, and go on for ever."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Send what can be sent within `timeout_s`, say `offline`, disconnect; returns when the thread has ended."""
        self._stop_at_s = time.monotonic() + timeout_s
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 2)

    def wake(self) -> None:
        """Make the thread look at the outbox now."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._wake_w, b"x")

    def send_live(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 0 if there is a connection; otherwise it is of no use to anybody and is dropped."""
        if not self.connected or len(self._live) >= LIVE_LIMIT:
            self._outbox.dropped["live"] += 1
            return
        self._live.append((topic, payload))
        self.wake()

    def send_status(self) -> None:
        """Publish the status again: it has changed."""
        self._status_wanted = True
        self.wake()

    # -- the thread

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._stop_at_s is None:
            began_s = time.monotonic()
            self._attempt()
            steady = time.monotonic() - began_s > STEADY_S
            pause_s = FIRST_PAUSE_S if steady else min(pause_s * 2, self._settings.reconnect_max_s)
            self._wait(min(pause_s, self._settings.reconnect_max_s) * random.uniform(0.5, 1.0))  # noqa: S311

    def _wait(self, pause_s: float) -> None:
        until_s = time.monotonic() + pause_s
        while self._stop_at_s is None and (left_s := until_s - time.monotonic()) > 0:
            self.beat_s = time.monotonic()
            self._poll(None, min(left_s, TURN_S))

    def _attempt(self) -> None:
        """One connection, from the first packet to its loss."""
        self.beat_s = time.monotonic()
        self._answered = False
        try:
            client = self._client = self._make_client()
            client.connect(
                self._settings.host,
                self._settings.port_in_force,
                keepalive=self._settings.keepalive_s,
                **connect_arguments(self.protocol),
            )
            self._serve(client)
        except (OSError, ValueError) as error:
            self._failed(explain(error, self._settings))
        except Exception as error:  # a bug must not take the device off the air
            log.exception("connection given up")
            self._failed(f"internal error: {type(error).__name__}: {error}")
        finally:
            self._lost()

    def _make_client(self) -> Any:
        client = make_client(self._paho, self._settings, self.protocol, f"edge-agent-{self._topics.device_id}")
        self._connection = self._next_connection()
        client.will_set(self._topics.status, self._status(False, self._connection), qos=1, retain=True)
        client.on_connect = guarded(self._connack)
        client.on_disconnect = guarded(self._disconnected)
        client.on_message = guarded(self._message)
        client.on_publish = guarded(self._puback)
        client.on_subscribe = guarded(self._suback)
        return client

    def _serve(self, client: Any) -> None:
        connack_by_s = time.monotonic() + self._settings.connect_timeout_s
        while client.socket() is not None:
            self.beat_s = time.monotonic()
            if not self.connected and self.beat_s > connack_by_s:
                self._failed(f"no CONNACK in {self._settings.connect_timeout_s:g} s")
                return
            if self.connected:
                self._send(client)
                if self._stop_at_s is not None and self._finished():
                    self._say_goodbye(client)
                    return
            elif self._stop_at_s is not None:
                return
            self._turn(client, 0.05 if self._stop_at_s is not None else TURN_S)
        if not self._answered:
            self._dropped_before_connack()

    def _turn(self, client: Any, timeout_s: float) -> None:
        """Wait for the socket, a wake-up or the time, and let paho do what is due."""
        sock = client.socket()
        if sock is None:
            return
        pending = getattr(sock, "pending", lambda: 0)()  # decrypted bytes don't make a socket readable
        readable, writable = self._poll(sock, 0 if pending else timeout_s, client.want_write())
        if readable or pending:
            client.loop_read()
        if writable and client.socket() is not None:
            client.loop_write()
        if client.socket() is not None:
            client.loop_misc()
        self._delivery.settle()

    def _poll(self, sock: Any, timeout_s: float, writing: bool = False) -> tuple[bool, bool]:
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        if sock is not None:
            poller.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
        ready = dict(poller.poll(max(0, int(timeout_s * 1000))))
        if self._wake_r in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake_r, 4096):
                    pass
        events = 0 if sock is None else ready.get(sock.fileno(), 0)
        return bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)

    # -- sending

    def _send(self, client: Any) -> None:
        if self._status_wanted:
            self._status_wanted = False
            self._send_presence(client, online=True)
        while self._live and not client.want_write():
            topic, payload = self._live.popleft()
            client.publish(topic, payload, qos=0)
        for message in self._delivery.due():
            self._publish(client, message)

    def _publish(self, client: Any, message: Message) -> None:
        properties = None
        if self.protocol == "5" and message.correlation:
            properties = make_properties("PUBLISH")
            properties.CorrelationData = message.correlation
        try:
            info = client.publish(message.topic, message.payload, qos=1, retain=message.retain, properties=properties)
        except ValueError as error:
            self._delivery.give_up(message, str(error))
            return
        self._delivery.sent(info.mid, message)

    def _send_presence(self, client: Any, online: bool) -> None:
        payload = self._status(online, self._connection)
        self._status_mids.add(client.publish(self._topics.status, payload, qos=1, retain=True).mid)

    def _finished(self) -> bool:
        """Whether nothing is left to send, or the time for it is over."""
        over = self._stop_at_s is not None and time.monotonic() > self._stop_at_s
        return over or (not self._live and self._delivery.idle())

    def _say_goodbye(self, client: Any) -> None:
        """`offline` must be with the broker before DISCONNECT, which takes the will away."""
        self._send_presence(client, online=False)
        until_s = time.monotonic() + 2.0
        while self._status_mids and client.socket() is not None and time.monotonic() < until_s:
            self._turn(client, 0.05)
        client.disconnect()
        while client.socket() is not None and client.want_write() and time.monotonic() < until_s:
            client.loop_write()

    # -- paho's callbacks (CallbackAPIVersion.VERSION2)

    def _connack(self, client: Any, _userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        self._answered = True
        if reason.is_failure:
            if self._settings.protocol == "auto" and self.protocol == "5" and reason.value in (0x01, 0x84):
                self._use_older_protocol("the broker refused MQTT 5")
            self._failed(explain_refusal(reason, self._settings))
            return
        self.connected, self.trouble, self._drops = True, "", 0
        self._connected_s = time.monotonic()
        self._delivery.connected(properties)
        log.info(
            "connected to %s port %d, MQTT %s, connection %d%s",
            self._settings.host,
            self._settings.port_in_force,
            self.protocol,
            self._connection,
            ", session resumed" if flags.session_present else "",
        )
        self._say.reset()
        self._subscribe(client)
        self._send_presence(client, online=True)
        self._on_connected(bool(flags.session_present))

    def _subscribe(self, client: Any) -> None:
        if self.protocol == "5":
            from paho.mqtt.subscribeoptions import SubscribeOptions

            client.subscribe(  # retained commands are not even sent to us
                self._topics.commands,
                options=SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND),
            )
        else:
            client.subscribe(self._topics.commands, qos=1)

    def _suback(self, _client: Any, _userdata: Any, _mid: int, reasons: list[Any], _properties: Any) -> None:
        bad = [reason for reason in reasons if reason.is_failure]
        self._refusal(
            self._topics.commands,
            f"no command can arrive: the broker refused the subscription: {bad[0]}" if bad else "",
        )

    def _message(self, client: Any, _userdata: Any, message: Any) -> None:
        properties = message.properties
        incoming = Incoming(
            payload=bytes(message.payload),
            retained=bool(message.retain),
            response_topic=getattr(properties, "ResponseTopic", ""),
            correlation=getattr(properties, "CorrelationData", b""),
            expires_in_s=getattr(properties, "MessageExpiryInterval", None),
        )
        if self._on_command(incoming):
            client.ack(message.mid, message.qos)

    def _puback(self, _client: Any, _userdata: Any, mid: int, reason: Any, _properties: Any) -> None:
        self._status_mids.discard(mid)
        answer = self._delivery.acknowledged(mid, reason)
        if answer is not None:
            self._refusal(*answer)

    def _disconnected(self, _client: Any, _userdata: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if self.connected and self._stop_at_s is None:
            by = "the broker ended the connection" if flags.is_disconnect_packet_from_server else "connection lost"
            short = time.monotonic() - self._connected_s < SHORT_S
            self._short_lives = self._short_lives + 1 if short else 0
            told = "" if str(reason) == "Unspecified error" else f": {reason}"
            self._failed(by + told + (TWIN if reason.value == TAKEN_OVER or self._short_lives >= SHORT_LIVES else ""))

    # -- trouble

    def _refusal(self, topic: str, sentence: str) -> None:
        if sentence == self.refusals.get(topic, ""):
            return
        self._status_wanted = True
        if sentence:
            log.error("%s", sentence)
            self.refusals[topic] = sentence
        else:
            del self.refusals[topic]

    def _dropped_before_connack(self) -> None:
        self._drops += 1
        self._failed("the broker dropped the connection before it answered CONNECT")
        if self._settings.protocol == "auto" and self._drops >= DROPS_BEFORE_OLDER_PROTOCOL:
            self._drops = 0
            if self.protocol == "5":
                self._use_older_protocol("the broker drops MQTT 5")
            else:
                self.protocol = "5"

    def _use_older_protocol(self, why: str) -> None:
        self.protocol = "3.1.1"
        log.warning("%s; trying MQTT 3.1.1", why)

    def _failed(self, sentence: str) -> None:
        self.trouble = sentence
        self._say(
            f"not connected to {self._settings.host} port {self._settings.port_in_force}: {sentence}; trying again"
        )

    def _lost(self) -> None:
        """Forget the connection; what was in flight is in the outbox still."""
        client, self._client = self._client, None
        if client is not None and (sock := client.socket()) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                sock.close()
        was_connected, self.connected = self.connected, False
        self._delivery.lost(count=was_connected and self._stop_at_s is None)
        self._status_mids.clear()
        self._live.clear()


def guarded(callback: Callable[..., None]) -> Callable[..., None]:
    """`callback`, with its exceptions told in the log; paho would let them end the thread, or hide them."""

    def call(*arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:  # the boundary between paho and us
            log.exception("while handling what the broker sent")

    return call
