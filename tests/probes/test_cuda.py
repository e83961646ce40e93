"""CUDA: the absent path as it is here, the shipped PTX under NVIDIA's assembler, and the calls against a FAKE libcuda.

The fake (fake_libcuda.c) proves marshalling and the handling of errors, nothing about CUDA.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from probes import cuda, cudadriver, saxpy
from probes.contract import DeviceKind, Finding, Status
from probes.cudadriver import CudaError
from probes.host import Host
from probes.pci import PciGpu
from tests.recorded import build_device

PROJECT = Path(__file__).parents[2]
PTX = PROJECT / "probes/kernels/saxpy.ptx"
CHILD = (
    "import sys, msgspec, importlib; from probes.host import Host; probe = importlib.import_module(sys.argv[1]); "
    "sys.stdout.buffer.write(msgspec.json.encode(probe.check(Host())))"
)
NOT_FOUND = "libcuda.so.1: cannot open shared object file: No such file or directory"
RTX = PciGpu(address="0000:01:00.0", vendor="10de", device="2204", driver=None)


def surroundings(
    soc: str | None = None,
    in_container: bool = False,
    gpus: tuple[PciGpu, ...] = (),
    blocked: dict[str, list[str]] | None = None,
    gpu_dead: bool = False,
    libraries: list[str] | None = None,
    has_nodes: bool = True,
    visible: str | None = None,
) -> cuda.Surroundings:
    return cuda.Surroundings(
        soc=soc,
        is_jetson=soc is not None,
        in_container=in_container,
        gpus=gpus,
        blocked=blocked or {},
        gpu_dead=gpu_dead,
        libraries=libraries or [],
        has_nodes=has_nodes,
        visible=visible,
    )


def ask(libraries: Path, probe: str = "probes.cuda", **told: int | str) -> Finding:
    """The finding of a child that loads the libcuda in this folder."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **{key: str(value) for key, value in told.items()}}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, probe], cwd=PROJECT, env=environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Finding)


