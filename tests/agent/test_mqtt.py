"""The connection itself, with real brokers that come, go, refuse and drop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench import BASE, PROJECT, Agent, Mosquitto, Plane, late_subscriber, wait_for

from agent.broker import Broker, free_port
from agent.config import MqttSection
from agent.mqtt import Mqtt
from agent.outbox import Outbox
from agent.records import FINAL, Incoming, Message
from agent.store import Store
from agent.topics import Topics
from agent.wire import State, encode, make_state


@pytest.fixture
def quiet_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that is not started yet."""
    (tmp_path / "broker").mkdir(exist_ok=True)
    broker = Mosquitto(tmp_path / "broker")
    yield broker
    broker.kill()


def test_a_late_subscriber_is_told_the_truth_at_each_step(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent]
) -> None:
    """Case MQ-04: birth and will on one topic, both retained."""
    quiet_broker.start()
    agent = make_agent(quiet_broker.port).start()
    wait_for("online", lambda: late_subscriber(quiet_broker.port) == "online")
    agent.kill()
    wait_for("offline after a crash", lambda: late_subscriber(quiet_broker.port) == "offline", 8)
    agent.start()
    wait_for("online again", lambda: late_subscriber(quiet_broker.port) == "online")
    assert agent.stop() == 0
    assert late_subscriber(quiet_broker.port) == "offline"
    agent.start()
    wait_for("online", lambda: late_subscriber(quiet_broker.port) == "online")
    quiet_broker.kill()
    quiet_broker.start()
    wait_for("online, published again", lambda: late_subscriber(quiet_broker.port) == "online")


def test_birth_and_will_carry_the_number_of_their_connection(agent: Agent, mosquitto: Mosquitto, plane: Plane) -> None:
    first = plane.wait_status("online")
    agent.kill()
    will = plane.wait_status("offline")
    agent.start()
    second = plane.wait_status("online")
    assert will["connection"] == first["connection"]
    assert second["connection"] > first["connection"]
    assert first["boot_id"] == second["boot_id"] != ""


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_the_agent_comes_back_each_time_the_broker_was_killed(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent], protocol: str, diary: Path
) -> None:
    """Case MQ-02."""
    quiet_broker.start()
    agent = make_agent(quiet_broker.port, mqtt=f'protocol = "{protocol}"').start()
    plane = Plane(quiet_broker.port)
    for number in range(3):
        plane.wait_status("online")
        quiet_broker.kill()
        plane.seen.clear()
        time.sleep(1)
        quiet_broker.start()
        wait_for("subscription", plane.subscribed.is_set)
        plane.wait_status("online")
        plane.send(b"\xff not a command")
        plane.command(f"c{number}", "nap", diary=str(diary))
        assert plane.end(f"c{number}")["state"] == "succeeded"
    plane.close()
    assert f"MQTT {protocol}," in agent.said


def test_the_end_state_arrives_although_the_broker_was_killed_during_the_run(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent], diary: Path
) -> None:
    quiet_broker.start()
    agent = make_agent(quiet_broker.port).start()
    plane = Plane(quiet_broker.port)
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=4)
    plane.wait_state("c", "running")
    quiet_broker.kill()
    time.sleep(0.5)
    quiet_broker.start()
    wait_for("subscription", plane.subscribed.is_set)
    assert plane.end("c")["state"] == "succeeded"
    plane.command("c", "nap", diary=str(diary), seconds=4)
    wait_for("an answer", lambda: plane.names("c")[-2:] == ["succeeded", "succeeded"])
    plane.close()
    assert diary.read_text().split() == ["c"]
    assert agent.process is not None


