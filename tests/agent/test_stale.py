"""What a changed driver, kernel or manifest makes stale, and what is kept; how checks make way for a pipeline."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from agent import guest, report
from agent.guest import pipelines
from agent.report import all_checks, executes, parts, still_true, survey_report
from agent.survey import Survey
from probes.contract import CapabilityReport, Finding, Status
from probes.ground import ground
from probes.host import Host

SUBJECTS = ("opencl", "gles")


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def taken() -> CapabilityReport:
    return survey_report(subjects=("memory", *SUBJECTS))


def test_what_has_not_changed_is_not_executed_again(taken: CapabilityReport) -> None:
    executed: list[str] = []
    again = survey_report(
        subjects=("memory", *SUBJECTS), kept=taken, on_finding=lambda finding: executed.append(finding.subject)
    )
    assert executed == ["memory"], "a reading is taken anew each time"
    for subject in SUBJECTS:
        assert again.finding(subject) == taken.finding(subject)


def test_exactly_what_rests_on_a_changed_manifest_is_executed_again(
    taken: CapabilityReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ground

    def changed(host: Host, rests_on: tuple[str, ...], known: dict[str, bytes]) -> str:
        return "changed" if "opencl" in rests_on else real(host, rests_on, known)

    monkeypatch.setattr(report, "ground", changed)
    checks = list(all_checks(Host()).values())
    assert [finding.subject for finding in still_true(taken, checks, Host())] == ["gles"]


@pytest.mark.parametrize("status", [Status.BROKEN, Status.UNKNOWN])
def test_what_was_broken_is_tried_again(taken: CapabilityReport, status: Status) -> None:
    findings = tuple(msgspec.structs.replace(finding, status=status) for finding in taken.findings)
    kept = msgspec.structs.replace(taken, findings=findings)
    assert still_true(kept, list(all_checks(Host()).values()), Host()) == []


def test_nothing_is_kept_of_a_report_of_another_version(taken: CapabilityReport) -> None:
    other = msgspec.structs.replace(taken, schema_version=taken.schema_version + 1)
    assert still_true(other, list(all_checks(Host()).values()), Host()) == []


def test_the_causes_of_a_kept_finding_are_told_once(taken: CapabilityReport) -> None:
    absent = Finding(subject="opencl", layer=2, status=Status.ABSENT, reason="PLATFORM_NOT_FOUND_KHR")
    hardware = Finding(subject="hardware", layer=0, status=Status.WORKS, facts={"is_jetson": True, "l4t": "36.4.4"})
    once = report.build_report([hardware, absent], Host())
    twice = report.build_report(once.findings, Host())
    assert once.findings[1].facts["cause"]
    assert twice.findings == once.findings


def test_a_daemon_starts_with_what_its_last_life_found(tmp_path: Path) -> None:
    """Through the survey's own process, as the daemon does."""
    survey = Survey(str(tmp_path), "bench", lambda _data: None)
    first = msgspec.json.decode(survey.take((), never, 120), type=CapabilityReport)
    again = Survey(str(tmp_path), "bench", lambda _data: None)
    started = time.monotonic()
    second = msgspec.json.decode(again.take((), never, 120, renew=False), type=CapabilityReport)
    kept = [finding for finding in first.findings if finding.ground and finding.status in (Status.WORKS, Status.ABSENT)]
    assert len(kept) > 5
    assert [second.finding(finding.subject) for finding in kept] == kept
    third = msgspec.json.decode(again.take((), never, 120), type=CapabilityReport)
    assert time.monotonic() - started < 120
    assert third.finding("opencl") != second.finding("opencl"), "a survey that was asked for executes everything"


def test_a_kept_report_that_is_damaged_is_no_obstacle(tmp_path: Path) -> None:
    survey = Survey(str(tmp_path), "bench", lambda _data: None)
    (tmp_path / "report.json").write_bytes(b'{"fingerprint": "0", "findings": 7')
    data = survey.take(("opencl",), never, 60, renew=False)
    assert msgspec.json.decode(data, type=CapabilityReport).finding("opencl") is not None


# ---- making way -----------------------------------------------------------------------------------------------------


def test_all_is_read_before_the_wait_and_executed_after_it() -> None:
    checks = [check for name, check in all_checks(Host()).items() if name in ("memory", *SUBJECTS)]
    waited: list[bool] = []
    order = parts(checks, lambda: waited.append(True))
    assert [check.subject for check in next(order)] == ["memory"]
    assert not waited
    assert {check.subject for check in next(order)} == set(SUBJECTS)
    assert waited
    assert next(parts(checks, None)) == checks


def test_every_check_of_a_gpu_and_every_runner_waits() -> None:
    waiting = {name for name, check in all_checks(Host()).items() if executes(check)}
    assert {"vulkan", "cuda", "onnxruntime/cpu", "llama_cpp/cuda"} <= waiting
    assert not {"memory", "hardware", "jetpack", "packages"} & waiting


def test_a_loaded_model_is_a_pipeline_and_checks_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: no worker had a model to run")
    from runners.contract import OpenOptions
    from runners.llama_cpp import TINY
    from runners.worker import Worker

    monkeypatch.setattr(guest, "TURN_S", 0.05)
    told: list[str] = []
    worker = Worker.start("llama_cpp", str(TINY), OpenOptions(context_tokens=512, threads=1))

    def tell(text: str) -> None:
        told.append(text)
        worker.kill()

    try:
        assert worker.pid in pipelines()
        guest.wait_for_idle(tell)
    finally:
        worker.kill()
    assert len(told) == 1
    assert str(worker.pid) in told[0]
    assert "--now" in told[0]
    assert worker.pid not in pipelines()
