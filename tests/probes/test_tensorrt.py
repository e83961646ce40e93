"""TensorRT: the absent path as it is here, what the files on a device mean, and an engine built where it can be.

No engine is executed: that needs a GPU.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from nvidia_tools import importable

from probes import tensorrt, tensorrt_engine, tensorrt_rtx
from probes.contract import Status
from probes.host import Host
from tests.recorded import build_device, build_files

NO_MODULE = "No module named 'tensorrt'"
LIBRARY = "/usr/lib/aarch64-linux-gnu/libnvinfer.so.10.3.0"
JETSON = {"/proc/device-tree/compatible": "nvidia,tegra234\0"}


def installed(tmp_path: Path, files: dict[str, str]) -> tensorrt.Installed:
    return tensorrt.read_installed(build_files(tmp_path, files))


def test_without_tensorrt_it_is_absent_with_a_remedy() -> None:
    finding = tensorrt.check(Host())
    if finding.status is not Status.ABSENT:
        pytest.skip("this machine has TensorRT: the absent path was not taken")
    assert NO_MODULE in finding.reason
    assert finding.remedy


def test_nothing_at_all_on_a_jetson_names_the_packages_and_warns_of_pip(tmp_path: Path) -> None:
    status, _, remedy = tensorrt.judge_not_importable(NO_MODULE, True, installed(tmp_path, JETSON), "3.10")
    assert status is Status.ABSENT
    assert "apt install python3-libnvinfer" in remedy
    assert "--system-site-packages" in remedy
    assert "not for a Jetson" in remedy


def test_bindings_for_another_python_are_told_from_missing_ones(tmp_path: Path) -> None:
    files = JETSON | {
        LIBRARY: "ELF",
        "/usr/lib/python3.10/dist-packages/tensorrt/tensorrt.so": "ELF",
    }
    found = installed(tmp_path, files)
    assert found.binding_pythons == ["3.10"]
    status, reason, remedy = tensorrt.judge_not_importable(NO_MODULE, True, found, "3.12")
    assert status is Status.UNKNOWN
    assert "Python 3.10" in reason
    assert "this is Python 3.12" in reason
    assert "python3.10 -m venv --system-site-packages" in remedy


def test_the_same_python_in_a_closed_environment_is_told_so(tmp_path: Path) -> None:
    files = JETSON | {"/usr/lib/python3.10/dist-packages/tensorrt/tensorrt.so": "ELF"}
    _, reason, _ = tensorrt.judge_not_importable(NO_MODULE, True, installed(tmp_path, files), "3.10")
    assert "does not see system packages" in reason


def test_libraries_without_bindings_are_unknown_with_their_version(tmp_path: Path) -> None:
    found = installed(tmp_path, JETSON | {LIBRARY: "ELF"})
    status, reason, _ = tensorrt.judge_not_importable(NO_MODULE, True, found, "3.10")
    assert status is Status.UNKNOWN
    assert "libnvinfer 10.3.0 is installed without Python bindings" in reason


def test_bindings_without_their_library_are_broken(tmp_path: Path) -> None:
    said = "libnvinfer.so.8: cannot open shared object file: No such file or directory"
    status, reason, remedy = tensorrt.judge_not_importable(
        said, False, installed(tmp_path, JETSON | {LIBRARY: "ELF"}), "3.10"
    )
    assert status is Status.BROKEN
    assert said in reason
    assert "libnvinfer here: 10.3.0" in reason
    assert "not for a Jetson" in remedy


def test_bindings_that_open_their_libraries_by_ctypes_are_broken_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "tensorrt", "import ctypes; ctypes.CDLL('libnvinfer_of_a_test.so.10')")
    finding = tensorrt.check(Host())
    assert finding.status is Status.BROKEN
    assert "the bindings are there, but don't load: libnvinfer_of_a_test.so.10" in finding.reason
    assert finding.remedy


def test_a_missing_dla_compiler_names_its_own_package(tmp_path: Path) -> None:
    said = "libnvdla_compiler.so: cannot open shared object file"
    _, _, remedy = tensorrt.judge_not_importable(said, False, installed(tmp_path, JETSON), "3.10")
    assert "nvidia-l4t-dla-compiler" in remedy


def test_placeholders_of_no_bytes_mean_a_container_without_the_runtime(tmp_path: Path) -> None:
    found = installed(tmp_path, JETSON | {"/usr/lib/aarch64-linux-gnu/libnvinfer.so.8": ""})
    assert found.libraries == []
    status, _, remedy = tensorrt.judge_not_importable("file too short", False, found, "3.8")
    assert status is Status.ABSENT
    assert "--runtime nvidia" in remedy


@pytest.mark.parametrize(
    ("path", "python"),
    [
        ("/usr/lib/python3/dist-packages/tensorrt/tensorrt.cpython-312-aarch64-linux-gnu.so", "3.12"),
        ("/usr/lib/python3.10/dist-packages/tensorrt/tensorrt.so", "3.10"),
        ("/usr/lib/python3/dist-packages/tensorrt", None),
    ],
)
def test_a_binding_tells_its_python(path: str, python: str | None) -> None:
    assert tensorrt.binding_python(path) == python


def test_the_known_answer_is_the_sum() -> None:
    given = tensorrt_engine.problem()
    x, y, total = (array("f", data) for data in (given.x, given.y, given.expected))
    assert list(total) == [1024.0] * 1024
    assert len(set(x)) == len(set(y)) == 1024


def test_an_engine_is_really_built_where_a_tensorrt_is_importable() -> None:
    trt = _importable()
    lines: list[str] = []
    plan = tensorrt_engine.build_plan(trt, tensorrt_engine.make_logger(trt, lines))
    assert plan.nbytes > 1000, lines


def _importable() -> object:
    """TensorRT, or TensorRT for RTX, which has the same builder and needs no GPU to build."""
    for name in ("tensorrt", *tensorrt_rtx.MODULES):
        try:
            return __import__(name)
        except ImportError:
            continue
    pytest.skip("no TensorRT and no tensorrt-rtx-cu13-bindings: no engine was built")


def test_a_recorded_device_executes_nothing(tmp_path: Path) -> None:
    finding = tensorrt.check(build_device(tmp_path, "orin-nx-16gb-r36.3.0"))
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"
