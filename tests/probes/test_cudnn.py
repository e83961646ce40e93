"""CuDNN: the absent way as it is here, versions and causes. Its real library is not installed for tests (516 MB).

The functions and their arguments were tried once by hand with cuDNN 9.28.1 on a machine without a GPU: versions,
descriptors, and cudnnCreate's "not initialized" (1001).
"""

from __future__ import annotations

import ctypes
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import cudnn
from probes.contract import Status
from probes.cuda_libraries import Gpu, Loaded
from probes.cudadriver import CudaError
from probes.host import Host
from tests.probes.test_cuda import compile_c
from tests.recorded import build_device, build_files

FILE = "/usr/lib/aarch64-linux-gnu/libcudnn.so.9.3.0"


def test_without_cudnn_it_is_absent_with_a_remedy() -> None:
    finding = cudnn.check(Host())
    if finding.status is not Status.ABSENT:
        pytest.skip("this machine has cuDNN: the absent path was not taken")
    assert "libcudnn.so.9" in finding.reason
    assert finding.remedy


@pytest.mark.parametrize(
    ("number", "version"),
    [(8904, "8.9.4"), (7605, "7.6.5"), (90300, "9.3.0"), (92801, "9.28.1"), (0, None), (-1, None)],
)
def test_both_ways_of_counting_versions_are_read(number: int, version: str | None) -> None:
    assert cudnn.parse_version(number) == version


@given(st.integers(-(2**63), 2**63))
def test_any_number_is_a_version_or_none(number: int) -> None:
    for parse in (cudnn.parse_version, cudnn.parse_cudart):
        text = parse(number)
        assert text is None or text.replace(".", "").isdigit()


@given(st.text())
def test_any_words_of_a_loader_name_a_major_or_none(said: str) -> None:
    assert (cudnn.soname_major(said) or "0").isdigit()
    assert cudnn.soname_major(f"{said} libcudnn.so.8: cannot open") is not None


def test_the_answer_is_the_sum_and_none_of_its_parts() -> None:
    given = cudnn.problem()
    x, y, total = (array("f", data) for data in (given.x, given.y, given.expected))
    assert [a + 2 * b for a, b in zip(x, y, strict=True)] == list(total)
    assert not set(total) & set(x)
    assert len(set(total)) == cudnn.WIDTH


def test_no_cudnn_on_a_jetson_names_its_package() -> None:
    status, _, remedy = cudnn.judge_not_loaded(Loaded(problem="libcudnn.so.9: cannot open"), True, False)
    assert status is Status.ABSENT
    assert "nvidia-jetpack" in remedy


def test_a_placeholder_in_a_jetsons_container_names_the_runtime() -> None:
    loaded = Loaded(files=(FILE,), problem=f"{FILE}: file too short")
    status, _, remedy = cudnn.judge_not_loaded(loaded, True, True)
    assert status is Status.ABSENT
    assert "--runtime nvidia" in remedy


def test_a_file_that_does_not_load_is_broken() -> None:
    loaded = Loaded(files=(FILE,), problem="libcublasLt.so.12: cannot open shared object file")
    status, reason, _ = cudnn.judge_not_loaded(loaded, True, False)
    assert status is Status.BROKEN
    assert "libcublasLt.so.12" in reason


def test_a_cudnn_for_a_newer_cuda_is_the_cause_of_its_failure_but_not_within_a_major() -> None:
    reason, remedy = cudnn.judge_failed("cudnnCreate: (1001)", 1001, "13.5", "12.6")
    assert "made for CUDA 13.5, the driver supports 12.6" in reason
    assert "JetPack" in remedy
    reason, remedy = cudnn.judge_failed("cudnnCreate: (1001)", 1001, "12.9", "12.6")
    assert reason == "cudnnCreate: (1001)"
    assert "memory" in remedy


def test_a_library_of_that_name_that_is_none_is_broken(tmp_path: Path) -> None:
    path = compile_c("int nothing;", tmp_path / "libcudnn.so.9")
    finding = cudnn._execute(Host(), ctypes.CDLL(str(path)), Gpu(problem="no libcuda"), {})
    assert finding.status is Status.BROKEN
    assert "has no cudnnGetVersion" in finding.reason


def test_an_error_is_told_in_cudnns_own_words(tmp_path: Path) -> None:
    source = 'const char *cudnnGetErrorString(int n) { return n == 1001 ? "CUDNN_STATUS_NOT_INITIALIZED" : "?"; }'
    library = ctypes.CDLL(str(compile_c(source, tmp_path / "libwords.so")))
    words = cudnn.error_text(library, CudaError("cudnnCreate", 1001, ""))
    assert words == "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001)"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in cudnn.error_text(library, CudaError("cuMemAlloc_v2", 2, ""))


def test_a_recorded_device_tells_its_files_and_executes_nothing(tmp_path: Path) -> None:
    assert cudnn.check(build_files(tmp_path / "a", {FILE: "ELF"})).facts["cudnn_files"] == [FILE]
    finding = cudnn.check(build_device(tmp_path / "b", "orin-nx-16gb-r36.3.0"))
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"
