"""The suite itself: the choice of a file, the commands on a target, what is written down."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from hil.expectation import Machine, Promise, boards, choose, load
from hil.results import kcidb, kcidb_path, table
from hil.target import PROJECT, LocalTarget, Recorded, TargetUnreachable, find_file, parse_machine
from hil.verdicts import Completed, Result, Verdict
from probes.listing import probe_files
from runners.registry import runners

KCIDB_STATUSES = {"FAIL", "ERROR", "MISS", "PASS", "DONE", "SKIP"}  # kcidb-io, schema 5
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("machine", "board"),
    [
        (Machine(architecture="x86_64"), "ci-x86-nogpu"),
        (Machine(architecture="x86_64", nvidia_gpus=("NVIDIA H200",), render_nodes=("renderD128",)), "x86-h200"),
        (Machine(architecture="aarch64", compatible=("nvidia,p3767-0005",), l4t=36), "orin-nano-jp6"),
        (Machine(architecture="aarch64", compatible=("nvidia,p3834-0008",), l4t=39), "agx-thor-jp7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_board_finds_its_own_file(machine: Machine, board: str) -> None:
    assert choose(machine, [load(name) for name in boards()]).board == board


@pytest.mark.parametrize(
    "machine",
    [
        Machine(architecture="x86_64", render_nodes=("renderD128",)),
        Machine(architecture="x86_64", nvidia_gpus=("NVIDIA RTX 3090",), render_nodes=("renderD128",)),
        Machine(architecture="aarch64", compatible=("nvidia,p3767-0005",), l4t=39),
        Machine(),
    ],
    ids=["laptop", "desktop", "orin-on-jetpack-7", "unknown"],
)
def test_a_machine_that_nothing_was_promised_for_is_told_what_it_is(machine: Machine) -> None:
    with pytest.raises(LookupError, match=r"none\. Name one with --hil-expect"):
        choose(machine, [load(name) for name in boards()])


@pytest.mark.parametrize("board", boards())
def test_a_file_is_called_like_its_board_and_promises_something_about_everything(board: str) -> None:
    checks = {name for name, file in probe_files(None).items()}
    checks |= {f"{name}/{backend.name}" for name, runner in runners().items() for backend in runner.BACKENDS}
    expectation = load(board)
    assert expectation.board == board
    assert set(expectation.backends) == checks


@pytest.mark.parametrize("board", boards())
def test_what_is_promised_to_work_on_a_gpu_is_promised_as_such(board: str) -> None:
    on_gpu = {name for name, file in probe_files(None).items() if file.uses_gpu}
    promised = load(board).backends
    nowhere = {name for name in on_gpu if promised[name].expect is Promise.WORKS and not promised[name].device_kind}
    assert nowhere == set()


def test_a_misspelt_key_in_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('board = "b"\ntitle = ""\nseen = ""\n[match]\nl4 = 36\n[backends]\n')
    with pytest.raises(ValueError, match=r"b\.toml: .*`l4`"):
        load("b", tmp_path)


def test_what_a_jetson_prints_is_read() -> None:
    text = "architecture aarch64\ncompatible nvidia,p3768-0000+p3767-0005\ncompatible nvidia,tegra234\nl4t 36\n"
    assert parse_machine(text + "render_node renderD128\n") == Machine(
        architecture="aarch64",
        compatible=("nvidia,p3768-0000+p3767-0005", "nvidia,tegra234"),
        l4t=36,
        render_nodes=("renderD128",),
    )


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    done = LocalTarget().run(("sh", "-c", script), 1.0)
    assert done.timed_out
    assert done.duration_s < 10
    assert is_gone(int((tmp_path / "child").read_text()))


def is_gone(pid: int) -> bool:
    """Whether a process ends within seconds; one that nobody has waited for yet is gone, too."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_command_that_is_not_there_means_the_target_is_not_reached(tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable, match="missing: No such file"):
        LocalTarget().run((str(tmp_path / "missing"),), 1.0)


def test_every_command_is_kept_with_what_it_printed(tmp_path: Path) -> None:
    Recorded(LocalTarget(), tmp_path).run(("sh", "-c", "echo out; echo err >&2; exit 5"), 5.0)
    kept = msgspec.json.decode((tmp_path / "commands.jsonl").read_bytes(), type=Completed)
    assert (kept.status, kept.stdout, kept.stderr) == (5, "out\n", "err\n")


def test_the_bundled_model_is_found_and_a_missing_one_is_not() -> None:
    assert find_file(LocalTarget(), "runners/tiny.gguf") == str(PROJECT / "runners/tiny/tiny.gguf")
    assert find_file(LocalTarget(), "runners/none.gguf") == ""
    assert find_file(LocalTarget(), "nopackage/none.gguf") == ""


def some_verdicts() -> list[Verdict]:
    return [
        Verdict(subject="llama_cpp/cpu", result=Result.PASS, reason="executed", device="a CPU", duration_s=1.5),
        Verdict(subject="cuda", result=Result.FAIL, reason="broken"),
        Verdict(subject="run:tiny", result=Result.SKIP, reason="absent"),
    ]


def test_the_results_are_in_the_manner_of_kcidb(tmp_path: Path) -> None:
    document = kcidb(load("ci-x86-nogpu"), some_verdicts(), None, [tmp_path / "report.json"], AT, "abc")
    tests = document["tests"]
    assert [test["path"] for test in tests] == ["hil.llama_cpp.cpu", "hil.cuda", "hil.run.tiny"]
    assert [test["status"] for test in tests] == ["PASS", "FAIL", "SKIP"]
    assert {result.value for result in Result} <= KCIDB_STATUSES
    assert len({test["id"] for test in tests}) == len(tests)
    assert tests[0]["duration"] == 1.5
    assert "duration" not in tests[1]
    assert {test["build_id"] for test in tests} == {document["builds"][0]["id"]}
    assert document["checkouts"][0]["git_commit_hash"] == "abc"
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", kcidb_path(test["misc"]["subject"])) for test in tests)


def test_the_table_shows_the_worst_first() -> None:
    lines = table(load("ci-x86-nogpu"), some_verdicts()).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["FAIL", "PASS", "SKIP"]
    assert lines[-1].strip() == "1 FAIL, 1 PASS, 1 SKIP"


def test_an_agent_that_is_not_there_fails_the_whole_run_as_missed(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    environ = os.environ | {"HIL_PYTHON": missing, "HIL_OUT": str(tmp_path), "HIL_EXPECT": "ci-x86-nogpu"}
    suite = PROJECT / "tests" / "hil"
    quiet = ("-q", "-p", "no:cacheprovider", f"--confcutdir={suite}")  # without the summary of the whole suite
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, str(suite / "test_device.py")],
        cwd=PROJECT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    document = msgspec.json.decode((tmp_path / "ci-x86-nogpu" / "results.json").read_bytes())
    assert {test["status"] for test in document["tests"]} == {"MISS"}
    assert f"no survey: {missing}: No such file or directory" in document["tests"][0]["misc"]["reason"]
