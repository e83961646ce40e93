"""DLA: where it is refused, which part is missing, and a builder that counts none. No engine runs: that needs a DLA."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from probes import dla, tensorrt_engine
from probes.contract import Status
from probes.dla import Parts
from probes.host import Host
from tests.probes.test_cuda import compile_c
from tests.recorded import build_device, build_files

NODE = "/dev/nvhost-ctrl-nvdla0"
MISSING = "libnvdla_compiler.so: cannot open shared object file: No such file or directory"


def test_a_machine_that_is_no_jetson_has_none() -> None:
    finding = dla.check(Host())
    assert finding.status in (Status.ABSENT, Status.UNKNOWN, Status.WORKS)
    if "soc" in finding.reason.lower():
        assert finding.status is Status.ABSENT


@pytest.mark.parametrize(
    ("name", "words", "source"),
    [
        ("orin-nano-super-r36.4.3", "the Orin Nano has no DLA", "DS-11105-001"),
        ("agx-thor-r39.2.1", "Thor has no DLA", "Working with DLA"),
        ("jetson-nano-r32.7.1", "only Xavier and Orin", "Deep-Learning-Accelerator-SW"),
    ],
)
def test_modules_without_one_are_refused_with_the_source(tmp_path: Path, name: str, words: str, source: str) -> None:
    finding = dla.check(build_device(tmp_path, name))
    assert finding.status is Status.ABSENT
    assert finding.reason.startswith(f"refused: {words}")
    assert source in finding.reason
    assert finding.facts["datasheet_dla_count"] == 0
    assert "GPU" in finding.remedy


def test_a_recorded_module_with_two_says_so_and_that_nothing_was_executed(tmp_path: Path) -> None:
    host = build_device(tmp_path, "orin-nx-16gb-r36.3.0")
    (tmp_path / "dev").mkdir(exist_ok=True)
    (tmp_path / NODE.lstrip("/")).touch()
    finding = dla.check(host)
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"
    assert finding.facts["datasheet_dla_count"] == 2
    assert finding.facts["dla_nodes"] == [NODE]


def test_a_module_that_is_not_known_has_no_count(tmp_path: Path) -> None:
    host = build_files(tmp_path, {"/proc/device-tree/compatible": "nvidia,p9999-0001\0nvidia,tegra374\0"})
    assert dla.check(host).facts["datasheet_dla_count"] is None


@pytest.mark.parametrize(
    ("major", "words"), [(36, "nvidia-l4t-dla-compiler"), (39, "nvidia-l4t-dla-compiler"), (35, "reinstall")]
)
def test_a_missing_compiler_is_broken_and_names_its_package(major: int, words: str) -> None:
    judged = dla.judge_parts(Parts(count=2, nodes=(NODE,), compiler=MISSING, l4t_major=major))
    assert judged is not None
    assert judged[0] is Status.BROKEN
    assert MISSING in judged[1]
    assert words in judged[2]
    assert ("nvidia-l4t-dla-compiler" in judged[2]) is (major >= 36)


def test_missing_nodes_mean_different_things() -> None:
    boxed = dla.judge_parts(Parts(count=2, in_container=True))
    assert boxed is not None
    assert boxed[0] is Status.ABSENT
    assert "--runtime nvidia" in boxed[2]
    bare = dla.judge_parts(Parts(count=2))
    assert bare is not None
    assert bare[0] is Status.UNKNOWN
    assert "2 DLA by its data sheet" in bare[1]
    stranger = dla.judge_parts(Parts())
    assert stranger is not None
    assert stranger[0] is Status.ABSENT
    assert "not in our table" in stranger[1]


def test_with_nodes_and_compiler_tensorrt_is_asked() -> None:
    assert dla.judge_parts(Parts(count=2, nodes=(NODE,), compiler="loads")) is None


def test_a_tensorrt_that_counts_no_core_is_told_from_a_device_without_one() -> None:
    judged = dla.judge_cores(0, "11.1.0")
    assert judged is not None
    assert judged[0] is Status.UNKNOWN
    assert "TensorRT 11.1.0 counts no core" in judged[1]
    assert "JetPack's own TensorRT" in judged[2]
    assert dla.judge_cores(2, "10.3.0") is None


def test_cudla_counts_or_says_nothing(tmp_path: Path) -> None:
    source = "int cudlaDeviceGetCount(unsigned long long *n) { *n = 2; return FAILS; }"
    right = ctypes.CDLL(str(compile_c(source.replace("FAILS", "0"), tmp_path / "liba.so")))
    wrong = ctypes.CDLL(str(compile_c(source.replace("FAILS", "9"), tmp_path / "libb.so")))
    none = ctypes.CDLL(str(compile_c("int nothing;", tmp_path / "libc_.so")))
    assert [dla.cudla_count(library) for library in (right, wrong, none)] == [2, None, None]


def test_a_builder_without_dla_makes_no_engine_for_the_gpu_in_its_place() -> None:
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="no tensorrt-rtx-cu13-bindings: no builder was asked")
    lines: list[str] = []
    with pytest.raises(tensorrt_engine.EngineFailed, match="can't put an addition on the DLA"):
        tensorrt_engine.build_plan(trt, tensorrt_engine.make_logger(trt, lines), dla_core=0)
