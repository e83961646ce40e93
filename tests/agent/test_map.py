"""`edge-agent stack` and `edge-agent explain`: every term, every question, and states that the findings bear out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.cli import cli
from agent.commands_map import taken
from agent.term_state import TermState, state_of
from probes.contract import (
    CapabilityReport,
    Device,
    DeviceIdentity,
    DeviceKind,
    Evidence,
    Finding,
    Status,
)
from probes.stack import Confusion, Term, load_stack
from tests.recorded import build_folder, read_device

PROJECT = Path(__file__).parents[2]
TERMS = load_stack().terms
CONFUSIONS = load_stack().confusions
POCL = Device(index=1, name="cpu-haswell", kind=DeviceKind.CPU, driver="Portable Computing Language 6.0")
ORIN = Device(index=0, name="Orin", kind=DeviceKind.GPU, driver="NVIDIA CUDA 540")


def report(*findings: Finding) -> CapabilityReport:
    return CapabilityReport(
        device=DeviceIdentity(id="d", model="Orin [Nano]"),
        taken_at="2026-12-04T06:00:00.000Z",
        clock_synchronised=True,
        agent_version="0",
        findings=findings,
        fingerprint="0",
    )


def finding(subject: str, status: Status = Status.WORKS, layer: int = 2, **more: object) -> Finding:
    return Finding(subject=subject, layer=layer, status=status, **more)  # type: ignore[arg-type]


def ran(device: Device, value: str = "3") -> Evidence:
    return Evidence(executed="saxpy", device=device.name, device_kind=device.kind, value=value, expected="3")


def state(name: str, *findings: Finding) -> TermState:
    return state_of(load_stack().term(name), report(*findings))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "report.json"
    path.write_bytes(
        msgspec.json.encode(
            report(
                finding("hardware", layer=0, facts={"is_jetson": True}),
                finding("opencl", devices=(ORIN,), evidence=(ran(ORIN),)),
                finding("vulkan", Status.BROKEN, reason="no [driver]", remedy="install it"),
            )
        )
    )
    return path


def edge_agent(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def explained(*arguments: str | Path) -> dict[str, list[dict[str, object]]]:
    done = edge_agent("explain", "--json", *arguments)
    assert done.exit_code == 0, done.output
    document: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return document


# ---- every term and every question ----------------------------------------------------------------------------------


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.term)
def test_every_term_is_explained_under_each_of_its_names(term: Term, saved: Path) -> None:
    text = edge_agent("explain", term.term, "--report", saved).stdout
    squeezed = "".join(text.split())
    for part in (term.term, term.layer, term.kind, term.rests_on, term.on_a_jetson, "here", "what to do"):
        assert "".join(part.split()) in squeezed, text
    for name in (term.term, term.term.upper(), *term.aliases):
        assert term.term in [told["term"] for told in explained(name, "--report", saved)["terms"]], name


@pytest.mark.parametrize("confusion", CONFUSIONS, ids=lambda confusion: confusion.question)
def test_every_question_is_answered_as_asked_and_by_its_names(confusion: Confusion, saved: Path) -> None:
    plain = confusion.question.upper().replace("?", "").replace('"', "")
    for asked in (confusion.question, plain):
        (told,) = explained(asked, "--report", saved)["questions"]
        assert (told["question"], told["answer"]) == (confusion.question, confusion.answer)
        assert told["reason"] == confusion.reason
    for name in (*confusion.terms, *confusion.aliases):
        questions = [told["question"] for told in explained(name, "--report", saved)["questions"]]
        assert confusion.question in questions, name
    text = edge_agent("explain", *confusion.question.split(), "--report", saved).stdout
    assert f"{confusion.answer.capitalize()}. " in text


def test_a_question_in_other_words_is_understood_by_its_names(saved: Path) -> None:
    told = explained("difference between Vulkan and CUDA", "--report", saved)
    assert [question["question"] for question in told["questions"]] == ["Are Vulkan and CUDA the same?"]
    told = explained("TensorRT-LLM or TensorRT Edge-LLM", "--report", saved)
    assert len(told["questions"]) == 1


def test_a_format_and_its_runtime_are_two_things(saved: Path) -> None:
    assert [term["term"] for term in explained(".mnn", "--report", saved)["terms"]] == [".mnn"]
    assert [term["term"] for term in explained("MNN", "--report", saved)["terms"]] == ["MNN"]
    both = [term["term"] for term in explained("litertlm", "--report", saved)["terms"]]
    assert both == [".litertlm", "LiteRT-LM"]


def test_what_it_is_confused_with_is_told(saved: Path) -> None:
    (webgl,) = explained("WebGL", "--report", saved)["terms"]
    assert webgl["confused_with"] == ["WebGPU"]
    (llm,) = explained("TensorRT-LLM", "--report", saved)["terms"]
    assert llm["confused_with"] == ["LiteRT-LM", "TensorRT-RTX", "TensorRT Edge-LLM"]


@pytest.mark.parametrize("asked", ["vulcan", "Is the moon CUDA?", "???", "no such thing"])
def test_an_unknown_term_is_wrong_usage(asked: str) -> None:
    done = edge_agent("explain", asked)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "no term" in done.stderr
    assert asked != "vulcan" or "near: Vulkan" in done.stderr


def test_without_an_argument_all_that_can_be_asked_is_listed() -> None:
    text = "".join(edge_agent("explain").stdout.split())
    for name in (*(term.term for term in TERMS), *(confusion.question for confusion in CONFUSIONS)):
        assert "".join(name.split()) in text
    told = json.loads(edge_agent("explain", "--json").stdout)
    assert (len(told["terms"]), len(told["questions"])) == (len(TERMS), len(CONFUSIONS))


# ---- the state ------------------------------------------------------------------------------------------------------


def test_pocl_is_judged_by_the_platform_of_its_device() -> None:
    nvidia = finding("opencl", devices=(ORIN,), evidence=(ran(ORIN),))
    assert state("OpenCL", nvidia).state == "works"
    assert state("PoCL", nvidia).state == "absent"
    both = finding("opencl", devices=(ORIN, POCL), evidence=(ran(ORIN), ran(POCL)))
    assert (state("PoCL", both).state, state("PoCL", both).device_kind) == ("works", "cpu")
    wrong = finding("opencl", devices=(ORIN, POCL), evidence=(ran(ORIN), ran(POCL, "4")))
    assert state("PoCL", wrong).state == "broken"
    assert state("PoCL", finding("opencl", Status.UNKNOWN, reason="recorded", devices=(POCL,))).state == "unknown"
    assert state("PoCL", finding("opencl", Status.BROKEN, reason="a driver crashed")).state == "unknown"
    assert state("PoCL", finding("opencl", Status.ABSENT, reason="no platform")).state == "absent"


def test_a_machine_that_is_no_jetson_does_not_have_one() -> None:
    assert state("Jetson Orin Nano (and its family)", finding("hardware", facts={"is_jetson": True})).state == "works"
    other = state("Jetson Orin Nano (and its family)", finding("hardware", facts={"is_jetson": False, "model": "Pi 5"}))
    assert (other.state, other.reason) == ("absent", "Pi 5 is no Jetson")
    assert state("Jetson Orin Nano (and its family)", finding("hardware", facts={})).state == "unknown"


def test_a_geforce_is_one_only_by_name() -> None:
    card = Device(index=0, name="NVIDIA GeForce RTX 3090", kind=DeviceKind.GPU)
    works = state("GeForce RTX / RTX PRO", finding("cuda", devices=(card,), evidence=(ran(card),)))
    assert (works.state, works.device_kind) == ("works", "gpu")
    assert state("GeForce RTX / RTX PRO", finding("cuda", devices=(ORIN,), evidence=(ran(ORIN),))).state == "absent"


def test_the_api_decides_and_a_library_that_is_missing_is_named() -> None:
    cuda = finding("cuda", devices=(ORIN,), evidence=(ran(ORIN),))
    told = state("CUDA", finding("cuda_runtime", Status.BROKEN, reason="libcudart is missing"), cuda)
    assert (told.state, told.device_kind) == ("works", "gpu")
    assert "cuda_runtime is broken: libcudart is missing" in told.reason
    assert state("CUDA", finding("cuda", Status.BROKEN, reason="error 999"), finding("cuda_runtime")).state == "broken"


def test_a_runtime_works_by_its_best_backend() -> None:
    cpu = Device(index=0, name="EPYC", kind=DeviceKind.CPU)
    on_cpu = finding("llama_cpp/cpu", layer=5, evidence=(ran(cpu),))
    on_gpu = finding("llama_cpp/cuda", layer=5, evidence=(ran(ORIN),))
    broken = finding("llama_cpp/vulkan", Status.BROKEN, layer=5, reason="crashed", remedy="mend it")
    told = state("llama.cpp", on_cpu, broken, on_gpu)
    assert (told.state, told.device_kind, told.remedy) == ("works", "gpu", "")
    assert "llama_cpp/vulkan is broken: crashed" in told.reason
    assert (state("Vulkan backend", on_cpu, broken, on_gpu).state, state("ONNX Runtime", on_cpu).state) == (
        "broken",
        "not checked",
    )


def test_stack_tells_each_term_once_at_its_layer(saved: Path) -> None:
    document = json.loads(edge_agent("stack", "--json", "--report", saved).stdout)
    layers = document["layers"]
    assert [layer["layer"] for layer in layers] == list(range(8))
    told = {term["term"]: term for layer in layers for term in layer["terms"]}
    assert sorted(told) == sorted(term.term for term in TERMS)
    assert (told["Vulkan"]["state"], told["Vulkan"]["remedy"]) == ("broken", "install it")
    assert told["CUDA"]["state"] == "not checked"
    assert "cuda" in told["CUDA"]["reason"]
    text = edge_agent("stack", "--report", saved).stdout
    for part in ("Orin [Nano]", "Vulkan  BROKEN", "no [driver]", "→ install it", "NIM  not checked", "OpenCL  WORKS"):
        assert part in text, text


def test_a_recorded_device_tells_what_it_is(tmp_path: Path) -> None:
    root = build_folder(tmp_path, read_device("orin-nano-super-r36.4.3"))
    (jetson,) = explained("Jetson", "--root", root)["terms"]
    assert jetson["state"] == "works"
    (vulkan,) = explained("Vulkan backend", "--root", root)["terms"]
    assert (vulkan["state"], "recorded" in str(vulkan["reason"])) == ("unknown", True)


def test_only_the_checks_of_the_term_are_executed() -> None:
    found = taken([load_stack().term("PoCL")], True, {"quick": True})
    assert found is not None
    assert [finding.subject for finding in found.findings] == ["opencl"]
    assert taken([load_stack().term("NIM")], True, {}) is None


def test_a_file_that_is_no_report_fails_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("{}")
    for command in (["stack"], ["explain", "CUDA"]):
        done = edge_agent(*command, "--report", path)
        assert (done.exit_code, "not a report" in done.stderr) == (1, True)


def test_it_executes_here() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "explain", "--json", "opencl", "--now"],
        cwd=PROJECT,
        env=os.environ.copy(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (told,) = json.loads(done.stdout)["terms"]
    assert told["subjects"] == ["opencl"]
    assert told["state"] in ("works", "broken", "absent")
