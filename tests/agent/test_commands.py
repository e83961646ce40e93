"""The life of commands, against a real broker and a daemon in its own process."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import Agent, Mosquitto, Plane, wait_for

from agent.clock import wall_text


def starts(diary: Path) -> list[str]:
    return diary.read_text().split() if diary.exists() else []


def test_a_command_goes_through_its_states_in_order(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c1", "nap", diary=str(diary), seconds=0.1)
    assert plane.end("c1")["result"] == {"slept_s": 0.1}
    assert plane.names("c1") == ["accepted", "running", "succeeded"]
    assert [state["sequence"] for state in plane.states("c1")] == [0, 1, 2]
    assert all(state["boot_id"] and state["at"].endswith("Z") for state in plane.states("c1"))


def test_a_second_copy_is_answered_with_the_recorded_state_and_not_run(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c1", "nap", diary=str(diary))
    first = plane.end("c1")
    plane.command("c1", "nap", diary=str(diary), seconds=5)
    again = wait_for("an answer", lambda: plane.states("c1")[3:])
    assert again == [first]
    assert starts(diary) == ["c1"]


def test_a_copy_of_a_running_command_is_answered_with_running(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c1", "nap", diary=str(diary), seconds=2)
    plane.wait_state("c1", "running")
    plane.command("c1", "nap", diary=str(diary), seconds=2)
    wait_for("an answer", lambda: plane.names("c1")[:3] == ["accepted", "running", "running"])
    plane.end("c1")
    assert starts(diary) == ["c1"]


@pytest.mark.parametrize(
    ("payload", "code", "said"),
    [
        ({"id": "c", "verb": "reboot"}, "unknown_verb", "no verb 'reboot'"),
        ({"id": "c", "verb": "../daemon"}, "unknown_verb", "no verb"),
        ({"id": "c", "verb": "probe", "arguments": {"subject": "x"}}, "bad_arguments", "unknown field `subject`"),
        ({"id": "c", "verb": "probe", "arguments": {"subjects": 3}}, "bad_arguments", "Expected `array`, got `int`"),
        ({"id": "c", "verb": "run", "arguments": {"model": "m"}}, "bad_arguments", "exactly one of prompt"),
        ({"id": "c", "verb": "run", "arguments": {"model": "m", "prompt": "a", "top": 0}}, "bad_arguments", "top"),
        ({"id": "c", "verb": "probe", "arguments": 5}, "malformed", "Expected `object`, got `int`"),
        ({"id": "c", "verb": 5}, "malformed", "Expected `str`, got `int`"),
    ],
)
def test_what_cannot_be_done_is_rejected_with_code_and_sentence(
    agent: Agent, plane: Plane, payload: object, code: str, said: str
) -> None:
    plane.wait_status("online")
    plane.send(payload)
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("rejected", code)
    assert said in end["error"]["sentence"]


def test_a_verb_that_this_device_does_not_allow_is_rejected(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane
) -> None:
    agent = make_agent(mosquitto.port)
    agent.environ["EDGE_AGENT_COMMANDS_ALLOWED"] = "probe"
    agent.start()
    plane.wait_status("online")
    plane.command("c", "run", model="m", prompt="a")
    assert plane.end("c")["error"]["code"] == "not_allowed"


def test_payloads_without_an_id_are_survived(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    for payload in (b"", b"{", b"\xff\x00", b"[" * 50_000, b'{"id":"a/b","verb":"probe"}'):
        plane.send(payload)
    plane.command("c1", "nap", diary=str(diary))
    assert plane.end("c1")["state"] == "succeeded"
    assert "Traceback" not in agent.said


def test_a_command_that_comes_too_late_is_expired(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.send(
        {"id": "c", "verb": "nap", "arguments": {"diary": str(diary)}, "expires_at": wall_text(time.time() - 60)}
    )
    assert plane.end("c")["state"] == "expired"
    assert starts(diary) == []


def test_a_command_issued_in_the_future_tells_that_our_clock_is_wrong_and_does_not_expire(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    arguments = {"diary": str(diary)}
    now = time.time()
    issued, expires = wall_text(now + 86400), wall_text(now - 60)
    plane.send({"id": "c", "verb": "nap", "arguments": arguments, "issued_at": issued, "expires_at": expires})
    assert plane.end("c")["state"] == "succeeded"


def test_a_command_that_waits_longer_than_its_message_expiry_is_expired(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    plane.command("first", "nap", diary=str(diary), seconds=3)
    plane.wait_state("first", "running")
    plane.send({"id": "second", "verb": "nap", "arguments": {"diary": str(diary)}}, MessageExpiryInterval=1)
    assert plane.end("second")["state"] == "expired"
    assert starts(diary) == ["first"]


def test_a_full_queue_rejects_with_busy(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    make_agent(mosquitto.port, commands="queue_limit = 1").start()
    plane.wait_status("online")
    for name in ("a", "b", "c"):
        plane.command(name, "nap", diary=str(diary), seconds=1)
    assert plane.end("c")["error"]["code"] == "busy"
    assert [plane.end(name)["state"] for name in ("a", "b")] == ["succeeded", "succeeded"]


def test_a_stuck_command_does_not_block_other_verbs(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("stuck", "nap", diary=str(diary), seconds=30, deaf=True)
    plane.wait_state("stuck", "running")
    plane.command("c", "doze", diary=str(diary))
    assert plane.end("c", 5)["state"] == "succeeded"


def test_a_running_command_is_cancelled(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=30)
    plane.wait_state("c", "running")
    plane.command("x", "cancel", id="c")
    assert plane.end("x")["result"] == {"id": "c", "state": "cancelled"}
    assert plane.end("c")["state"] == "cancelled"


def test_a_waiting_command_is_cancelled_before_it_begins(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("first", "nap", diary=str(diary), seconds=2)
    plane.command("second", "nap", diary=str(diary))
    plane.wait_state("second", "accepted")
    plane.command("x", "cancel", id="second")
    assert plane.end("second")["state"] == "cancelled"
    assert plane.end("first")["state"] == "succeeded"
    assert starts(diary) == ["first"]


@pytest.mark.parametrize(
    ("target", "code"), [("done", "not_running"), ("never", "unknown_command"), ("x", "not_running")]
)
def test_what_is_not_running_cannot_be_cancelled(
    agent: Agent, plane: Plane, diary: Path, target: str, code: str
) -> None:
    plane.wait_status("online")
    plane.command("done", "nap", diary=str(diary))
    plane.end("done")
    plane.command("x", "cancel", id=target)
    end = plane.end("x")
    assert (end["state"], end["error"]["code"]) == ("failed", code)


def test_a_bug_in_a_verb_fails_its_command_and_nothing_else(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), bug=True)
    error = plane.end("c")["error"]
    assert (error["code"], error["sentence"]) == ("internal", "internal error: ZeroDivisionError: a bug in a verb")
    plane.command("d", "nap", diary=str(diary))
    assert plane.end("d")["state"] == "succeeded"


def test_text_is_streamed_with_numbers(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), words=["once ", "upon ", "a time"])
    plane.end("c")
    assert plane.of("streams/c") == [
        {"id": "c", "sequence": number, "text": text} for number, text in enumerate(["once ", "upon ", "a time"])
    ]


def test_events_are_all_there_before_the_end_state(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), events=100)
    plane.end("c")
    assert [event["sequence"] for event in plane.of("events/naps")] == list(range(100))
    assert {event["command_id"] for event in plane.of("events/naps")} == {"c"}


def test_the_response_topic_gets_every_state_with_the_correlation_data(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    command = {"id": "c", "verb": "nap", "arguments": {"diary": str(diary)}}
    plane.send(command, ResponseTopic="answers/me", CorrelationData=b"\x00\x01")
    plane.end("c")

    def answers() -> list[str]:
        return [body["state"] for topic, body, _ in plane.seen if topic == "answers/me"]

    wait_for("answers", lambda: answers() == ["accepted", "running", "succeeded"])
    correlations = [
        properties.CorrelationData
        for (topic, _, _), properties in zip(plane.seen, plane.properties, strict=True)
        if topic == "answers/me"
    ]
    assert correlations == [b"\x00\x01"] * 3


def test_a_response_topic_on_our_own_command_topic_makes_no_loop(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    command = {"id": "c", "verb": "nap", "arguments": {"diary": str(diary)}}
    plane.send(command, ResponseTopic="edge/v1/bench/commands")
    plane.end("c")
    time.sleep(0.5)
    assert "ignored" not in agent.said
    assert "command c again" not in agent.said


def test_a_command_over_its_deadline_fails(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane
) -> None:
    make_agent(mosquitto.port, commands="probe_deadline_s = 0.05").start()
    plane.wait_status("online")
    plane.command("c", "probe")
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", "deadline_exceeded")


# -- power cuts


def test_after_a_kill_the_running_command_is_reported_as_interrupted_and_its_copy_is_not_run(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=60)
    plane.wait_state("c", "running")
    agent.kill()
    agent.start()
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", "interrupted")
    plane.command("c", "nap", diary=str(diary), seconds=60)
    assert wait_for("an answer", lambda: plane.states("c")[3:]) == [end]
    assert starts(diary) == ["c"]


def test_a_repeatable_command_is_carried_out_again_after_a_kill(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "doze", diary=str(diary), seconds=3)
    plane.wait_state("c", "running")
    agent.kill()
    agent.start()
    assert plane.end("c")["state"] == "succeeded"
    assert starts(diary) == ["c", "c"]


def test_a_repeatable_command_that_took_the_agent_down_twice_is_not_tried_a_third_time(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    plane.command("c", "doze", diary=str(diary), seconds=60)
    for number in (1, 2):
        wait_for("a start", lambda number=number: len(starts(diary)) == number)
        agent.kill()
        agent.start()
    assert plane.end("c")["error"]["code"] == "interrupted"
    assert starts(diary) == ["c", "c"]


def test_a_command_that_arrives_while_the_agent_is_down_is_carried_out_later(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    agent.kill()
    plane.command("c", "nap", diary=str(diary))
    agent.start()
    assert plane.end("c")["state"] == "succeeded"
    assert starts(diary) == ["c"]


def test_a_stop_reports_what_ran_before_it_says_offline(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=60)
    plane.wait_state("c", "running")
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 10
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", "interrupted")
    plane.wait_status("offline")
    order = [topic.rpartition("/")[2] for topic, body, _ in plane.seen if body["state"] in ("failed", "offline")]
    assert order == ["c", "status"]


def test_a_deaf_command_does_not_hold_up_the_stop(agent: Agent, plane: Plane, diary: Path) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=60, deaf=True)
    plane.wait_state("c", "running")
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 10
    assert plane.end("c")["error"]["code"] == "interrupted"


# -- the disk


def test_with_a_full_disk_the_agent_stays_up_says_degraded_and_refuses_runs(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    agent = make_agent(mosquitto.port)
    agent.state.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(agent.state)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        agent.start()
        plane.wait_status("online")
        with open(agent.state / "ballast", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        for number in range(40):  # the WAL has some room still
            plane.command(f"c{number}", "nap", diary=str(diary), words=["x" * 2000])
            if plane.end(f"c{number}")["state"] == "rejected":
                break
        assert plane.end(f"c{number}")["error"]["code"] == "store_unavailable"
        assert any("full" in reason for reason in plane.wait_status("degraded")["reasons"])
        plane.command("d", "doze", diary=str(diary))
        assert plane.end("d")["state"] == "succeeded"
        (agent.state / "ballast").unlink()
        plane.command("after", "nap", diary=str(diary))
        assert plane.end("after")["state"] == "succeeded"
        plane.wait_status("online")
        assert agent.stop() == 0
    finally:
        agent.kill()
        subprocess.run(["umount", "-l", str(agent.state)], check=True)


def test_with_a_broken_database_the_agent_starts_and_says_what_is_lost(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, diary: Path
) -> None:
    agent = make_agent(mosquitto.port)
    agent.state.mkdir()
    (agent.state / "agent.db").write_bytes(b"garbage " * 1000)
    agent.start()
    status = plane.wait_status("degraded")
    assert "agent.db.broken-1" in status["reasons"][0]
    plane.command("c", "nap", diary=str(diary))
    assert plane.end("c")["state"] == "succeeded"


@pytest.mark.parametrize(
    ("how", "code"), [("exit", "internal"), ("fail", "odd"), ("result that is no text", "internal")]
)
def test_a_verb_that_ends_in_an_odd_way_has_its_end_told_all_the_same(
    agent: Agent, plane: Plane, how: str, code: str
) -> None:
    plane.wait_status("online")
    plane.command("c", "odd", how=how)
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", code)
    plane.command("next", "odd", how="fail")
    plane.end("next")


def test_an_expiry_that_cannot_be_read_is_rejected_and_not_taken_for_none(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    plane.send({"id": "c", "verb": "nap", "arguments": {"diary": str(diary)}, "expires_at": "tomorrow"})
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("rejected", "malformed")
    assert "'tomorrow'" in end["error"]["sentence"]
    assert starts(diary) == []


def test_a_refusal_does_not_send_the_requesters_megabyte_back(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    plane.command("c", "cancel", id="x" * 500_000)
    sentence = plane.end("c")["error"]["sentence"]
    assert len(sentence) < 3000
    assert "500" in sentence


def test_a_record_that_cannot_be_read_costs_its_command_and_not_the_agent(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    """Another version of the agent, or a bad disk, has written it."""
    plane.wait_status("online")
    plane.command("runs", "nap", diary=str(diary), seconds=60)
    plane.wait_state("runs", "running")
    plane.command("ended", "doze", diary=str(diary))
    plane.end("ended")
    agent.kill()
    with sqlite3.connect(agent.state / "agent.db") as db:
        db.execute("UPDATE commands SET state_json = X'00FF'")
    db.close()
    agent.start()
    assert plane.end("runs")["error"]["code"] == "interrupted"
    plane.command("ended", "doze", diary=str(diary))
    again = wait_for("an answer", lambda: [state for state in plane.states("ended") if state["error"]])[0]
    assert (again["state"], again["error"]["code"]) == ("succeeded", "record_unreadable")
    assert starts(diary) == ["runs", "ended"]


def test_what_was_interrupted_is_told_also_when_the_disk_comes_back_after_the_start(
    agent: Agent, plane: Plane, diary: Path
) -> None:
    plane.wait_status("online")
    plane.command("c", "nap", diary=str(diary), seconds=60)
    plane.wait_state("c", "running")
    agent.kill()
    away = agent.state.rename(agent.state.with_name("away"))
    agent.state.write_text("no folder")
    agent.start()
    plane.wait_status("degraded")
    agent.state.unlink()
    away.rename(agent.state)
    assert plane.end("c")["error"]["code"] == "interrupted"
