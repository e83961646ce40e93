"""The command line in hostile hands: odd names, numbers, reports, streams and signals. Always a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

AGENT = (sys.executable, "-m", "agent")
REPO = Path(__file__).resolve().parent.parent
TINY = str(REPO / "runners" / "tiny" / "tiny.onnx")
END_S = 10.0


def run(
    *arguments: str | bytes, command: tuple[str, ...] = AGENT, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": REPO, **options}
    return subprocess.run([*command, *arguments], text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved report of the one check that the tests' plans rest on."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    done = run("probe", "--json", "memory", "onnxruntime/cpu")
    path.write_text(done.stdout)
    return path


def test_a_name_that_is_no_utf8_is_refused_in_a_sentence() -> None:
    done = run("plan", "--json", b"caf\xe9.onnx")
    assert done.returncode == 2
    assert "is no text in utf-8" in done.stderr
    assert "internal error" not in done.stderr


def test_a_terminal_without_unicode_still_shows_a_plan(report: Path, tmp_path: Path) -> None:
    model = tmp_path / "modèle.onnx"
    model.write_bytes(Path(TINY).read_bytes())
    done = run("plan", "--report", str(report), str(model), env={**os.environ, "PYTHONIOENCODING": "ascii:strict"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "mod\\xe8le.onnx" in done.stdout


def test_an_escape_sequence_in_a_name_does_not_reach_the_terminal(tmp_path: Path) -> None:
    done = run("plan", str(tmp_path / "\x1b[31mred.onnx"))
    assert "\x1b" not in done.stderr
    assert "\\x1b[31mred.onnx" in done.stderr


def test_an_unreadable_model_is_told_with_the_remedy_and_not_as_wrong_usage(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    model = tmp_path / "model.onnx"
    model.touch(mode=0)
    done = run("plan", str(model))
    assert done.returncode == 1
    assert "chmod" in done.stderr


def test_an_error_with_json_is_one_line_so_that_it_fits_among_json_lines(report: Path) -> None:
    done = run("run", "--json", "--report", str(report), TINY, "nowhere.png")
    assert done.returncode == 1
    assert [set(json.loads(line)) for line in done.stdout.splitlines()] == [{"error"}]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--context", "9" * 24),
        ("--max-tokens", "9" * 20),
        ("--seed", "9" * 20),
        ("--threads", "100000"),
        ("--batch", "9" * 20),
        ("--top", "9" * 20),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
    ],
)
def test_a_number_that_no_runtime_takes_is_wrong_usage(option: str, value: str) -> None:
    done = run("run", TINY, "x.png", option, value)
    assert done.returncode == 2
    assert option in done.stderr


def test_a_report_of_another_schema_is_refused(report: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(report.read_text()), "schema_version": 99}))
    done = run("plan", "--report", str(other), TINY)
    assert done.returncode == 1
    assert "schema version 99" in done.stderr


def test_a_report_without_an_end_is_refused() -> None:
    done = run("plan", "--report", "/dev/zero", TINY)
    assert done.returncode == 1
    assert "longer than" in done.stderr


@pytest.mark.parametrize("command", [AGENT, (sys.executable, "-m", "probes")], ids=["agent", "probes"])
def test_a_full_disk_behind_stdout_is_told(command: tuple[str, ...]) -> None:
    words = ("probe", "memory") if command is AGENT else ("memory",)
    with open("/dev/full", "w") as full:
        done = run(*words, command=command, stdout=full)
    assert done.returncode == 1
    assert "the output could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["-m agent probe --json memory", "-m probes memory", "-m runners --list"])
def test_streams_that_are_closed_are_no_error(words: str) -> None:
    done = run("-c", f"exec {sys.executable} {words} <&- >&- 2>&-", command=("sh",))
    assert done.returncode == 0


def test_runner_checks_need_no_docstrings() -> None:
    done = run("onnxruntime/cpu", command=(sys.executable, "-OO", "-m", "runners"))
    assert json.loads(done.stdout)["status"] == "works", done.stderr


def test_ctrl_c_ends_a_runner_check_without_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "runners", "llama_cpp/cpu"], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: children_of(process.pid) != [])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=END_S)
    assert process.returncode == 130
    assert b"Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_that_ends_the_demonstration_ends_its_daemon_too(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("iotcore")
    mark = f"{tmp_path}/scratch"
    Path(mark).mkdir()
    with subprocess.Popen(
        [*AGENT, "demo", "--out", str(tmp_path / "out")],
        cwd=REPO,
        env={**os.environ, "TMPDIR": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until(lambda: any(Path(mark).glob("edge-agent-demo-*/state/*")))
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -number
    assert b"Traceback" not in errors
    wait_until(lambda: with_tmpdir(mark) == [])
    if number is not signal.SIGKILL:
        assert list(Path(mark).iterdir()) == []


def wait_until(happened: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something that must come."""
    until_s = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.05)


def children_of(pid: int) -> list[str]:
    """The numbers of a process's children."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def with_tmpdir(folder: str) -> list[str]:
    """The processes that have this folder as TMPDIR."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found
