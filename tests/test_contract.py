"""What every probe and every runner promises, asked of each file that is there."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from probes.contract import Finding, Status
from probes.host import Host
from probes.isolation import execute, list_probes, probe_check
from probes.listing import FOLDER, probe_files
from runners.checks import runner_checks
from runners.contract import Backend
from runners.model import ModelInfo
from runners.registry import Listed, listed, read_listed, runners

PROBES = list_probes({})
RUNNERS = list(runners())
QUICK_S = 10.0  # for a check that executes nothing, on a busy machine


def module(name: str) -> ModuleType:
    return importlib.import_module(f"probes.{name}")


def first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def test_probes_and_runners_are_found_at_all() -> None:
    assert {"hardware", "jetpack", "memory", "cuda", "tensorrt", "vulkan", "opencl", "gles", "webgpu"} <= set(PROBES)
    assert {"llama_cpp", "onnxruntime"} <= set(RUNNERS)


def test_no_file_of_the_folder_has_a_layer_but_no_check_or_the_other_way_round() -> None:
    halves = [
        path.name for path in FOLDER.glob("*.py") if path.stem not in PROBES and hasattr(module(path.stem), "LAYER")
    ]
    assert halves == []


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_says_in_its_first_line_what_it_executes(name: str) -> None:
    line = first_line(module(name))
    assert 20 <= len(line) <= 120
    assert line.endswith(".")
    assert probe_files({})[name].summary == line


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_has_a_layer_from_0_to_7_and_a_check_of_a_host(name: str) -> None:
    probe = module(name)
    assert type(probe.LAYER) is int
    assert 0 <= probe.LAYER <= 7
    assert probe_files({})[name].layer == probe.LAYER
    assert list(inspect.signature(probe.check).parameters) == ["host"]
    assert first_line(probe.check)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_of_an_empty_recorded_device_answers_and_lets_no_exception_out(name: str, tmp_path: Path) -> None:
    finding = module(name).check(Host(root=tmp_path))
    assert (finding.subject, finding.layer) == (name, module(name).LAYER)
    assert finding.status in (Status.ABSENT, Status.UNKNOWN)
    assert finding.reason
    assert not finding.devices
    assert not [evidence for evidence in finding.evidence if evidence.device]


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_s_finding_reads_back_from_json_and_its_deadline_is_kept(name: str, tmp_path: Path) -> None:
    check = probe_check(name, root=tmp_path)
    assert 0 < check.deadline_s <= 300
    finding = execute(check)
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
    assert finding.status in (Status.ABSENT, Status.UNKNOWN)
    assert finding.duration_s < min(check.deadline_s, QUICK_S)


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_names_itself_its_layer_and_its_backends(name: str) -> None:
    runner = runners()[name]
    assert name == runner.NAME
    assert 0 <= runner.LAYER <= 7
    assert first_line(runner)
    names = [backend.name for backend in runner.BACKENDS]
    assert names
    assert len(set(names)) == len(names)
    assert all(isinstance(backend, Backend) for backend in runner.BACKENDS)
    assert {backend.api for backend in runner.BACKENDS} <= {"", *PROBES}


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_refuses_a_format_that_nobody_knows_with_a_reason(name: str) -> None:
    verdict = runners()[name].accepts(ModelInfo(path="model.xyz", format="xyz", size_bytes=1))
    assert not verdict.accepted
    assert verdict.reason


def test_every_backend_has_one_check_with_its_layer() -> None:
    checks = {check.subject: check for check in runner_checks()}
    told = {f"{name}/{b.name}": module.LAYER for name, module in runners().items() for b in module.BACKENDS}
    assert {subject: check.layer for subject, check in checks.items()} == told
    assert all(0 < check.deadline_s <= 300 for check in checks.values())


def test_a_runner_is_listed_by_its_text_or_else_asked(tmp_path: Path) -> None:
    usual = 'NAME = "x"\nLAYER = 4\nBACKENDS = (\n    Backend(name="cpu", kind=DeviceKind.CPU),\n)\nA = 1\n'
    assert read_listed(usual) == Listed(name="x", layer=4, backends=("cpu",))
    assert read_listed(usual.replace('Backend(name="cpu"', "Backend(name=CPU")) is None
    assert read_listed(usual.replace("LAYER = 4", "LAYER = other.LAYER")) is None
    assert listed.__wrapped__(tmp_path) == ()


@pytest.mark.parametrize("check", runner_checks(), ids=lambda check: check.subject)
def test_a_runner_s_check_answers_with_a_finding_that_reads_back(check) -> None:  # type: ignore[no-untyped-def]
    finding = execute(check)
    assert (finding.subject, finding.layer) == (check.subject, check.layer)
    assert finding.status is Status.WORKS or finding.reason
    assert not finding.reason.startswith(("the check raised", "died by", "its answer is no finding"))
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
