"""The daemon: connects, surveys, obeys; stays up and says so when something is not well."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from agent import identity
from agent.clock import boot_id, monotonic_s, wall_text
from agent.commands import Commands
from agent.config import Config, ConfigError, keep_last_good, load
from agent.mqtt import Mqtt
from agent.notify import notify, watchdog_s
from agent.outbox import Outbox
from agent.paho import PahoUnsuitable
from agent.records import Message
from agent.store import Store, StoreUnavailable
from agent.survey import Survey
from agent.topics import Topics
from agent.verb import VerbFailed
from agent.version import VERSION
from agent.wire import Presence, StatusMessage, encode
from probes import wall_clock

TICK_S = 1.0
STUCK_S = 120.0  # a thread without a turn for so long is stuck; resolving a name can take half a minute
HOUSEKEEPING_S = 30.0
TRIM_S = 3600.0
STOP_COMMANDS_S = 4.0
STOP_MQTT_S = 3.0
EXTEND_S = 60  # of systemd's start limit, while the broker does not answer
SURVEY_S = 600.0
SURVEY_AGAIN_S = 60.0
log = logging.getLogger("agent")


class Daemon:
    """One running agent."""

    def __init__(self, config: Config) -> None:
        """Put it together; nothing is sent yet.

        Raises:
            PahoUnsuitable: MQTT is wanted and no usable paho-mqtt is installed.
        """
        self.config = config
        self.stopping = False
        self.began_s = monotonic_s()
        self.boot = boot_id()
        self.connection = 0
        self.store = Store(config.agent.state_dir)
        name, self.identity_trouble = identity.device_id(config)
        self.topics = Topics(prefix=config.mqtt.topic_prefix, device_id=name)
        self.outbox = Outbox(self.store, config.store.outbox_limit_bytes, config.store.outbox_age_s)
        self.survey = Survey(config.agent.state_dir, name, self.publish_capabilities)
        self.commands = Commands(config, self.topics, self.store, self.outbox, self.survey, self.send_live)
        self.mqtt = self.make_mqtt() if config.mqtt.host else None
        self.told: tuple[str, ...] = ()
        self.wake_r, self.wake_w = os.pipe()
        self.signals: list[int] = []

    def make_mqtt(self) -> Mqtt:
        """The connection, not started."""
        return Mqtt(
            self.config.mqtt,
            self.topics,
            self.outbox,
            status=self.status,
            next_connection=self.next_connection,
            on_command=self.commands.receive,
            on_connected=self.connected,
        )

    # -- what the MQTT thread asks

    def status(self, online: bool, connection: int) -> bytes:
        """Payload of the status topic."""
        reasons = self.reasons() if online else ()
        presence = (Presence.DEGRADED if reasons else Presence.ONLINE) if online else Presence.OFFLINE
        return encode(
            StatusMessage(
                state=presence,
                boot_id=self.boot,
                connection=connection,
                agent_version=VERSION,
                reasons=reasons,
                dropped=dict(self.outbox.dropped),
                uptime_s=round(monotonic_s() - self.began_s, 1) if online else None,
                at=wall_text(),
                clock_synchronised=wall_clock.by_files(),
            )
        )

    def reasons(self) -> tuple[str, ...]:
        """What is not well, in sentences."""
        refusals = list(self.mqtt.refusals.values()) if self.mqtt else []
        found = [self.outbox.unavailable, self.survey.unwritten, self.store.note, self.identity_trouble]
        return tuple(reason for reason in [*found, *self.config.notes, *refusals] if reason)

    def next_connection(self) -> int:
        """A number higher than that of any connection before, also across restarts where the disk allows it."""
        with contextlib.suppress(StoreUnavailable, ValueError):
            self.connection = max(self.connection, int(self.store.value("connection") or 0))
        self.connection += 1
        with contextlib.suppress(StoreUnavailable):
            self.store.set_value("connection", str(self.connection))
        return self.connection

    def connected(self, session_present: bool) -> None:
        """A broker that has forgotten us has forgotten the retained report, too."""
        if not session_present:
            self.survey.publish_again()

    def publish_capabilities(self, report: bytes) -> None:
        """Send the report, retained."""
        self.outbox.add(Message(topic=self.topics.capabilities, payload=report, retain=True, importance=2))

    def send_live(self, topic: str, payload: bytes) -> None:
        """Send with QoS 0."""
        if self.mqtt is not None:
            self.mqtt.send_live(topic, payload)

    # -- its life

    def run(self) -> int:
        """Run until a signal; returns the exit status."""
        for note in self.config.notes:
            log.error("%s", note)
        if self.store.note:
            log.error("%s", self.store.note)
        self.outbox.check_disk()
        self.commands.start()
        if self.mqtt is not None:
            self.mqtt.start()
        else:
            log.info("mqtt.host is not set: deliberately offline")
        threading.Thread(target=self.first_survey, name="survey", daemon=True).start()
        self.keep_config()
        self.loop()
        self.stop()
        return 0

    def keep_config(self) -> None:
        """Keep the file for the day when a power cut has taken it."""
        with contextlib.suppress(OSError):  # a disk that can't be written is told by the outbox already
            keep_last_good(self.config)

    def loop(self) -> None:
        """Once a second: deadlines, watchdog, readiness, status."""
        ready, interval_s = False, watchdog_s()
        fed_s = extended_s = float("-inf")
        kept_s = trimmed_s = time.monotonic()
        while not self.stopping:
            self.commands.tick()
            now_s = time.monotonic()
            if now_s - kept_s > HOUSEKEEPING_S:
                kept_s = now_s
                if self.outbox.unavailable:  # a healthy disk is not worn by asking
                    self.outbox.check_disk()
                self.outbox.bound()
            if now_s - trimmed_s > TRIM_S:
                trimmed_s = now_s
                with contextlib.suppress(StoreUnavailable):
                    self.store.trim_commands()
            self.tell_status()
            if not ready and (self.mqtt is None or self.mqtt.connected):
                ready = notify("READY=1") or True
            elif not ready and now_s - extended_s > EXTEND_S / 3:
                extended_s = now_s
                notify(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")
            if interval_s and now_s - fed_s > interval_s / 3 and self.alive():
                fed_s = now_s
                notify("WATCHDOG=1")
            self.wait(TICK_S if interval_s is None else min(TICK_S, interval_s / 4))

    def alive(self) -> bool:
        """Whether the MQTT thread makes progress; the command loop is the caller."""
        return self.mqtt is None or time.monotonic() - self.mqtt.beat_s < STUCK_S

    def tell_status(self) -> None:
        """Publish the status and tell systemd when either has changed."""
        reasons = self.reasons()
        if self.mqtt is None:
            line = "deliberately offline"
        elif self.mqtt.connected:
            line = f"connected to {self.config.mqtt.host}, MQTT {self.mqtt.protocol}"
        else:
            line = f"not connected: {self.mqtt.trouble or 'connecting'}"
        told = (line, *reasons)
        if told != self.told:
            if self.mqtt is not None and reasons != self.told[1:]:
                self.mqtt.send_status()
            self.told = told
            notify("STATUS=" + "; ".join(told).replace("\n", " "))

    def wait(self, timeout_s: float) -> None:
        """Sleep, or take a signal."""
        poller = select.poll()
        poller.register(self.wake_r, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return
        for number in os.read(self.wake_r, 64):
            if number in (signal.SIGTERM, signal.SIGINT):
                log.info("%s: stopping", signal.Signals(number).name)
                self.stopping = True
            elif number == signal.SIGHUP:
                self.reload()

    def reload(self) -> None:
        """SIGHUP: check the file; only the log level changes without a restart, and that is said."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            config = load(self.config.path if os.path.exists(self.config.path) else None)
            logging.getLogger().setLevel(config.agent.log_level.upper())
            log.info("reloaded %s: the log level is in force; the rest takes a restart", config.path)
        except ConfigError as error:
            log.error("not reloaded: %s", error)
        notify("READY=1")

    def first_survey(self) -> None:
        """Survey once after the start, only what may have changed since the last; and again later if that failed."""
        while not self.stopping:
            try:
                self.survey.take((), lambda: self.stopping, SURVEY_S, renew=False)
                return
            except VerbFailed as error:
                if self.stopping:
                    return
                log.error("survey: %s; trying again in %d s", error.reason, SURVEY_AGAIN_S)
            except Exception:  # a thread's boundary
                log.exception("survey")
            until_s = time.monotonic() + SURVEY_AGAIN_S
            while not self.stopping and time.monotonic() < until_s:
                time.sleep(TICK_S)

    def stop(self) -> None:
        """End what runs, tell it, say goodbye: within 10 s."""
        notify("STOPPING=1")
        self.commands.stop(STOP_COMMANDS_S)
        if self.mqtt is not None:
            self.mqtt.stop(STOP_MQTT_S)
        self.store.close()
        log.info("stopped")


