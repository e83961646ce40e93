"""Models that really run: directly, and by a command over MQTT, with what can happen on the way."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench import Agent, Mosquitto, Plane, wait_for

import runners
from agent.report import survey_report
from agent.running import NotOnAccelerator, RunOptions, file_in_folder, run_language, run_vision
from probes.contract import CapabilityReport, DeviceKind
from runners.contract import FinishReason, GenerateRequest, ModelRejected, RequestRejected, RunnerError
from runners.messages import Classify

TINY = Path(runners.__file__).parent / "tiny"
RUN_S = 120.0
SUBJECTS = ("hardware", "memory", "llama_cpp/cpu", "onnxruntime/cpu")


@pytest.fixture(scope="module")
def report() -> CapabilityReport:
    report = survey_report(subjects=SUBJECTS)
    for subject in SUBJECTS[2:]:
        finding = report.finding(subject)
        if finding is None or finding.status.value != "works":
            pytest.skip(f"{subject} does not work here: {finding.reason if finding else 'not surveyed'}")
    return report


def workers(parent: int) -> list[int]:
    """Processes of workers below this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            status = Path(f"/proc/{name}/status").read_text()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and b"runners.worker" in command:
            found.append(int(name))
    return found


# -- directly


def test_a_language_model_runs_and_proves_where(report: CapabilityReport) -> None:
    pieces: list[str] = []
    request = GenerateRequest(prompt="a", max_tokens=8)
    outcome = run_language(TINY / "tiny.gguf", request, report, on_piece=pieces.append)
    assert "".join(pieces) == outcome.text
    assert outcome.timing.output_tokens
    assert outcome.placement.all_on(DeviceKind.CPU)
    assert not outcome.on_gpu
    assert outcome.route == outcome.plan.best


def test_a_demanded_gpu_that_is_not_there_fails_with_the_reasons(report: CapabilityReport) -> None:
    with pytest.raises(NotOnAccelerator) as caught:
        run_language(TINY / "tiny.gguf", GenerateRequest(prompt="a"), report, RunOptions(require_gpu=True))
    assert caught.value.code == "not_on_gpu"
    assert "llama_cpp/cuda: " in caught.value.reason


def test_a_language_model_takes_no_images_and_an_image_model_no_prompt(report: CapabilityReport) -> None:
    with pytest.raises(ModelRejected, match="takes no images"):
        run_vision(TINY / "tiny.gguf", Classify(images=("a.png",)), report)
    with pytest.raises(ModelRejected, match="takes no prompt"):
        run_language(TINY / "tiny.onnx", GenerateRequest(prompt="a"), report)


def test_a_run_that_is_cancelled_returns_what_there_was(report: CapabilityReport, smollm2: Path) -> None:
    seen = threading.Event()
    request = GenerateRequest(prompt="Once upon a time", max_tokens=2000)
    outcome = run_language(smollm2, request, report, on_piece=lambda _: seen.set(), cancelled=seen.is_set)
    assert outcome.finish_reason is FinishReason.CANCELLED
    assert outcome.text


def test_a_run_over_its_deadline_is_ended(report: CapabilityReport, smollm2: Path) -> None:
    began = time.monotonic()
    request = GenerateRequest(prompt="Once upon a time", max_tokens=2000)
    with pytest.raises(RunnerError) as caught:
        run_language(smollm2, request, report, RunOptions(deadline_s=3))
    assert caught.value.code == "deadline_exceeded"
    assert time.monotonic() - began < 20
    assert workers(os.getpid()) == []


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "sub/../../secret", "link", "loop", "nul\0", "none.gguf", ".", ""]
)
def test_a_file_name_never_leaves_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("s")
    models = tmp_path / "models"
    (models / "sub").mkdir(parents=True)
    (models / "link").symlink_to(tmp_path / "secret")
    (models / "loop").symlink_to(models / "loop")
    with pytest.raises(ModelRejected) as caught:
        file_in_folder(str(models), name)
    assert "model " in caught.value.reason


def test_a_file_in_the_folder_is_found_by_either_form_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.gguf").write_text("m")
    assert file_in_folder(str(tmp_path), "sub/m.gguf") == (tmp_path / "sub" / "m.gguf").resolve()
    assert file_in_folder(str(tmp_path), str(tmp_path / "sub" / "m.gguf")) == (tmp_path / "sub" / "m.gguf").resolve()
    with pytest.raises(RequestRejected, match=r"image 'x\.png'"):
        file_in_folder(str(tmp_path), "x.png", "image", RequestRejected)


# -- by command


@pytest.fixture
def equipped(mosquitto: Mosquitto, make_agent: Callable[..., Agent], plane: Plane, report: CapabilityReport) -> Agent:
    """An agent with models, online, that was surveyed in an earlier life."""
    agent = make_agent(mosquitto.port)
    agent.state.mkdir()
    (agent.state / "report.json").write_bytes(msgspec.json.encode(report))
    for name in ("tiny.gguf", "tiny.onnx"):
        shutil.copy(TINY / name, agent.models / name)
    agent.start()
    plane.wait_status("online")
    return agent


