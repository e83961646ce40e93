"""`edge-agent probe` with its options, as people type it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.diff import changes, fact_text
from probes.contract import (
    CapabilityReport,
    Device,
    DeviceIdentity,
    DeviceKind,
    Evidence,
    Finding,
    Status,
    Witness,
    WitnessKind,
)

PROJECT = Path(__file__).parents[2]
GPU = Evidence(executed="saxpy", device="Orin", device_kind=DeviceKind.GPU, value="3", expected="3")
CPU = msgspec.structs.replace(GPU, device="llvmpipe", device_kind=DeviceKind.CPU)


def probe(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", "probe", *map(str, arguments)],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def report(*findings: Finding, **identity: str) -> CapabilityReport:
    return CapabilityReport(
        device=DeviceIdentity(id="d", **identity),
        taken_at="2026-12-04T06:00:00.000Z",
        clock_synchronised=True,
        agent_version="0",
        findings=findings,
        fingerprint="0",
    )


def vulkan(status: Status = Status.WORKS, *evidence: Evidence, **more: object) -> Finding:
    return Finding(subject="vulkan", layer=2, status=status, evidence=evidence, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "report.json"
    assert probe("memory", "opencl", "--save", path).returncode in (0, 1)
    return path


# ---- quick, only ----------------------------------------------------------------------------------------------------


def test_quick_reads_and_executes_nothing() -> None:
    found = msgspec.json.decode(probe("--quick", "--json").stdout, type=CapabilityReport)
    executing = [finding for finding in found.findings if finding.ground or "/" in finding.subject]
    assert all(finding.status is Status.UNKNOWN for finding in executing)
    for subject in ("vulkan", "cuda", "opencl", "gles", "webgpu", "tensorrt"):
        finding = found.finding(subject)
        assert finding is not None
        assert (finding.status, finding.evidence) == (Status.UNKNOWN, ()), finding
        assert "quick" in finding.reason
    memory = found.finding("memory")
    assert memory is not None
    assert memory.facts["memory_total_bytes"]


HEAVY = [
    "argparse",
    "asyncio",
    "email",
    "http",
    "importlib.metadata",
    "numpy",
    "rich",
    "runners.llama_cpp",
    "sqlite3",
    "tempfile",
    "zipfile",
]


def test_quick_imports_nothing_that_takes_long() -> None:
    code = "import sys; from agent.cli import cli; cli(['probe', '--quick', '--json'], standalone_mode=False)"
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False)
    bare = [sys.executable, "-c", "import click, msgspec, sys; print(*sys.modules)"]
    needed = subprocess.run(bare, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.returncode == 0
    assert "agent.quick" in done.stderr.split()
    assert {*HEAVY} & ({*done.stderr.split()} - {*needed.stdout.split()}) == set()


def test_quick_starts_no_process(tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: it was not seen that --quick starts no process")
    log = tmp_path / "log"
    argv = ["strace", "-f", "-e", "trace=execve", "-o", str(log), sys.executable, "-m", "agent", "probe", "--quick"]
    subprocess.run(argv, cwd=PROJECT, check=True, capture_output=True, timeout=60)
    assert log.read_text().count("execve(") == 1


def test_only_is_the_same_as_naming() -> None:
    found = json.loads(probe("--only", "memory,hardware", "--json").stdout)
    assert [finding["subject"] for finding in found["findings"]] == ["hardware", "memory"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--quick", "--deep"),
        ("--sign", "key.pem"),
        ("--verify", "key.pub"),
        ("--only", "vulcan"),
        ("--watch", "2", "--root", "/tmp"),
        ("--watch", "0"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = probe(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") < 6
    assert "Traceback" not in done.stderr


# ---- the tree -------------------------------------------------------------------------------------------------------


def test_the_tree_tells_layers_states_reasons_witnesses_and_ages(tmp_path: Path) -> None:
    finding = vulkan(
        Status.WORKS,
        GPU,
        taken_at="2026-12-04T03:00:00Z",
        witnesses=(Witness(kind=WitnessKind.COUNTERS, source="NVML", spoke=False, text="no libnvidia-ml.so.1"),),
    )
    broken = Finding(subject="opencl", layer=2, status=Status.BROKEN, reason="bad [ICD]", remedy="mend it")
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(report(finding, broken, model="Orin Nano", l4t="36.4.4")))
    text = probe("--report", path).stdout
    for part in (
        "Orin Nano",
        "L4T 36.4.4",
        "1 works, 1 broken",
        "2 compute API",
        "WORKS (gpu)",
        "taken 3 h before",
        "silent: no libnvidia-ml.so.1",
        "bad [ICD]",
        "→ mend it",
    ):
        assert part in text, text


# ---- diff -----------------------------------------------------------------------------------------------------------


def test_a_fall_back_to_the_cpu_is_a_change_for_the_worse() -> None:
    (change,) = changes(report(vulkan(Status.WORKS, GPU)), report(vulkan(Status.WORKS, CPU)))
    assert (change.worse, change.text) == (True, "was WORKS (gpu), is WORKS (cpu)")


def test_changes_are_told_in_words_and_readings_are_none() -> None:
    memory = Finding(subject="memory", layer=0, status=Status.WORKS, facts={"memory_available_bytes": 1})
    old = report(memory, vulkan(Status.BROKEN, reason="no driver"), l4t="36.4.3")
    new = report(
        msgspec.structs.replace(memory, facts={"memory_available_bytes": 2}),
        vulkan(Status.WORKS, GPU, version="1.3", devices=(Device(index=0, name="Orin", kind=DeviceKind.GPU),)),
        Finding(subject="webgpu", layer=2, status=Status.ABSENT),
        l4t="36.4.4",
    )
    assert [(change.subject, change.text) for change in changes(old, new)] == [
        ("device", "l4t: 36.4.3 → 36.4.4"),
        ("vulkan", "was BROKEN, is WORKS (gpu)"),
        ("vulkan", "version: unknown → 1.3"),
        ("webgpu", "is new: ABSENT"),
    ]
    assert not any(change.worse for change in changes(old, new))
    assert [change.text for change in changes(new, report(l4t="36.4.4"))][-1] == "is no longer checked; it was ABSENT"
    assert changes(new, new) == []


def test_diff_compares_with_a_saved_report(saved: Path, tmp_path: Path) -> None:
    same = probe("--report", saved, "--diff", saved)
    assert (same.returncode, same.stdout.startswith("nothing has changed since 20")) == (0, True)
    old = json.loads(saved.read_text())
    old["device"]["l4t"] = "35.6.1"
    older = tmp_path / "older.json"
    older.write_text(json.dumps(old))
    assert probe("--report", saved, "--diff", older).stdout == "device: l4t: 35.6.1 → unknown\n"
    as_json = json.loads(probe("--report", saved, "--diff", older, "--json").stdout)
    assert as_json == [{"subject": "device", "worse": False, "text": "l4t: 35.6.1 → unknown"}]


def test_watch_shows_the_report_then_only_changes_until_ctrl_c() -> None:
    argv = [sys.executable, "-m", "agent", "probe", "memory", "opencl", "--watch", "1", "--json"]
    process = subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert [finding["subject"] for finding in first["findings"]] == ["memory", "opencl"]
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == ""
    assert process.returncode == 130, err
    assert "Traceback" not in err


# ---- files ----------------------------------------------------------------------------------------------------------


def test_the_page_is_written_whole(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert probe("--report", saved, "--html", page).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "opencl" in text
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_file_that_cannot_be_written_is_named(saved: Path, tmp_path: Path) -> None:
    for option in ("--save", "--html"):
        done = probe("--report", saved, option, tmp_path / "missing" / "file")
        assert done.returncode == 1
        assert "No such file or directory" in done.stderr
        assert "missing" in done.stderr


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("cryptography", reason="cryptography is not installed: no report was signed")
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "key.pem", folder / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return private, public


def test_a_signed_report_is_verified_by_us_and_by_openssl(saved: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    signed = tmp_path / "signed.json"
    assert probe("--report", saved, "--save", signed, "--sign", keys[0]).returncode == 0
    assert probe("--report", signed, "--verify", keys[1], "--json").stdout == probe("--report", saved, "--json").stdout
    argv = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(keys[1]), "-rawin", "-in", str(signed)]
    done = subprocess.run([*argv, "-sigfile", f"{signed}.sig"], capture_output=True, text=True, check=False)
    assert "Verified Successfully" in done.stdout
    signed.write_text(signed.read_text().replace('"works"', '"broken"', 1))
    changed = probe("--report", signed, "--verify", keys[1])
    assert changed.returncode == 1
    assert "changed after it was signed" in changed.stderr


def test_a_key_of_another_kind_is_named(saved: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    rsa = tmp_path / "rsa.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(rsa), "2048"], check=True, capture_output=True)
    for key in (rsa, saved, keys[1]):
        done = probe("--report", saved, "--save", tmp_path / "x.json", "--sign", key)
        assert done.returncode == 1
        assert "openssl genpkey" in done.stderr
        assert not (tmp_path / "x.json").exists()


def test_a_list_of_named_values_is_told_in_words() -> None:
    two = [{"component": "cuda", "found": "12.8"}, {"component": "vpi", "found": None}]
    assert fact_text(two) == "component: cuda, found: 12.8; component: vpi, found: unknown"
    assert fact_text([1, "a"]) == "1, a"
    assert fact_text([]) == "none"