def run_daemon(config: Config) -> int:
    """Run the agent in the foreground until SIGTERM or SIGINT.

    Returns: the exit status: 0 after a stop that was asked for, 1 when it could not start.
    """
    log_to_stderr(config.agent.log_level)
    try:
        with only_one(config.agent.state_dir), signals_to_pipe() as wake:
            daemon = Daemon(config)
            daemon.wake_r = wake
            return daemon.run()
    except (PahoUnsuitable, AlreadyRunning) as error:
        log.error("%s", error)
        return 1


class AlreadyRunning(Exception):
    """Another agent uses the state folder; the message names both."""


@contextlib.contextmanager
def only_one(state_dir: str) -> Iterator[None]:
    """Hold the state folder; where it can't be written nothing is held, and the store says why.

    Raises:
        AlreadyRunning: another process holds it.
    """
    path = Path(state_dir) / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        log.error("%s: %s", path, error.strerror)
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise AlreadyRunning(f"another edge-agent (process {other or 'unknown'}) uses {state_dir}") from None
    try:
        with contextlib.suppress(OSError):  # a full disk; the lock holds all the same
            os.truncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def signals_to_pipe() -> Iterator[int]:
    """SIGTERM, SIGINT and SIGHUP arrive as bytes in a pipe, whatever the main thread does.

    Yields: the pipe's reading end.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in caught}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def log_to_stderr(level: str) -> None:
    """Plain lines; journald adds the time, so only a terminal or a file gets it from here."""
    journal = "JOURNAL_STREAM" in os.environ
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(levelname)s %(name)s: %(message)s" if journal else "%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
