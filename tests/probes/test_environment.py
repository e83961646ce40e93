"""Variables that change results: what they mean, and values that can't be meant so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import environment
from probes.contract import Status
from probes.host import Host


def check(**environ: str) -> Any:
    return environment.check(Host(environ=environ))


def test_none_is_set() -> None:
    finding = check(PATH="/bin", AWS_SECRET_ACCESS_KEY="secret")
    assert finding.status is Status.WORKS
    assert finding.facts == {"variables": {}, "meanings": {}}


def test_what_is_set_is_told_with_its_meaning() -> None:
    finding = check(GGML_VK_VISIBLE_DEVICES="1", GGML_OTHER="2", CUDA_VISIBLE_DEVICES="0")
    assert finding.status is Status.WORKS
    assert finding.facts["variables"] == {
        "CUDA_VISIBLE_DEVICES": "0",
        "GGML_OTHER": "2",
        "GGML_VK_VISIBLE_DEVICES": "1",
    }
    assert "own numbers" in finding.facts["meanings"]["GGML_VK_VISIBLE_DEVICES"]
    assert "settings of ggml" in finding.facts["meanings"]["GGML_OTHER"]


@pytest.mark.parametrize(
    ("name", "wrong", "fine", "said"),
    [
        ("CUDA_VISIBLE_DEVICES", "", "0,-1", "hides every GPU"),
        ("CUDA_VISIBLE_DEVICES", "-1", "0", "hides every GPU"),
        ("NVIDIA_VISIBLE_DEVICES", "void", "all", "hides every GPU"),
        (
            "VK_DRIVER_FILES",
            "/nowhere/nvidia_icd.json",
            "/etc/hostname",
            "/nowhere/nvidia_icd.json, which is not there",
        ),
        ("VK_ICD_FILENAMES", "/etc/hostname:/nowhere/b", "/etc/hostname", "names /nowhere/b"),
        ("LD_PRELOAD", "/nowhere/libgomp.so.1", "libgomp.so.1", "not there"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64/stubs/", "/usr/local/cuda/lib64", "stubs for linking"),
        ("DISPLAY", "localhost:10.0", ":0", "forwarded by ssh"),
        ("DISPLAY", "localhost:11", "localhost:0", "forwarded by ssh"),
    ],
)
def test_values_that_cannot_be_meant_so(name: str, wrong: str, fine: str, said: str) -> None:
    finding = check(**{name: wrong})
    assert finding.status is Status.BROKEN
    assert said in finding.reason
    assert f"unset {name}" in finding.remedy
    assert check(**{name: fine}).status is Status.WORKS


def test_a_recorded_device_has_no_environment(tmp_path: Path) -> None:
    assert environment.check(Host(root=tmp_path)).status is Status.UNKNOWN


@given(st.dictionaries(st.sampled_from([row.name.rstrip("*") for row in environment.VARIABLES]), st.text()))
def test_any_value_is_survived(environ: dict[str, str]) -> None:
    assert "\0" not in environment.check(Host(environ=environ)).facts["variables"].values()
