"""The table of verdicts: what was promised x what was found."""

from __future__ import annotations

import msgspec
import pytest

from hil.expectation import Expectation, Expected, ExpectedRun, Match, Promise
from hil.verdicts import Completed, Result, Verdict, judge, judge_run, verdicts
from probes.contract import (
    CapabilityReport,
    DeviceIdentity,
    DeviceKind,
    Evidence,
    Finding,
    Status,
    Witness,
    WitnessKind,
)

WORKS, ABSENT, OPTIONAL = Promise.WORKS, Promise.ABSENT, Promise.OPTIONAL
PASS, FAIL, MISS, SKIP = Result.PASS, Result.FAIL, Result.MISS, Result.SKIP
GPU, CPU, NPU = DeviceKind.GPU, DeviceKind.CPU, DeviceKind.NPU
API, COUNTERS, COMPARISON = WitnessKind.API, WitnessKind.COUNTERS, WitnessKind.COMPARISON


def executed(kind: DeviceKind, value: str = "4") -> Evidence:
    return Evidence(executed="2 + 2", device="a device", device_kind=kind, value=value, expected="4")


def said(kind: WitnessKind, spoke: bool = True) -> Witness:
    return Witness(kind=kind, source=f"the {kind.value}", spoke=spoke, text="words" if spoke else "its reason")


def finding(
    status: Status,
    *evidence: Evidence,
    subject: str = "vulkan",
    reason: str = "the reason",
    witnesses: tuple[Witness, ...] = (said(API), said(COMPARISON)),
) -> Finding:
    return Finding(
        subject=subject,
        layer=2,
        status=status,
        reason=reason,
        evidence=evidence,
        witnesses=witnesses if evidence else (),
    )


def report(*findings: Finding) -> CapabilityReport:
    return CapabilityReport(
        device=DeviceIdentity(id="d", l4t="36.4.3", architecture="aarch64"),
        taken_at="2026-01-01T00:00:00Z",
        clock_synchronised=True,
        agent_version="0",
        findings=findings,
        fingerprint="0",
    )


def expectation(device: dict[str, str] | None = None, **backends: Expected) -> Expectation:
    return Expectation(board="b", title="a board", seen="", match=Match(), device=device or {}, backends=backends)


@pytest.mark.parametrize(
    ("promise", "kind", "found", "result", "words"),
    [
        (WORKS, GPU, finding(Status.WORKS, executed(GPU)), PASS, "executed on the gpu"),
        (WORKS, CPU, finding(Status.WORKS, executed(CPU)), PASS, "executed on the cpu"),
        (WORKS, None, finding(Status.WORKS), PASS, "works"),
        (WORKS, GPU, finding(Status.WORKS, executed(CPU)), FAIL, "evidence is from the cpu"),
        (WORKS, CPU, finding(Status.WORKS, executed(GPU)), FAIL, "out of date"),
        (WORKS, GPU, finding(Status.WORKS), FAIL, "nothing was executed"),
        (WORKS, GPU, finding(Status.WORKS, executed(GPU, "5")), FAIL, "answered '5', not '4'"),
        (WORKS, None, finding(Status.WORKS, executed(GPU, "5")), FAIL, "answered '5', not '4'"),
        (WORKS, GPU, finding(Status.ABSENT), FAIL, "is absent: the reason"),
        (WORKS, GPU, finding(Status.BROKEN), FAIL, "is broken: the reason"),
        (WORKS, GPU, finding(Status.UNKNOWN), MISS, "could not be tried"),
        (ABSENT, None, finding(Status.ABSENT), SKIP, "the reason"),
        (ABSENT, None, finding(Status.UNKNOWN), SKIP, "the reason"),
        (ABSENT, None, finding(Status.WORKS, executed(GPU)), FAIL, "out of date"),
        (ABSENT, None, finding(Status.BROKEN), FAIL, "there and broken"),
        (OPTIONAL, GPU, finding(Status.ABSENT), SKIP, "the reason"),
        (OPTIONAL, GPU, finding(Status.WORKS, executed(GPU)), PASS, "executed on the gpu"),
        (OPTIONAL, GPU, finding(Status.WORKS, executed(CPU)), FAIL, "evidence is from the cpu"),
        (OPTIONAL, GPU, finding(Status.BROKEN), FAIL, "there and broken"),
    ],
)
def test_a_promise_and_a_finding_make(
    promise: Promise, kind: DeviceKind | None, found: Finding, result: Result, words: str
) -> None:
    verdict = judge(Expected(expect=promise, device_kind=kind), found)
    assert verdict.result is result
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("kind", "witnesses", "result", "words"),
    [
        (GPU, (said(API), said(COMPARISON)), PASS, "executed on the gpu"),
        (GPU, (said(API, False), said(COUNTERS), said(COMPARISON)), PASS, "executed on the gpu"),
        (GPU, (said(API), said(COMPARISON, False)), FAIL, "only api testifies (the comparison: its reason)"),
        (
            GPU,
            (said(COUNTERS), said(COUNTERS), said(API, False)),
            FAIL,
            "only counters testifies (the api: its reason)",
        ),
        (GPU, (said(API), said(API)), FAIL, "only api testifies (no other was asked)"),
        (GPU, (), FAIL, "nobody testifies"),
        (NPU, (said(API), said(COMPARISON)), PASS, "executed on the npu"),
        (NPU, (said(API), said(COUNTERS, False)), FAIL, "said to work on the npu"),
        (CPU, (said(API), said(COUNTERS, False)), PASS, "executed on the cpu"),
    ],
)
def test_two_kinds_of_witnesses_must_speak_for_an_accelerator(
    kind: DeviceKind, witnesses: tuple[Witness, ...], result: Result, words: str
) -> None:
    found = finding(Status.WORKS, executed(kind), witnesses=witnesses)
    for promised in (kind, None):
        verdict = judge(Expected(expect=WORKS, device_kind=promised), found)
        assert verdict.result is result
        if promised or result is FAIL:
            assert words in verdict.reason


