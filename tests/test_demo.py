"""The demonstration as `make run` ends in it: every step seen, results left, nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).parent.parent
ARGUMENTS = [sys.executable, "-m", "agent", "demo", "--out"]


def start(out: Path) -> subprocess.Popen[str]:
    """A demonstration whose processes can be told from all others by a mark in their environment."""
    return subprocess.Popen(
        [*ARGUMENTS, str(out)],
        cwd=PROJECT,
        env=os.environ | {"EDGE_AGENT_TEST_MARK": str(out)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def marked(out: Path) -> list[str]:
    """Command lines of processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("EDGE_AGENT_TEST_MARK") == str(out):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def wait_for(true: Callable[[], object], timeout_s: float = 20.0) -> bool:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    demo = start(out)
    text, _ = demo.communicate(timeout=170)
    assert demo.returncode == 0, text
    assert wait_for(lambda: not marked(out)), marked(out)
    return out, text


@pytest.mark.parametrize(
    "step",
    [
        "edge/v1/demo/status: online",
        "vulkan",
        "WORKS (cpu)",
        "sent twice and ran once",
        "report.html",
    ],
)
def test_each_step_is_shown(seen: tuple[Path, str], step: str) -> None:
    assert step in seen[1]


@pytest.mark.parametrize(
    "step", ["refused", "capital of France is Paris", "TTFT", "TPOT", "ITL", "tokens/s", "peak memory"]
)
def test_the_llm_is_planned_run_and_measured(seen: tuple[Path, str], smollm2: Path, step: str) -> None:
    assert step in seen[1]


def test_the_pictures_get_their_right_classes_with_frames_per_second(
    seen: tuple[Path, str], orientation: Path, astronaut: Path
) -> None:
    assert "frames/s" in seen[1]
    results = json.loads((seen[0] / "results.json").read_bytes())
    pictures = {Path(one["image"]).stem: one for one in results["pictures"]}
    # A picture turned anticlockwise by k x 90 degrees needs the rest of a full turn: classes 0, 270, 180, 90.
    for name in ("astronaut", "page"):
        labels = [pictures[f"{name}-{turn}"]["classes"][0]["label"] for turn in (0, 90, 180, 270)]
        assert labels == ["0", "270", "180", "90"]
    assert all(Path(one["annotated"]).is_file() for one in pictures.values())


def test_the_page_needs_nothing_but_itself(seen: tuple[Path, str]) -> None:
    page = (seen[0] / "report.html").read_text(encoding="utf-8")
    assert "<script src" not in page
    assert "http://" not in page
    assert "https://" not in page.replace("https://git-lfs", "")
    assert page.count("data:image/") >= 1


@pytest.mark.parametrize("after_s", [0.3, 1.5, 4.0])
def test_ctrl_c_at_any_moment_ends_everything_without_a_traceback(tmp_path: Path, after_s: float) -> None:
    demo = start(tmp_path)
    time.sleep(after_s)
    os.killpg(demo.pid, signal.SIGINT)
    text, _ = demo.communicate(timeout=40)
    assert demo.returncode == 130, text
    assert "Traceback" not in text
    assert wait_for(lambda: not marked(tmp_path)), marked(tmp_path)