def test_an_end_state_that_nobody_listened_to_is_told_again(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent], diary: Path
) -> None:
    """After a broker's restart the agent may be back before the control plane: "No matching subscribers"."""
    quiet_broker.start()
    agent = make_agent(quiet_broker.port).start()
    plane = Plane(quiet_broker.port)
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=1)
    plane.wait_state("c", "running")
    plane.close()
    wait_for("the end", lambda: "command c succeeded" in agent.said)
    time.sleep(0.5)
    late = Plane(quiet_broker.port)
    assert late.end("c", 10)["state"] == "succeeded"
    late.close()


def test_what_happened_while_the_broker_was_away_is_published_when_it_is_back(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent], diary: Path
) -> None:
    quiet_broker.start()
    agent = make_agent(quiet_broker.port).start()
    plane = Plane(quiet_broker.port)
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=1, late_events=50)
    plane.wait_state("c", "running")
    quiet_broker.kill()
    wait_for("the end", lambda: "command c succeeded" in agent.said)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)  # so that the control plane is back first
    quiet_broker.start()
    wait_for("subscription", plane.subscribed.is_set)
    agent.process.send_signal(signal.SIGCONT)
    assert plane.end("c")["state"] == "succeeded"
    assert [event["sequence"] for event in plane.of("events/naps")] == list(range(50))
    plane.close()