def long_run(plane: Plane, agent: Agent, smollm2: Path, command_id: str = "c") -> int:
    """Start a run that takes minutes; returns its worker's process id."""
    if not (agent.models / "long.gguf").exists():
        shutil.copy(smollm2, agent.models / "long.gguf")
    plane.command(command_id, "run", model="long.gguf", prompt="Once upon a time", max_tokens=1900)
    wait_for("text", lambda: plane.of(f"streams/{command_id}"), RUN_S)
    assert agent.process is not None
    return int(wait_for("worker", lambda: workers(agent.process.pid))[0])  # type: ignore[union-attr]


def test_a_plan_tells_roads_and_refusals(equipped: Agent, plane: Plane) -> None:
    plane.command("c", "plan", model="tiny.gguf")
    result = plane.end("c", RUN_S)["result"]
    assert result["model"]["format"] == "gguf"
    assert [route["backend"] for route in result["plan"]["accepted"]] == ["cpu"]
    assert all(route["reason"] for route in result["plan"]["refused"])


def test_a_language_run_streams_its_text_and_tells_placement_and_timing(equipped: Agent, plane: Plane) -> None:
    plane.command("c", "run", model="tiny.gguf", prompt="a", max_tokens=8)
    result = plane.end("c", RUN_S)["result"]
    assert "".join(chunk["text"] for chunk in plane.of("streams/c")) == result["text"]
    assert result["placement"]["parts"][0]["device_kind"] == "cpu"
    assert result["timing"]["output_tokens"] > 0
    assert result["on_gpu"] is False
    assert equipped.process is not None
    assert workers(equipped.process.pid) == []


def test_a_vision_run_sends_one_event_per_image_and_annotated_pictures(
    equipped: Agent, plane: Plane, orientation: Path, astronaut: Path
) -> None:
    shutil.copy(orientation, equipped.models / "o.onnx")
    for number in range(3):
        shutil.copy(astronaut, equipped.models / f"{number}.png")
    (equipped.models / "broken.png").write_bytes(b"no image")
    images = ["0.png", "1.png", "broken.png", "2.png"]
    plane.command("c", "run", model="o.onnx", images=images, pipeline="door", annotate=True)
    end = plane.end("c", RUN_S)
    assert end["error"] is None
    events = plane.of("events/door")
    assert [event["sequence"] for event in events] == [0, 1, 2, 3]
    assert [bool(event["data"].get("error")) for event in events] == [False, False, True, False]
    assert (end["result"]["results_count"], end["result"]["errors_count"]) == (4, 1)
    assert Path(events[0]["data"]["annotated"]).is_relative_to(equipped.state / "annotated" / "c")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"model": "../../etc/passwd", "prompt": "a"}, "model_rejected", "is outside of"),
        ({"model": "none.gguf", "prompt": "a"}, "model_rejected", "no such file"),
        ({"model": "tiny.gguf", "prompt": "a", "require_gpu": True}, "not_on_gpu", "a GPU was demanded"),
        ({"model": "tiny.onnx", "images": ["/etc/hostname"]}, "request_rejected", "is outside of"),
        ({"model": "tiny.gguf", "prompt": "a", "runtime": "none"}, "runtime_unavailable", "no road"),
    ],
)
def test_a_run_that_cannot_be_is_failed_with_its_reason(
    equipped: Agent, plane: Plane, arguments: dict[str, Any], code: str, said: str
) -> None:
    plane.command("c", "run", **arguments)
    end = plane.end("c", RUN_S)
    assert (end["state"], end["error"]["code"]) == ("failed", code)
    assert said in end["error"]["sentence"]


def test_a_killed_worker_fails_the_run_with_the_signal_and_the_agent_lives(
    equipped: Agent, plane: Plane, smollm2: Path
) -> None:
    os.kill(long_run(plane, equipped, smollm2), signal.SIGKILL)
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", "worker_died")
    assert "SIGKILL" in end["error"]["sentence"]
    plane.command("d", "run", model="tiny.gguf", prompt="a", max_tokens=4)
    assert plane.end("d", RUN_S)["state"] == "succeeded"


def test_a_running_model_is_cancelled_and_its_process_is_gone(equipped: Agent, plane: Plane, smollm2: Path) -> None:
    worker = long_run(plane, equipped, smollm2)
    plane.command("x", "cancel", id="c")
    assert plane.end("c")["state"] == "cancelled"
    wait_for("the worker's end", lambda: not Path(f"/proc/{worker}").exists())


def test_a_killed_agent_takes_its_worker_along_and_reports_the_run_as_interrupted(
    equipped: Agent, plane: Plane, smollm2: Path
) -> None:
    worker = long_run(plane, equipped, smollm2)
    equipped.kill()
    wait_for("the worker's end", lambda: not alive(worker))
    equipped.start()
    end = plane.end("c")
    assert (end["state"], end["error"]["code"]) == ("failed", "interrupted")
    plane.command("c", "run", model="long.gguf", prompt="Once upon a time", max_tokens=1900)
    wait_for("an answer", lambda: plane.states("c")[-2:] == [end, end])
    assert equipped.process is not None
    assert workers(equipped.process.pid) == []


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_stopped_agent_ends_its_worker_in_time(equipped: Agent, plane: Plane, smollm2: Path) -> None:
    worker = long_run(plane, equipped, smollm2)
    began = time.monotonic()
    assert equipped.stop() == 0
    assert time.monotonic() - began < 10
    assert not alive(worker)
    assert plane.end("c")["error"]["code"] == "interrupted"
