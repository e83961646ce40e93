"""TensorRT-RTX: refused where it can't work, and what a failed import means. No engine is run: that takes a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvidia_tools import importable

from probes import tensorrt_rtx
from probes.contract import Status
from probes.host import Host
from tests.recorded import build_device

JETSONS = ("orin-nano-super-r36.4.3", "agx-thor-r39.2.1", "xavier-nx-r35.4.1", "container-on-orin-csv-r36")


@pytest.mark.parametrize("name", JETSONS)
def test_a_jetson_is_told_that_it_is_not_for_embedded(tmp_path: Path, name: str) -> None:
    finding = tensorrt_rtx.check(build_device(tmp_path, name))
    assert finding.status is Status.ABSENT
    assert "not for embedded" in finding.reason
    assert "TensorRT, which comes with JetPack" in finding.remedy


def test_a_recorded_rtx_desktop_is_not_refused(tmp_path: Path) -> None:
    finding = tensorrt_rtx.check(build_device(tmp_path, "desktop-rtx-3090"))
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"


def test_here_it_is_absent_or_waits_for_cuda() -> None:
    finding = tensorrt_rtx.check(Host())
    if finding.status is Status.WORKS:
        pytest.skip("an RTX GPU: neither path was taken")
    if "module" in finding.facts:
        assert "is importable, but CUDA does not start" in finding.reason or "refused" in finding.reason
    else:
        assert finding.status is Status.ABSENT
        assert "pip install tensorrt-rtx-cu13-bindings" in finding.remedy


def test_without_a_gpu_there_is_nothing_to_do_and_with_one_there_is() -> None:
    _, reason, remedy = tensorrt_rtx.judge_not_importable("No module", True, False)
    assert "no NVIDIA GPU seen" in reason
    assert "nothing to do" in remedy
    status, _, remedy = tensorrt_rtx.judge_not_importable("No module", True, True)
    assert status is Status.ABSENT
    assert "nothing to do" not in remedy
    assert tensorrt_rtx.judge_not_importable("libx.so: no", False, True)[0] is Status.BROKEN


def test_bindings_whose_library_is_missing_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "tensorrt_rtx", "import ctypes; ctypes.CDLL('libtensorrt_rtx_of_a_test.so.1')")
    finding = tensorrt_rtx.check(Host())
    assert finding.status is Status.BROKEN
    assert "libtensorrt_rtx_of_a_test.so.1" in finding.reason


def test_bindings_that_miss_another_module_are_broken_and_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "tensorrt_rtx", "import a_module_of_a_test")
    finding = tensorrt_rtx.check(Host())
    assert finding.status is Status.BROKEN
    assert "a_module_of_a_test" in finding.reason