def compile_c(source: Path | str, output: Path, *flags: str) -> Path:
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler: the calls to libcuda were not checked against the fake library")
    command = [gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", str(output), *flags]
    text = source.read_bytes() if isinstance(source, Path) else source.encode()
    subprocess.run(command, input=text, check=True, capture_output=True)
    return output


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the FAKE libcuda.so.1."""
    folder = tmp_path_factory.mktemp("fake")
    compile_c(Path(__file__).with_name("fake_libcuda.c"), folder / "libcuda.so.1")
    return folder


# What is here, really


def test_without_a_driver_it_is_absent_with_the_loaders_words() -> None:
    finding = cuda.check(Host())
    if "libcuda_loaded" in finding.facts:
        pytest.skip("this machine has a CUDA driver: the absent path was not taken")
    assert finding.status is Status.ABSENT
    assert NOT_FOUND in finding.reason
    assert finding.remedy
    assert finding.evidence == ()


# Against the FAKE library: marshalling


def test_fake_right_numbers_work_and_everything_is_passed_as_it_should(fake: Path) -> None:
    finding = ask(fake)
    assert (finding.status, finding.reason, finding.version) == (Status.WORKS, "", "12.6")
    (device,) = finding.devices
    assert (device.name, device.memory_bytes, device.api_version) == ("Fake GPU 0 of a test", 8 << 30, "8.7")
    (evidence,) = finding.evidence
    assert evidence.value == evidence.expected == saxpy.problem().answer
    assert evidence.device_kind is DeviceKind.GPU
    assert (evidence.elapsed_s, evidence.timer) == (0.00025, "device")
    assert finding.facts["cuda_memory_free_bytes"] == 5 << 30
    assert finding.facts["cuda_memory_total_bytes"] == 8 << 30
    assert (finding.facts["sm_count"], finding.facts["clock_max_hz"]) == (8, 1_020_000_000)
    assert finding.facts["integrated"] is True
    assert finding.facts["libcuda_loaded"] == str(fake / "libcuda.so.1")


def test_fake_one_wrong_number_of_a_million_is_broken(fake: Path) -> None:
    finding = ask(fake, FAKE_WRONG=1)
    assert finding.status is Status.BROKEN
    assert "1048575 of 1048576" in finding.reason
    assert finding.evidence[0].value != finding.evidence[0].expected
    assert finding.device_kind is DeviceKind.UNKNOWN


def test_fake_every_device_is_listed_and_the_wrong_one_named(fake: Path) -> None:
    finding = ask(fake, FAKE_COUNT=2, FAKE_WRONG=1)
    assert finding.status is Status.WORKS
    assert [device.index for device in finding.devices] == [0, 1]
    assert "Fake GPU 0" in finding.reason
    assert [item.value == item.expected for item in finding.evidence] == [False, True]


# Against the FAKE library: errors


@pytest.mark.parametrize(
    ("number", "name", "hint"),
    [
        (35, "cudaErrorInsufficientDriver", "older"),
        (801, "CUDA_ERROR_NOT_SUPPORTED", "device node"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "different versions"),
        (999, "CUDA_ERROR_UNKNOWN", "no reason"),
    ],
)
def test_fake_an_error_of_cuinit_is_named_with_number_and_cause(fake: Path, number: int, name: str, hint: str) -> None:
    finding = ask(fake, FAKE_INIT=number)
    assert finding.status is Status.BROKEN
    assert f"cuInit: {name} ({number})" in finding.reason
    assert hint in finding.reason
    assert finding.remedy


def test_fake_no_device_where_no_gpu_is_fitted_is_absent(fake: Path) -> None:
    finding = ask(fake, FAKE_INIT=100)
    if finding.facts.get("libcuda_files"):
        pytest.skip("this machine has a GPU: what error 100 means without one was not seen")
    assert finding.status is Status.ABSENT
    assert "CUDA_ERROR_NO_DEVICE (100)" in finding.reason


@pytest.mark.parametrize(
    ("number", "name"), [(209, "CUDA_ERROR_NO_BINARY_FOR_GPU"), (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")]
)
def test_fake_a_refused_kernel_brings_the_jit_log(fake: Path, number: int, name: str) -> None:
    finding = ask(fake, FAKE_LOAD=number)
    assert finding.status is Status.BROKEN
    assert f"{name} ({number})" in finding.reason
    assert "a line of the fake's JIT log" in finding.reason
    assert finding.remedy
    assert len(finding.devices) == 1  # known all the same


@pytest.mark.parametrize(
    ("told", "call"),
    [
        ("FAKE_CONTEXT", "cuDevicePrimaryCtxRetain"),
        ("FAKE_ALLOC", "cuMemAlloc_v2"),
        ("FAKE_LAUNCH", "cuLaunchKernel"),
        ("FAKE_SYNC", "cuEventSynchronize"),
        ("FAKE_COUNT_ERROR", "cuDeviceGetCount"),
    ],
)
def test_fake_whichever_call_fails_is_named(fake: Path, told: str, call: str) -> None:
    finding = ask(fake, **{told: 2})
    assert finding.status is Status.BROKEN
    assert finding.reason.startswith(f"{call}: CUDA_ERROR_OUT_OF_MEMORY (2)")


@pytest.mark.parametrize("probe", ["probes.cuda", "probes.tensorrt", "probes.cuda_runtime"])
def test_fake_a_driver_that_lists_no_device_says_so_to_every_check(fake: Path, tmp_path: Path, probe: str) -> None:
    (tmp_path / "tensorrt.py").write_text("__version__ = '10.3.0'")
    finding = ask(fake, probe, FAKE_COUNT=-1, PYTHONPATH=str(tmp_path))
    assert "cuDeviceGetCount: CUDA_ERROR_NO_DEVICE (100)" in finding.reason
    assert finding.evidence == ()


def test_fake_a_number_that_we_do_not_know_has_the_drivers_name_for_it(fake: Path) -> None:
    assert "cuInit: CUDA_ERROR_OF_TOMORROW (917)" in ask(fake, FAKE_INIT=917).reason


def test_fake_a_cuda_that_does_not_start_is_not_held_against_tensorrt(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("__version__ = '10.3.0'")
    finding = ask(fake, "probes.tensorrt", FAKE_INIT=999, PYTHONPATH=str(tmp_path))
    assert finding.status is Status.UNKNOWN
    assert "CUDA does not start: cuInit: CUDA_ERROR_UNKNOWN (999)" in finding.reason
    assert "cuda" in finding.remedy


# Other things that call themselves libcuda.so.1


def test_an_empty_library_is_broken_and_called_a_stub(tmp_path: Path) -> None:
    compile_c("int nothing;", tmp_path / "libcuda.so.1")
    finding = ask(tmp_path)
    assert finding.status is Status.BROKEN
    assert "cuInit" in finding.reason
    assert "stub" in finding.reason


def test_a_file_of_no_bytes_is_a_container_without_the_nvidia_runtime(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    finding = ask(tmp_path)
    assert finding.status is Status.ABSENT
    assert "file too short" in finding.reason
    assert "--runtime nvidia" in finding.remedy


def test_a_library_missing_below_libcuda_is_broken_and_named(tmp_path: Path) -> None:
    below = compile_c("int nvrm(void) { return 0; }", tmp_path / "libnvrm_gpu.so", "-Wl,-soname,libnvrm_gpu.so")
    flags = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-lnvrm_gpu")
    compile_c("int nvrm(void); int cuInit(unsigned f) { return nvrm(); }", tmp_path / "libcuda.so.1", *flags)
    below.unlink()
    finding = ask(tmp_path)
    assert finding.status is Status.BROKEN
    assert "libnvrm_gpu.so" in finding.reason


# What the words of loader and driver mean where


@pytest.mark.parametrize(
    ("around", "hint", "remedy"),
    [
        (surroundings("tegra234", in_container=True), "container", "--runtime nvidia"),
        (surroundings("tegra234", has_nodes=False), "device nodes", "--runtime nvidia"),
        (surroundings("tegra234"), "driver package", "nvidia-l4t-cuda"),
        (
            surroundings("tegra234", libraries=["/opt/nvidia/l4t-gpu-libs/nvgpu/libcuda.so.1"]),
            "driver package",
            "nv-load-gpu-libs",
        ),
        (surroundings(gpus=(RTX,)), "0000:01:00.0 10de:2204", "install the NVIDIA driver"),
        (surroundings(gpus=(msgspec.structs.replace(RTX, driver="nvidia"),)), "kernel driver is loaded", "--gpus all"),
        (surroundings(has_nodes=False), "no NVIDIA GPU seen on this machine", "nothing to install"),
    ],
)
def test_a_missing_libcuda_has_a_cause_and_a_remedy_that_fit(around: cuda.Surroundings, hint: str, remedy: str) -> None:
    status, reason, advice = cuda.judge_not_loaded(NOT_FOUND, around)
    assert status is Status.ABSENT
    assert NOT_FOUND in reason
    assert hint in reason
    assert remedy in advice


@pytest.mark.parametrize("number", [100, 801, 999])
def test_a_missing_group_is_the_cause_before_the_number_is_interpreted(number: int) -> None:
    around = surroundings("tegra234", blocked={"render": ["/dev/dri/renderD128"]}, gpu_dead=True)
    status, reason, remedy = cuda.judge_error(CudaError("cuInit", number, ""), around)
    assert status is Status.UNKNOWN
    assert f"({number})" in reason
    assert "/dev/dri/renderD128 (group render)" in reason
    assert "usermod -aG render" in remedy
    assert "SupplementaryGroups=render" in remedy


def test_a_missing_group_does_not_explain_a_wrong_kernel() -> None:
    around = surroundings("tegra234", blocked={"render": ["/dev/dri/renderD128"]})
    status, reason, _ = cuda.judge_error(CudaError("cuModuleLoadDataEx", 222, ""), around)
    assert status is Status.BROKEN
    assert "newer than the driver" in reason


def test_a_gpu_that_did_not_start_at_boot_wants_a_cold_power_cycle() -> None:
    status, reason, remedy = cuda.judge_error(CudaError("cuInit", 999, ""), surroundings("tegra234", gpu_dead=True))
    assert status is Status.BROKEN
    assert "did not start" in reason
    assert "off and on" in remedy


def test_no_device_in_a_jetsons_container_without_nodes_names_the_runtime() -> None:
    around = surroundings("tegra234", in_container=True, has_nodes=False)
    status, _, remedy = cuda.judge_error(CudaError("cuInit", 100, ""), around)
    assert status is Status.ABSENT
    assert "--runtime nvidia" in remedy


def test_a_variable_that_hides_the_gpu_is_named_but_not_where_there_is_none() -> None:
    error = CudaError("cuInit", 100, "")
    status, reason, remedy = cuda.judge_error(error, surroundings(gpus=(RTX,), has_nodes=False, visible="-1"))
    assert status is Status.BROKEN
    assert "CUDA_VISIBLE_DEVICES='-1' may hide it" in reason
    assert remedy == "unset CUDA_VISIBLE_DEVICES"
    assert cuda.judge_error(error, surroundings(has_nodes=False, visible="-1"))[0] is Status.ABSENT


def test_what_hides_devices_is_read_from_the_environment() -> None:
    assert cuda.read_surroundings(Host(environ={"CUDA_VISIBLE_DEVICES": ""})).visible == ""
    assert cuda.read_surroundings(Host(environ={})).visible is None


@pytest.mark.parametrize(("soc", "variant"), [("tegra264", "openrm"), ("tegra234", "nvgpu")])
def test_the_loaders_own_search_comes_first_and_l4t_39_has_one_folder_per_soc(soc: str, variant: str) -> None:
    paths = cudadriver.search_paths(soc)
    assert paths[0] == "libcuda.so.1"
    assert [path for path in paths if "l4t-gpu-libs" in path] == [f"/opt/nvidia/l4t-gpu-libs/{variant}/libcuda.so.1"]


def test_a_recorded_device_executes_nothing_and_tells_its_files(tmp_path: Path) -> None:
    finding = cuda.check(build_device(tmp_path, "orin-nano-super-r36.4.3"))
    assert finding.status is Status.UNKNOWN
    assert finding.reason == "a recorded device: nothing is executed"
    assert finding.facts["libcuda_files"] == ["/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1"]
    assert finding.facts["pycuda_version"] is None  # of the recorded device, not of this Python
