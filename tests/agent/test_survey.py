"""The device's report over MQTT: a real survey in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from bench import BASE, Agent, Mosquitto, Plane, wait_for

from agent.survey import Survey
from probes.contract import CapabilityReport

SURVEY_S = 90.0


def reports(plane: Plane) -> list[CapabilityReport]:
    return [msgspec.convert(body, CapabilityReport, strict=False) for body in plane.of("capabilities")]


def test_the_report_is_published_after_the_start_and_retained(agent: Agent, mosquitto: Mosquitto, plane: Plane) -> None:
    wait_for("capabilities", lambda: reports(plane), SURVEY_S)
    late = Plane(mosquitto.port)
    wait_for("the retained report", lambda: reports(late))
    report = reports(late)[0]
    late.close()
    assert report.device.id == "bench"
    assert report.finding("memory") is not None
    assert [retained for topic, _, retained in late.seen if topic == f"{BASE}/capabilities"] == [True]


def test_a_survey_that_changes_nothing_is_published_only_on_request(agent: Agent, plane: Plane) -> None:
    first = wait_for("capabilities", lambda: reports(plane), SURVEY_S)[0]
    plane.command("quiet", "probe", publish=False)
    assert plane.end("quiet", SURVEY_S)["result"]["fingerprint"] == first.fingerprint
    assert len(reports(plane)) == 1
    plane.command("loud", "probe")
    plane.end("loud", SURVEY_S)
    wait_for("the second report", lambda: len(reports(plane)) == 2)


def test_a_partial_survey_answers_with_its_findings_and_publishes_nothing(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    plane.command("c", "probe", subjects=["memory"])
    result = plane.end("c", SURVEY_S)["result"]
    assert [(finding["subject"], finding["status"]) for finding in result["findings"]] == [("memory", "works")]
    wait_for("capabilities", lambda: reports(plane), SURVEY_S)
    assert all(len(report.findings) > 3 for report in reports(plane))


def test_a_check_that_does_not_exist_is_named(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    plane.command("c", "probe", subjects=["vulkan", "flux-capacitor"])
    error = plane.end("c", SURVEY_S)["error"]
    assert error["code"] == "unknown_subject"
    assert "no check is called 'flux-capacitor'; there are " in error["sentence"]


def test_a_survey_is_cancelled_with_its_probes(agent: Agent, plane: Plane) -> None:
    plane.wait_status("online")
    plane.command("c", "probe")
    plane.wait_state("c", "running")
    plane.command("x", "cancel", id="c")
    assert plane.end("x", 20)["state"] == "succeeded"
    assert plane.end("c", 20)["state"] == "cancelled"


def test_a_broker_that_has_forgotten_the_report_gets_it_again(
    mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane
) -> None:
    make_agent(mosquitto.port).start()
    wait_for("capabilities", lambda: reports(plane), SURVEY_S)
    mosquitto.kill()
    mosquitto.start()
    wait_for("subscription", plane.subscribed.is_set)
    time.sleep(2)
    late = Plane(mosquitto.port)
    wait_for("the report", lambda: reports(late))
    late.close()


@pytest.mark.parametrize("left", [b"", b"\0" * 4096, b'{"fingerprint": "ab", "find', b"[]", b'{"fingerprint":"\xff"}'])
def test_a_kept_report_that_a_power_cut_has_damaged_is_not_published(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "report.json").write_bytes(left)
    published: list[bytes] = []
    survey = Survey(str(tmp_path), "bench", published.append)
    survey.publish_again()
    assert published == []
    assert survey.last is None
