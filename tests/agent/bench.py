"""A bench for tests: real brokers, a real daemon in its own process, and a control plane that keeps what it sees."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.broker import free_port

PROJECT = Path(__file__).parent.parent.parent
MOSQUITTO = "/usr/sbin/mosquitto"
DEVICE = "bench"
BASE = f"edge/v1/{DEVICE}"
FINAL = {"succeeded", "failed", "rejected", "expired", "cancelled"}


def wait_for(what: str, ready: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = ready()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"no {what} in {timeout_s} s")


class Mosquitto:
    """Debian's broker on a loopback port, without persistence unless asked for."""

    def __init__(self, folder: Path, port: int = 0, extra: str = "", persistent: bool = False) -> None:
        self.port = port or free_port()
        self.config = folder / "mosquitto.conf"
        self.log = folder / "mosquitto.log"
        keep = f"persistence true\npersistence_location {folder}/\nautosave_interval 1\nautosave_on_changes true\n"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\nlog_type all\n{extra}\n"
            + (keep if persistent else "persistence false\n")
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Mosquitto:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.config)], stdout=log, stderr=log)
        wait_for("broker", self.answers)
        return self

    def answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


class Agent:
    """A daemon in its own process."""

    def __init__(self, folder: Path, port: int, **settings: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.models = folder / "models"
        self.models.mkdir(parents=True, exist_ok=True)
        self.log = folder / "agent.log"
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'[agent]\ndevice_id = "{DEVICE}"\nstate_dir = "{self.state}"\nmodels_dir = "{self.models}"\n'
            f'[mqtt]\nhost = "127.0.0.1"\nport = {port}\nkeepalive_s = 5\nreconnect_max_s = 1.0\n'
            f"{settings.get('mqtt', '')}\n[commands]\n"
            f'allowed = ["probe", "plan", "run", "cancel", "nap", "doze", "odd"]\n{settings.get("commands", "")}\n'
            f"{settings.get('more', '')}\n"
        )
        self.environ = dict(os.environ)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Agent:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "daemon_with_test_verbs.py"), str(self.config)],
                cwd=PROJECT,
                env={**self.environ, "PYTHONPATH": str(PROJECT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, timeout_s: float = 12.0) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout_s)
        self.process = None
        return status

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Plane:
    """A control plane: sends commands and keeps all that the device says, in order."""

    def __init__(self, port: int, five: bool = True) -> None:
        self.seen: list[tuple[str, dict[str, Any], bool]] = []
        self.properties: list[Any] = []
        self.subscribed = threading.Event()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            protocol=paho.MQTTv5 if five else paho.MQTTv311,
            client_id=f"plane-{os.urandom(4).hex()}",
        )
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = lambda client, *_: client.subscribe([(f"{BASE}/#", 1), ("answers/#", 1)])
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_disconnect = lambda *_: self.subscribed.clear()
        self.client.on_message = self.take
        self.client.connect_async("127.0.0.1", port)
        self.client.loop_start()
        wait_for("subscription", self.subscribed.is_set)

    def take(self, _client: Any, _userdata: Any, message: Any) -> None:
        if message.topic != f"{BASE}/commands":
            self.properties.append(message.properties)
            self.seen.append((message.topic, json.loads(message.payload), bool(message.retain)))

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def send(self, payload: Any, retain: bool = False, **properties: Any) -> None:
        attached = None
        if properties:
            attached = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(attached, name, value)
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        info = self.client.publish(f"{BASE}/commands", data, qos=1, retain=retain, properties=attached)
        info.wait_for_publish(10)

    def command(self, command_id: str, verb: str, **arguments: Any) -> None:
        self.send({"id": command_id, "verb": verb, "arguments": arguments})

    def states(self, command_id: str) -> list[dict[str, Any]]:
        return [body for topic, body, _ in list(self.seen) if topic == f"{BASE}/commands/{command_id}"]

    def names(self, command_id: str) -> list[str]:
        return [state["state"] for state in self.states(command_id)]

    def end(self, command_id: str, timeout_s: float = 20.0) -> dict[str, Any]:
        def final() -> Any:
            return next((state for state in self.states(command_id) if state["state"] in FINAL), None)

        state: dict[str, Any] = wait_for(f"end of {command_id}: {self.names(command_id)}", final, timeout_s)
        return state

    def wait_state(self, command_id: str, name: str, timeout_s: float = 20.0) -> None:
        wait_for(f"{name} of {command_id}", lambda: name in self.names(command_id), timeout_s)

    def statuses(self) -> list[dict[str, Any]]:
        return [body for topic, body, _ in list(self.seen) if topic == f"{BASE}/status"]

    def wait_status(self, name: str, timeout_s: float = 20.0) -> dict[str, Any]:
        def last() -> Any:
            found = self.statuses()
            return found[-1] if found and found[-1]["state"] == name else None

        status: dict[str, Any] = wait_for(f"status {name}", last, timeout_s)
        return status

    def of(self, topic: str) -> list[dict[str, Any]]:
        return [body for name, body, _ in list(self.seen) if name == f"{BASE}/{topic}"]


def late_subscriber(port: int) -> str | None:
    """What somebody who comes now is told of the device's state; None when nothing is retained."""
    plane = Plane(port)
    with contextlib.suppress(AssertionError):
        wait_for("a retained status", plane.statuses, 1.0)
    plane.close()
    found = [body for topic, body, retained in plane.seen if topic == f"{BASE}/status" and retained]
    return str(found[0]["state"]) if found else None


@contextlib.contextmanager
def running(thing: Any) -> Iterator[Any]:
    try:
        yield thing.start()
    finally:
        thing.kill()
