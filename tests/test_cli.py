"""The command line as people and scripts meet it: exit codes, sentences instead of tracebacks, JSON that validates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from agent.cli import EXIT_CODES, cli
from probes.contract import CapabilityReport

PROJECT = Path(__file__).parent.parent
TINY_LLM = PROJECT / "runners" / "tiny" / "tiny.gguf"


def edge_agent(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", *map(str, arguments)],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole survey of this machine, as `edge-agent probe --json` prints it."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    done = edge_agent("probe", "--json")
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout, encoding="utf-8")
    return path


def test_help_lists_every_command_and_the_exit_codes() -> None:
    text = edge_agent("--help").stdout
    assert all(name in text for name in ("probe", "plan", "run", "daemon", "demo", "config"))
    assert "3 it works, but not on the accelerator" in EXIT_CODES
    assert "accelerator that was demanded" in text


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_each_command_has_a_help_of_its_own(name: str) -> None:
    done = edge_agent(name, "--help")
    assert done.returncode == 0
    assert "--help" in done.stdout


def test_a_wrong_option_is_wrong_usage() -> None:
    done = edge_agent("probe", "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr


def test_a_wrong_check_is_wrong_usage_and_the_right_ones_are_named() -> None:
    done = edge_agent("probe", "vulcan")
    assert done.returncode == 2
    assert "vulkan" in done.stderr


def test_the_report_validates_against_the_schema_that_is_checked_in(report: Path) -> None:
    schema = json.loads((PROJECT / "docs" / "schemas" / "capability-report.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(report.read_text(encoding="utf-8")), schema)


def test_the_report_reads_back_as_the_struct(report: Path) -> None:
    read = msgspec.json.decode(report.read_bytes(), type=CapabilityReport)
    layers = [finding.layer for finding in read.findings]
    assert layers == sorted(layers)


@pytest.mark.parametrize("subject", ["vulkan", "opencl", "gles", "webgpu"])
def test_each_compute_api_works_here_on_the_cpu_and_says_so(report: Path, subject: str) -> None:
    finding = msgspec.json.decode(report.read_bytes(), type=CapabilityReport).finding(subject)
    assert finding is not None
    assert (finding.status.value, finding.device_kind.value) == ("works", "cpu"), finding.reason


@pytest.mark.parametrize("subject", ["cuda", "tensorrt"])
def test_what_is_absent_has_a_reason_and_a_remedy(report: Path, subject: str) -> None:
    finding = msgspec.json.decode(report.read_bytes(), type=CapabilityReport).finding(subject)
    assert finding is not None
    if finding.status.value == "works":
        pytest.skip(f"{subject} works on this machine: its absence can't be seen here")
    assert finding.reason
    assert finding.remedy


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.gguf", b"", "empty"),
        ("page.gguf", b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        ("pointer.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5429348224\n", "LFS"),
        ("cut.gguf", b"GGUF\x03\x00\x00\x00", "truncated"),
        ("hostile.gguf", b"GGUF\x03\x00\x00\x00" + b"\xff" * 92, ""),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_file_that_is_no_model_is_refused_in_a_sentence(
    tmp_path: Path, command: str, name: str, content: bytes, told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = edge_agent(command, path, *(["x"] if command == "run" else []))
    assert done.returncode == 1
    assert told.lower() in done.stderr.lower()
    assert done.stderr.startswith("edge-agent: ")
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_refused_in_a_sentence() -> None:
    done = edge_agent("plan", "/nonexistent/model.gguf")
    assert done.returncode == 1
    assert "/nonexistent/model.gguf" in done.stderr


def test_the_tiny_llm_runs_and_its_placement_is_told(report: Path) -> None:
    done = edge_agent("run", TINY_LLM, "hello", "--json", "--max-tokens", "4", "--report", report)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["placement"]["parts"][0]["device_kind"] == "cpu"
    assert outcome["timing"]["ttft_s"] > 0


def test_a_gpu_that_is_demanded_and_not_there_ends_with_3_and_the_reason(report: Path) -> None:
    done = edge_agent("run", TINY_LLM, "hello", "--require-gpu", "--report", report)
    assert done.returncode == 3
    assert "llama_cpp/cuda" in done.stderr
    assert edge_agent("plan", TINY_LLM, "--require-gpu", "--report", report).returncode == 3


def test_the_turned_astronaut_is_classified(report: Path, orientation: Path, astronaut: Path, tmp_path: Path) -> None:
    done = edge_agent("run", orientation, astronaut, "--json", "--report", report, "--annotate", tmp_path)
    assert done.returncode == 0, done.stderr
    first, last = (json.loads(line) for line in done.stdout.splitlines())
    assert first["classes"][0]["index"] == 0
    assert Path(first["annotated"]).parent == tmp_path
    assert last["outcome"]["placement"]["parts"][0]["nodes"] > 0


def test_a_wrong_key_in_the_configuration_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "edge-agent.toml"
    path.write_text('[mqtt]\nhots = "127.0.0.1"\n', encoding="utf-8")
    done = edge_agent("config", "--config", path)
    assert done.returncode == 2
    assert ":2:" in done.stderr
    assert "mqtt.host" in done.stderr
    assert edge_agent("daemon", "--config", path).returncode == 2


def test_the_environment_wins_and_its_name_is_told() -> None:
    done = edge_agent("config", "--json", EDGE_AGENT_MQTT_HOST="broker.example")
    setting = json.loads(done.stdout)["settings"]["mqtt.host"]
    assert setting == {"value": "broker.example", "source": "EDGE_AGENT_MQTT_HOST"}
