"""ONNX Runtime reports to nobody when it is loaded by us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "from probes.contract import Status; from runners.onnxruntime import check; print(check('cpu').status.value)"


def test_loading_onnx_runtime_leaves_no_telemetry_session_behind(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    environ = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environ.pop("ORT_DISABLE_TELEMETRY", None)
    environ.pop("CI", None)  # it switches telemetry off, too
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).resolve().parents[2],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "works"
    assert [path.name for path in tmp_path.rglob("*")] == []