def test_a_board_that_is_not_reached_is_missed_and_never_skipped() -> None:
    promised = expectation({"l4t": "36.*"}, vulkan=Expected(expect=WORKS), cuda=Expected(expect=ABSENT))
    found = verdicts(promised, None, "no route to host")
    assert [verdict.result for verdict in found] == [MISS, MISS, MISS]
    assert all("no route to host" in verdict.reason for verdict in found)


def test_a_check_that_the_survey_left_out_is_missed() -> None:
    found = verdicts(expectation(cuda=Expected(expect=ABSENT)), report())
    assert [(verdict.subject, verdict.result) for verdict in found] == [("cuda", MISS)]


def test_a_backend_without_a_promise_is_named() -> None:
    found = verdicts(expectation(), report(finding(Status.WORKS, executed(GPU))))
    assert [(verdict.subject, verdict.result) for verdict in found] == [("vulkan", SKIP)]
    assert "promises nothing" in found[0].reason


@pytest.mark.parametrize(("pattern", "result"), [("36.*", PASS), ("39.*", FAIL), ("", FAIL)])
def test_another_release_on_the_board_is_a_failure(pattern: str, result: Result) -> None:
    found = verdicts(expectation({"l4t": pattern}), report())
    assert [(verdict.subject, verdict.result) for verdict in found] == [("device", result)]


# ---- runs ----------------------------------------------------------------------------------------------------------

WANTED = ExpectedRun(name="llm", model="m/m.gguf", inputs=("Hi",), answer="hello", device_kind=GPU)


def outcome(*kinds: str, text: str = "hello you", errors: int = 0) -> str:
    parts = [{"device": f"{kind}0", "device_kind": kind, "layers": 2} for kind in kinds]
    placement = {"parts": parts, "source": "the log"}
    return msgspec.json.encode({"placement": placement, "text": text, "errors_count": errors, "more": 1}).decode()


def ended(stdout: str = "", status: int = 0, stderr: str = "", timed_out: bool = False) -> Completed:
    return Completed(argv=("x",), status=status, stdout=stdout, stderr=stderr, duration_s=2.0, timed_out=timed_out)


@pytest.mark.parametrize(
    ("done", "result", "words"),
    [
        (ended(outcome("gpu")), PASS, "answered rightly; the log"),
        (ended(outcome("gpu", "cpu")), FAIL, "proven is: gpu0 (gpu), cpu0 (cpu)"),
        (ended(outcome("cpu")), FAIL, "promised wholly on the gpu"),
        (ended(outcome()), FAIL, "proven is: nothing"),
        (ended(outcome("gpu", text="bye")), FAIL, "'hello' is not in the answer 'bye'"),
        (ended(outcome("gpu", errors=1)), FAIL, "1 inputs failed"),
        (
            ended(status=3, stderr="edge-agent: on the cpu\n→ x"),
            FAIL,
            "not on the accelerator that was",
        ),
        (ended(status=1, stderr="edge-agent: no road"), FAIL, "exit status 1: edge-agent: no road"),
        (ended("", status=0), FAIL, "no outcome"),
        (ended(status=-9, timed_out=True), FAIL, "no end within 2 s"),
    ],
)
def test_a_run_makes(done: Completed, result: Result, words: str) -> None:
    verdict = judge_run(WANTED, done)
    assert verdict.result is result
    assert words in verdict.reason


def test_a_run_that_could_not_be_started_is_missed() -> None:
    expected = Verdict(subject="run:llm", result=MISS, reason="not on the device: m/m.gguf")
    assert judge_run(WANTED, None, "not on the device: m/m.gguf") == expected


def test_images_are_answered_line_by_line_and_the_outcome_comes_last() -> None:
    images = msgspec.structs.replace(WANTED, input_files=True, answer='"label":"0"')
    lines = '{"classes":[{"label":"0"}]}\n{"outcome":' + outcome("gpu", text="") + "}\n"
    assert judge_run(images, ended(lines)).result is PASS
    assert judge_run(images, ended(lines.replace('"label":"0"', '"label":"90"'))).result is FAIL
