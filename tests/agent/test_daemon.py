"""Start, readiness, watchdog and stop of the daemon."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench import Agent, Mosquitto, Plane, wait_for


class Manager:
    """The part of systemd that listens: takes what sd_notify sends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)
        self.lines: list[str] = []

    def heard(self, start: str) -> list[str]:
        while True:
            try:
                self.lines += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return [line for line in self.lines if line.startswith(start)]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path)
    yield manager
    manager.socket.close()


def test_ready_is_said_when_connected_and_not_before(
    tmp_path: Path, make_agent: Callable[..., Agent], manager: Manager
) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker")
    agent = make_agent(broker.port)
    agent.environ["NOTIFY_SOCKET"] = str(manager.path)
    agent.start()
    wait_for("more time", lambda: manager.heard("EXTEND_TIMEOUT_USEC="))
    wait_for("the reason", lambda: any("not connected" in line for line in manager.heard("STATUS=")))
    time.sleep(1)
    assert manager.heard("READY=1") == []
    broker.start()
    wait_for("READY", lambda: manager.heard("READY=1"))
    assert agent.stop() == 0
    assert manager.heard("STOPPING=1")
    broker.kill()


def test_an_agent_without_a_host_is_ready_and_deliberately_offline(
    make_agent: Callable[..., Agent], manager: Manager
) -> None:
    agent = make_agent(1)
    agent.environ.update(NOTIFY_SOCKET=str(manager.path), EDGE_AGENT_MQTT_HOST="")
    agent.start()
    wait_for("READY", lambda: manager.heard("READY=1"))
    wait_for("the reason", lambda: "STATUS=deliberately offline" in manager.heard("STATUS="))
    assert agent.stop() == 0


def test_the_watchdog_is_fed_by_the_work_and_starves_when_the_process_is_stopped(
    agent: Agent, mosquitto: Mosquitto, manager: Manager
) -> None:
    agent.kill()
    agent.environ.update(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="1000000")
    agent.start()
    wait_for("three meals", lambda: len(manager.heard("WATCHDOG=1")) >= 3)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    eaten = len(manager.heard("WATCHDOG=1"))
    time.sleep(1)
    assert len(manager.heard("WATCHDOG=1")) == eaten
    agent.process.send_signal(signal.SIGCONT)


def test_a_second_daemon_on_the_same_state_folder_ends_with_one_line(
    agent: Agent, mosquitto: Mosquitto, plane: Plane
) -> None:
    plane.wait_status("online")
    second = Agent(agent.folder, mosquitto.port)
    second.log = agent.folder / "second.log"
    second.start()
    assert second.process is not None
    assert second.process.wait(10) == 1
    assert f"another edge-agent (process {agent.process.pid}) uses" in second.said  # type: ignore[union-attr]
    assert second.said.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_without_any_broker_is_quick_and_clean(make_agent: Callable[..., Agent], number: int) -> None:
    agent = make_agent(1).start()
    wait_for("the log", lambda: "not connected" in agent.said)
    began = time.monotonic()
    assert agent.process is not None
    agent.process.send_signal(number)
    assert agent.process.wait(10) == 0
    assert time.monotonic() - began < 10
    assert "Traceback" not in agent.said


def test_a_reload_checks_the_file_and_takes_the_log_level(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    assert agent.process is not None
    good = agent.config.read_text()
    agent.config.write_text(good.replace("[mqtt]", '[mqtt]\nhots = "x"'))
    agent.process.send_signal(signal.SIGHUP)
    wait_for("the log", lambda: "not reloaded" in agent.said and "did you mean 'mqtt.host'" in agent.said)
    agent.config.write_text(good.replace("[agent]", '[agent]\nlog_level = "debug"'))
    agent.process.send_signal(signal.SIGHUP)
    wait_for("the log", lambda: "the log level is in force" in agent.said)
    plane.command("x", "cancel", id="none")
    plane.end("x")


def test_a_state_folder_that_cannot_be_written_leaves_the_agent_up_and_degraded(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    agent = make_agent(mosquitto.port)
    agent.state.write_text("a file where the folder should be")
    agent.start()
    reasons = " ".join(plane.wait_status("degraded")["reasons"])
    assert str(agent.state) in reasons
    plane.command("a", "nap", diary=str(diary))
    assert plane.end("a")["error"]["code"] == "store_unavailable"
    plane.command("b", "doze", diary=str(diary))
    assert plane.end("b")["state"] == "succeeded"
    assert "Traceback" not in agent.said
    assert agent.stop() == 0


def test_the_daemon_imports_nothing_heavy(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    assert agent.process is not None
    maps = Path(f"/proc/{agent.process.pid}/maps").read_text()
    for library in ("libcrypto", "libssl", "numpy", "libvulkan", "libOpenCL", "psutil", "onnxruntime", "llama"):
        assert library not in maps, library


def test_the_connection_number_goes_on_after_a_restart(agent: Agent, plane: Plane) -> None:
    first = plane.wait_status("online")["connection"]
    agent.stop()
    plane.wait_status("offline")
    agent.start()
    assert plane.wait_status("online")["connection"] == first + 1


def test_no_process_is_left_behind_by_a_kill_during_the_survey(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    assert agent.process is not None
    pid = agent.process.pid
    plane.command("p", "probe")
    plane.wait_state("p", "running")
    agent.kill()

    def of_this_agent() -> list[str]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    status = Path(f"/proc/{name}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"agent.survey\0bench" in status:
                    found.append(name)
        return found

    wait_for(f"the end of the survey of {pid}", lambda: not of_this_agent(), 2.5)