def test_an_agent_without_a_broker_keeps_trying_and_says_so_without_flooding(
    quiet_broker: Mosquitto, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent(quiet_broker.port).start()
    wait_for("the log", lambda: "Connection refused; trying again" in agent.said)
    time.sleep(4)
    assert agent.said.count("not connected") == 1
    quiet_broker.start()
    plane = Plane(quiet_broker.port)
    assert plane.wait_status("online")["state"] == "online"
    plane.close()


def test_a_host_that_does_not_exist_is_called_a_likely_mistake_and_tried_again(
    make_agent: Callable[..., Agent],
) -> None:
    agent = make_agent(1883)
    agent.environ["EDGE_AGENT_MQTT_HOST"] = "no-such-host.invalid"
    agent.start()
    wait_for("the log", lambda: "likely a mistake in mqtt.host" in agent.said or "can't be resolved" in agent.said)
    time.sleep(1)
    assert agent.process is not None
    assert agent.process.poll() is None


FAILING_CONNECTS = """
import errno, socket, sys
sys.argv = sys.argv[1:]
real = socket.create_connection
faults = [
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    TimeoutError("timed out"),
]
def create_connection(*arguments, **more):
    if faults:
        raise faults.pop(0)
    return real(*arguments, **more)
socket.create_connection = create_connection
from agent.config import load
from agent.daemon import run_daemon
sys.exit(run_daemon(load(sys.argv[0])))
"""


def test_the_first_connects_may_fail_in_every_way_of_a_boot(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, tmp_path: Path
) -> None:
    """Case MQ-15: the system's own answers, in its order; the sixth attempt succeeds."""
    agent = make_agent(mosquitto.port)
    agent.environ["EDGE_AGENT_MQTT_RECONNECT_MAX_S"] = "0.3"
    with open(agent.log, "wb") as log:
        agent.process = subprocess.Popen(
            [sys.executable, "-c", FAILING_CONNECTS, str(agent.config)],
            cwd=PROJECT,
            env={**agent.environ, "PYTHONPATH": str(PROJECT)},
            stdout=log,
            stderr=log,
        )
    status = plane.wait_status("online")
    assert status["connection"] == 6
    for words in ("can't be resolved at the moment", "Network is unreachable", "Connection refused", "no answer in"):
        assert words in agent.said


def test_mqtt_3_1_1_is_spoken_with_a_broker_that_drops_mqtt_5(make_agent: Callable[..., Agent], diary: Path) -> None:
    with Broker.start(protocol="3.1.1") as broker:
        agent = make_agent(broker.port).start()
        plane = Plane(broker.port, five=False)
        plane.wait_status("online")
        plane.command("c", "nap", diary=str(diary))
        assert plane.end("c")["state"] == "succeeded"
        plane.close()
        assert "trying MQTT 3.1.1" in agent.said
        assert agent.stop() == 0


def test_the_embedded_broker_does_for_a_whole_life(make_agent: Callable[..., Agent], diary: Path) -> None:
    with Broker.start() as broker:
        agent = make_agent(broker.port).start()
        plane = Plane(broker.port)
        plane.wait_status("online")
        plane.send(
            {"id": "c", "verb": "nap", "arguments": {"diary": str(diary)}},
            ResponseTopic="answers/x",
            CorrelationData=b"1",
        )
        assert plane.end("c")["state"] == "succeeded"
        assert agent.stop() == 0
        plane.wait_status("offline")
        plane.close()


def test_a_command_that_was_not_recorded_is_not_acknowledged_and_comes_again(
    mosquitto: Mosquitto, plane: Plane, tmp_path: Path
) -> None:
    """The broker keeps what it has no PUBACK for; a device that loses power before it has written gets it again."""
    store = Store(tmp_path / "state")
    outbox = Outbox(store, 1 << 20, 3600)
    taken: list[Incoming] = []
    lives: list[Mqtt] = []

    def live(record: bool) -> Mqtt:
        def take(incoming: Incoming) -> bool:
            taken.append(incoming)
            return record

        life = Mqtt(
            MqttSection(host="127.0.0.1", port=mosquitto.port),
            Topics(prefix="edge/v1", device_id="bench"),
            outbox,
            status=lambda online, connection: b'{"state":"test"}',
            next_connection=lambda: len(lives),
            on_command=take,
            on_connected=lambda _: None,
        )
        life.start()
        wait_for("connection", lambda: life.connected)
        lives.append(life)
        return life

    first = live(record=False)
    time.sleep(0.3)
    plane.send(b'{"id":"a"}')
    wait_for("the command", lambda: len(taken) == 1)
    first.stop(1)
    second = live(record=True)
    wait_for("the command again", lambda: len(taken) == 2)
    second.stop(1)
    live(record=True).stop(1)
    store.close()
    assert [one.payload for one in taken] == [b'{"id":"a"}'] * 2


def test_a_retained_command_is_not_carried_out_by_mqtt_3_1_1(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    plane.send({"id": "old", "verb": "nap", "arguments": {"diary": str(diary)}}, retain=True)
    agent = make_agent(mosquitto.port, mqtt='protocol = "3.1.1"').start()
    end = plane.end("old")
    assert (end["state"], end["error"]["code"]) == ("rejected", "retained")
    assert not diary.exists()
    agent.stop()
    agent.start()  # the broker delivers it again: that is nobody's question
    plane.wait_status("online")
    plane.command("new", "nap", diary=str(diary))
    plane.end("new")
    assert plane.names("old") == ["rejected"]


def test_a_retained_command_is_not_even_delivered_by_mqtt_5(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    plane.send({"id": "old", "verb": "nap", "arguments": {"diary": str(diary)}}, retain=True)
    make_agent(mosquitto.port).start()
    plane.wait_status("online")
    plane.command("new", "nap", diary=str(diary))
    plane.end("new")
    assert diary.read_text().split() == ["new"]


def test_a_broker_that_refuses_a_topic_makes_the_agent_degraded_and_nothing_is_thought_sent(
    tmp_path: Path, make_agent: Callable[..., Agent], diary: Path
) -> None:
    """The trap: "Not authorized" stands only in PUBACK's reason code."""
    acl = tmp_path / "acl"
    acl.write_text(f"topic read {BASE}/#\ntopic write {BASE}/status\ntopic write {BASE}/commands\n")
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker", extra=f"acl_file {acl}").start()
    try:
        agent = make_agent(broker.port).start()
        plane = Plane(broker.port)
        plane.wait_status("online")
        plane.command("c", "nap", diary=str(diary))
        status = plane.wait_status("degraded")
        assert "Not authorized" in " ".join(status["reasons"])
        acl.write_text(f"topic readwrite {BASE}/#\n")
        broker.process.send_signal(1)  # type: ignore[union-attr]
        agent.kill()
        agent.start()
        assert plane.end("c")["state"] == "succeeded"
        plane.close()
    finally:
        broker.kill()


def test_wrong_credentials_are_said_and_a_corrected_password_file_is_taken(
    tmp_path: Path, make_agent: Callable[..., Agent]
) -> None:
    passwords, password = tmp_path / "passwords", tmp_path / "password"
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(passwords), "jetson", "right"], check=True, capture_output=True)
    password.write_text("wrong\n")
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker", extra=f"password_file {passwords}").start()
    try:
        agent = make_agent(broker.port, mqtt=f'username = "jetson"\npassword_file = "{password}"').start()
        wait_for(
            "the log",
            lambda: "see mqtt.username and mqtt.password_file" in agent.said or "Not authorized" in agent.said,
        )
        password.write_text("right\n")
        wait_for("connection", lambda: "connected to 127.0.0.1" in agent.said.replace("not connected", ""))
        assert "wrong" not in agent.said.replace("wrong-", "")
    finally:
        broker.kill()


def test_a_second_agent_with_the_same_name_is_told_in_the_log(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane
) -> None:
    first = make_agent(mosquitto.port).start()
    plane.wait_status("online")
    import paho.mqtt.client as paho

    other = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="edge-agent-bench", protocol=paho.MQTTv5)
    other.reconnect_delay_set(1, 1)
    other.connect("127.0.0.1", mosquitto.port)
    other.loop_start()
    wait_for("the log", lambda: "another agent seems to use the same agent.device_id" in first.said)
    other.disconnect()
    other.loop_stop()


