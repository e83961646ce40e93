"""CUDA's libraries: NVIDIA's real ones from PyPI loaded and compiling here; what needs a GPU is judged from answers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from probes import cuda_libraries, cuda_runtime, fatbin
from probes.contract import DeviceKind, Evidence, Finding, Status
from probes.cuda_libraries import Gpu, Loaded
from probes.cuda_runtime import Part
from probes.cudadriver import CudaDriver, CudaError, DeviceInfo
from probes.host import Host
from tests.recorded import build_device, build_files

PROJECT = Path(__file__).parents[2]
INFO = DeviceInfo(index=0, name="Orin", capability="8.7", sm_count=8, clock_hz=1, integrated=True, memory_bytes=1 << 30)
GPU = Gpu(driver=CudaDriver(ctypes.CDLL(None)), info=INFO, version="12.6", capability="8.7")
NO_GPU = Gpu(problem="libcuda.so.1: cannot open shared object file")
RIGHT = Evidence(executed="x", device="Orin", device_kind=DeviceKind.GPU, value="1", expected="1")
WRONG = msgspec.structs.replace(RIGHT, value="2")
APT = "sudo apt install nvidia-jetpack"


def wheel_file(package: str, name: str) -> str:
    try:
        return next(str(file.locate()) for file in metadata.files(package) or [] if file.name == name)
    except (metadata.PackageNotFoundError, StopIteration):
        pytest.skip(f"{package} is not installed: NVIDIA's {name} was NOT loaded")


def child(probe: str, **environ: str) -> Finding:
    done = subprocess.run(
        [sys.executable, "-m", "probes", probe],
        cwd=PROJECT,
        env={**os.environ, **environ},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return msgspec.json.decode(done.stdout, type=Finding)


# NVIDIA's own libraries, here


def test_the_real_runtime_and_compiler_load_and_tell_their_versions() -> None:
    wheel_file("nvidia-cuda-runtime", "libcudart.so.13")
    wheel_file("nvidia-cuda-nvrtc", "libnvrtc.so.13")
    folders = [str(Path(wheel_file("nvidia-cuda-nvrtc", "libnvrtc.so.13")).parent)]
    finding = child("cuda_runtime", LD_LIBRARY_PATH=":".join(folders))
    if finding.devices:
        pytest.skip("this machine has a GPU: the way without one was not taken")
    assert finding.status is Status.UNKNOWN
    assert "load, but CUDA does not start" in finding.reason
    assert finding.facts["nvrtc_version"] == "13.5"
    assert finding.version == finding.facts["cudart_version"] == "13.5"
    assert finding.evidence == ()


@pytest.mark.parametrize("architecture", ["sm_75", "sm_87", "sm_110", "sm_121"])
def test_the_real_compiler_compiles_the_kernel_for_each_gpu(architecture: str, tmp_path: Path) -> None:
    library = ctypes.CDLL(wheel_file("nvidia-cuda-nvrtc", "libnvrtc.so.13"))
    file = tmp_path / "x.cubin"
    file.write_bytes(cuda_runtime.compile_cubin(library, architecture))
    assert fatbin.read(Host(), str(file)) == fatbin.DeviceCode(cubins=(architecture,))


def test_the_real_compiler_refuses_xavier_since_cuda_13() -> None:
    library = ctypes.CDLL(wheel_file("nvidia-cuda-nvrtc", "libnvrtc.so.13"))
    with pytest.raises(CudaError, match="nvrtcCompileProgram for sm_72") as caught:
        cuda_runtime.compile_cubin(library, "sm_72")
    assert "invalid value" in caught.value.log


def test_the_real_runtime_without_a_driver_says_so_in_its_number() -> None:
    library = ctypes.CDLL(wheel_file("nvidia-cuda-runtime", "libcudart.so.13"))
    part = cuda_runtime.try_cudart(library, Gpu(info=INFO))
    if part.evidence:
        pytest.skip("this machine has a GPU: the way without one was not taken")
    assert part.version == "13.5"
    assert "cudaMalloc: cudaErrorInsufficientDriver (35)" in part.problem
    assert "made for this driver" in part.remedy


def test_a_library_that_is_no_runtime_is_a_problem_and_no_crash() -> None:
    part = cuda_runtime._attempt(
        "CUDA runtime",
        Loaded(library=ctypes.CDLL("libm.so.6")),
        lambda library: cuda_runtime.try_cudart(library, NO_GPU),
    )
    assert part.problem == "libm.so.6 has no cudaRuntimeGetVersion"


# What the answers mean


def judge(*parts: Part, gpu: Gpu = GPU, has_files: bool = True) -> tuple[Status, str, str]:
    return cuda_runtime.judge(list(parts), gpu, has_files, APT)


def test_all_right_is_works() -> None:
    parts = [
        Part(name=name, version="12.6", evidence=RIGHT, loads=True) for name in ("CUDA runtime", "NVRTC", "cuBLAS")
    ]
    assert judge(*parts) == (Status.WORKS, "", "")


def test_a_missing_compiler_is_named_beside_a_working_runtime() -> None:
    parts = [
        Part(name="CUDA runtime", version="12.6", evidence=RIGHT, loads=True),
        Part(name="NVRTC", problem="no NVRTC"),
    ]
    assert judge(*parts) == (Status.WORKS, "no NVRTC", "")


def test_a_wrong_number_is_broken() -> None:
    parts = [Part(name="CUDA runtime", version="12.6", evidence=RIGHT, loads=True)]
    status, reason, _ = judge(*parts, Part(name="cuBLAS", evidence=WRONG, loads=True))
    assert status is Status.BROKEN
    assert reason == "cuBLAS answered wrongly: 2"


def test_a_runtime_newer_than_the_driver_is_the_cause_only_when_something_fails() -> None:
    newer = Part(name="CUDA runtime", version="13.5", loads=True, problem="cudaMalloc: (35)")
    status, reason, remedy = judge(newer)
    assert status is Status.BROKEN
    assert "CUDA runtime 13.5 is newer than the driver's 12.6" in reason
    assert "JetPack 6: 12.6" in remedy
    works = msgspec.structs.replace(newer, problem="", evidence=RIGHT)  # minor versions are compatible
    assert judge(works)[0] is Status.WORKS


def test_the_driver_alone_is_absent_with_jetpacks_package() -> None:
    status, reason, remedy = judge(Part(name="CUDA runtime", problem="libcudart.so.13: not there"), has_files=False)
    assert (status, remedy) == (Status.ABSENT, APT)
    assert "the driver alone is installed" in reason


def test_files_that_do_not_load_are_broken() -> None:
    status, reason, _ = judge(Part(name="CUDA runtime", problem="libcudart.so.12: file too short"), gpu=NO_GPU)
    assert status is Status.BROKEN
    assert "file too short" in reason


def test_without_a_driver_nothing_can_be_said() -> None:
    status, reason, remedy = judge(Part(name="CUDA runtime", version="12.6", loads=True), gpu=NO_GPU)
    assert status is Status.UNKNOWN
    assert reason.startswith("CUDA runtime 12.6 loads, but CUDA does not start: libcuda.so.1")
    assert "cuda" in remedy


def test_a_container_on_a_jetson_takes_them_from_the_host() -> None:
    assert "--runtime nvidia" in cuda_runtime.missing_remedy(True, True)
    assert cuda_runtime.missing_remedy(True, False) == APT
    assert "jetpack" not in cuda_runtime.missing_remedy(False, True)


# Finding and choosing


def test_one_real_file_is_told_once_and_a_newer_major_than_the_drivers_comes_last() -> None:
    names = ["libcudart.so.13", "libcudart.so.12", "/usr/local/cuda-11.4/lib64/libcudart.so.11.4.298"]
    assert cuda_libraries.in_order(names, "12.6") == [*names[1:], names[0]]
    assert cuda_libraries.in_order(names, None) == names


def test_files_of_a_recorded_device_are_found_in_jetpacks_folders(tmp_path: Path) -> None:
    files = {"/usr/local/cuda-12.6/targets/aarch64-linux/lib/libcudart.so.12.6.68": "ELF", "/usr/lib/x": ""}
    host = build_files(tmp_path, files)
    assert cuda_libraries.find_files(host, "libcudart") == tuple(files)[:1]
    assert cuda_libraries.file_version(next(iter(files))) == "12.6.68"


def test_a_library_missing_below_is_told_and_one_missing_itself_is_not_there(tmp_path: Path) -> None:
    loaded = cuda_libraries.load(Host(), "libnothing_of_a_test", ("2", "1"))
    assert loaded.library is None
    assert loaded.problem == "libnothing_of_a_test.so.2: cannot open shared object file, nor an older one"


@pytest.mark.parametrize(
    ("wanted", "driver", "answer"),
    [
        ("13.5", "12.6", True),
        ("12.6", "12.6", False),
        ("12.10", "12.9", True),
        (None, "12.6", None),
        ("?", "1.2", None),
    ],
)
def test_versions_are_compared_by_number(wanted: str | None, driver: str, answer: bool | None) -> None:
    assert cuda_libraries.is_newer(wanted, driver) is answer


@given(st.text(), st.text())
@example("0", "²")
def test_any_text_is_a_version_or_none(a: str, b: str) -> None:
    assert cuda_libraries.is_newer(a, b) in (True, False, None)
    assert cuda_libraries.file_version(a) is None or a
    assert sorted(cuda_libraries.in_order([a, b], a)) == sorted([a, b])


def test_the_product_is_the_product() -> None:
    from array import array

    a, b, product = (array("f", data) for data in cuda_runtime.matrices())
    side = cuda_runtime.SIDE
    for row in range(side):
        for column in range(side):
            assert product[column * side + row] == sum(a[k * side + row] * b[column * side + k] for k in range(side))
    assert len(set(product)) > side  # not a constant


def test_a_recorded_orin_tells_its_capability_and_executes_nothing(tmp_path: Path) -> None:
    finding = cuda_runtime.check(build_device(tmp_path, "orin-nano-super-r36.4.3"))
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"
    assert finding.facts["compute_capability"] == "8.7"