def test_a_server_that_says_nothing_is_given_up_after_the_connect_timeout(make_agent: Callable[..., Agent]) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        agent = make_agent(server.getsockname()[1])
        agent.environ["EDGE_AGENT_MQTT_CONNECT_TIMEOUT_S"] = "0.5"
        agent.start()
        wait_for("the log", lambda: "no CONNACK in 0.5 s" in agent.said)


def test_a_server_that_is_no_broker_is_survived(make_agent: Callable[..., Agent]) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:

        def serve() -> None:
            for answer in (
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                b"\x20\x03\x00\x00",
                os.urandom(200),
                b"\x20\xff\xff\xff\xff\x7f",
            ):
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(answer)
                    time.sleep(0.1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        agent = make_agent(server.getsockname()[1])
        agent.environ["EDGE_AGENT_MQTT_RECONNECT_MAX_S"] = "0.2"
        agent.environ["EDGE_AGENT_MQTT_CONNECT_TIMEOUT_S"] = "1"
        agent.start()
        thread.join(15)
        assert not thread.is_alive()
        assert agent.process is not None
        assert agent.process.poll() is None


def test_a_message_that_is_larger_than_the_broker_takes_does_not_block_those_behind_it(
    tmp_path: Path, make_agent: Callable[..., Agent], diary: Path
) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker", extra="max_packet_size 3000").start()
    try:
        agent = make_agent(broker.port)
        agent.state.mkdir()
        store = Store(agent.state)
        store.add_messages([Message(topic=f"{BASE}/events/large", payload=b"x" * 5000)])
        store.close()
        agent.start()
        plane = Plane(broker.port)
        plane.wait_status("online")
        plane.command("c", "nap", diary=str(diary))
        assert plane.end("c")["state"] == "succeeded"
        assert "dropped a message of 5000 bytes" in agent.said
        plane.close()
    finally:
        broker.kill()


def test_a_result_that_is_larger_than_the_broker_takes_still_ends_its_command(
    tmp_path: Path, make_agent: Callable[..., Agent], diary: Path
) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker", extra="max_packet_size 3000").start()
    try:
        agent = make_agent(broker.port)
        agent.state.mkdir()
        state = make_state("c", "nap", State.SUCCEEDED, 2, result={"text": "x" * 5000})
        store = Store(agent.state)
        store.add_messages([Message(topic=f"{BASE}/commands/c", payload=encode(state), importance=FINAL)])
        store.close()
        plane = Plane(broker.port)
        agent.start()
        end = plane.end("c")
        assert (end["state"], end["sequence"], end["result"]) == ("succeeded", 2, None)
        assert "at most 3000 bytes" in end["stage"]
        plane.close()
    finally:
        broker.kill()


def test_another_major_version_of_paho_is_one_clear_line(tmp_path: Path, make_agent: Callable[..., Agent]) -> None:
    """Case MQ-01: a package with the face of 1.6.1, found before the real one."""
    package = tmp_path / "old" / "paho" / "mqtt"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text('__version__ = "1.6.1"\n')
    (package / "client.py").write_text("class Client:\n    def __init__(self, client_id=''):\n        pass\n")
    agent = make_agent(1883)
    done = subprocess.run(
        [sys.executable, "-m", "agent", "daemon", "--config", str(agent.config)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'old'}:{PROJECT}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "paho-mqtt 1.6.1 is installed; this agent needs paho-mqtt >= 2.0, < 3" in done.stderr


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """A small authority with a certificate for the broker and one for the device."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: nothing was encrypted")
    folder = tmp_path / "pki"
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("broker", "device"):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    openssl("req", "-x509", *curve, "-keyout", "other.key", "-out", "other.pem", "-days", "2", "-subj", "/CN=other")
    return folder


def test_certificates_are_demanded_and_shown_on_both_sides(
    tmp_path: Path, pki: Path, make_agent: Callable[..., Agent], diary: Path
) -> None:
    (tmp_path / "broker").mkdir()
    tls = f"cafile {pki}/ca.pem\ncertfile {pki}/broker.pem\nkeyfile {pki}/broker.key\nrequire_certificate true\n"
    secure = free_port()
    broker = Mosquitto(tmp_path / "broker", extra=f"listener {secure} 127.0.0.1\n{tls}").start()
    try:
        agent = make_agent(
            secure, more=f'[mqtt.tls]\nca = "{pki}/ca.pem"\ncert = "{pki}/device.pem"\nkey = "{pki}/device.key"'
        )
        agent.start()
        plane = Plane(broker.port)
        plane.wait_status("online")
        plane.command("c", "nap", diary=str(diary), words=["x" * 100_000])
        assert plane.end("c")["state"] == "succeeded"
        assert plane.of("streams/c")[0]["text"] == "x" * 100_000
        plane.send({"id": "d", "verb": "nap", "padding": "y" * 300_000, "arguments": {"diary": str(diary)}})
        assert plane.end("d")["state"] == "succeeded"
        assert agent.stop() == 0
        plane.close()
    finally:
        broker.kill()


def test_a_broker_with_a_certificate_of_somebody_else_is_not_trusted(
    tmp_path: Path, pki: Path, make_agent: Callable[..., Agent]
) -> None:
    (tmp_path / "broker").mkdir()
    secure = free_port()
    tls = f"certfile {pki}/broker.pem\nkeyfile {pki}/broker.key\n"
    broker = Mosquitto(tmp_path / "broker", extra=f"listener {secure} 127.0.0.1\n{tls}").start()
    try:
        agent = make_agent(secure, more=f'[mqtt.tls]\nca = "{pki}/other.pem"').start()
        wait_for("the log", lambda: "the broker's certificate was not accepted" in agent.said)
        assert "Traceback" not in agent.said
    finally:
        broker.kill()


def test_a_missing_certificate_file_is_named(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(1, more='[mqtt.tls]\nca = "/nonexistent/ca.pem"').start()
    wait_for(
        "the log",
        lambda: "/nonexistent/ca.pem: No such file or directory" in agent.said or "No such file" in agent.said,
    )
    assert "Traceback" not in agent.said
