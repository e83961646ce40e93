"""OpenCL: whose device it is, and the kernel run for real on the driver that is here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from gpu_probe import assert_proven, check, working

from probes import opencl, saxpy
from probes.contract import DeviceKind, Status
from probes.host import Host

DEFAULT, CPU, GPU, ACCELERATOR = 1, 2, 4, 8
POCL = {"platform": "Portable Computing Language", "platform_vendor": "The pocl project"}
# As seen with PoCL on Jetsons (pocl/pocl#853, ProjectPhysX/OpenCL-Benchmark#28).
CORTEX = opencl.Listed(index=0, name="pthread-cortex-a57", device_type=CPU, vendor="ARM", **POCL)
TEGRA_BY_POCL = opencl.Listed(index=1, name="NVIDIA Tegra X1", device_type=GPU, vendor="NVIDIA Corporation", **POCL)
DESKTOP = opencl.Listed(
    index=0,
    name="NVIDIA GeForce RTX 3090",
    device_type=GPU,
    vendor="NVIDIA Corporation",
    platform="NVIDIA CUDA",
    platform_vendor="NVIDIA Corporation",
)
CRASHING_DRIVER = """
__attribute__((constructor)) static void fall(void) { *(volatile int *)0 = 1; }
void *clGetExtensionFunctionAddress(const char *name) { return 0; }
"""


def vendor_file(folder: Path, library: str) -> str:
    path = folder / "x.icd"
    path.write_text(f"{library}\n")
    return str(path)


# Whose device


def test_pocl_on_the_cpu_is_no_gpu() -> None:
    assert opencl.as_devices([CORTEX])[0].kind is DeviceKind.CPU
    assert "experimental" not in opencl.judge_platforms([CORTEX])


def test_a_gpu_by_way_of_pocl_is_a_gpu_and_marked_experimental() -> None:
    devices = opencl.as_devices([CORTEX, TEGRA_BY_POCL])
    assert [d.index for d in saxpy.candidates(devices)] == [1]
    assert devices[1].kind is DeviceKind.GPU
    facts = opencl.judge_platforms([CORTEX, TEGRA_BY_POCL])
    assert facts["experimental"] == ["1: NVIDIA Tegra X1 by way of PoCL"]


def test_the_platform_is_never_told_as_nvidias_when_it_is_pocl() -> None:
    assert "NVIDIA" not in str(opencl.judge_platforms([CORTEX, TEGRA_BY_POCL])["platforms"])
    assert "NVIDIA" not in opencl.as_devices([TEGRA_BY_POCL])[0].driver


def test_nvidias_own_platform_is_not_experimental() -> None:
    assert "experimental" not in opencl.judge_platforms([DESKTOP])
    assert opencl.as_devices([DESKTOP])[0].kind is DeviceKind.GPU


def test_the_device_type_is_tested_bit_by_bit() -> None:
    default = msgspec.structs.replace(CORTEX, device_type=CPU | DEFAULT)
    assert opencl.kind_of(default) is DeviceKind.CPU


def test_an_accelerator_is_neither_gpu_nor_cpu() -> None:
    assert opencl.kind_of(msgspec.structs.replace(CORTEX, device_type=ACCELERATOR)) is DeviceKind.UNKNOWN


# What files say


def test_a_recorded_device_tells_its_vendor_files_and_executes_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc/OpenCL/vendors").mkdir(parents=True)
    vendor_file(tmp_path / "etc/OpenCL/vendors", "libnvidia-opencl.so.1")
    found = opencl.check(Host(tmp_path))
    assert (found.status, found.reason) == (Status.UNKNOWN, "a recorded device: nothing is executed")
    assert found.facts["icd"] == ["/etc/OpenCL/vendors/x.icd: libnvidia-opencl.so.1"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{folder}/a.icd", ("{folder}/a.icd", "", "no such file")),
        ("libpocl.so.2", ("OCL_ICD_VENDORS", "libpocl.so.2", "")),
        ("{folder}/none", ("{folder}/none", "", "no such file")),
    ],
)
def test_the_variable_may_name_a_file_a_library_or_a_folder(
    value: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    (driver,) = opencl.read_drivers(Host(environ={"OCL_ICD_VENDORS": value.format(folder=tmp_path)}))
    assert (driver.manifest, driver.library, driver.error) == tuple(e.format(folder=tmp_path) for e in expected)


def test_a_loader_that_is_not_installed_is_absent_with_its_package() -> None:
    said = "libOpenCL.so.1: cannot open shared object file: No such file or directory"
    found = opencl.import_failed(said, {})
    assert (found.status, found.remedy) == (Status.ABSENT, "apt-get install ocl-icd-libopencl1")


def test_a_binding_that_is_there_but_does_not_load_is_broken() -> None:
    found = opencl.import_failed("_cl.so: undefined symbol: clCreatePipe", {})
    assert found.status is Status.BROKEN
    assert "undefined symbol: clCreatePipe" in found.reason


# Executed


def test_the_kernel_gives_the_known_answer_timed_by_the_device() -> None:
    found = working("opencl")
    assert_proven(found)
    assert found.evidence[0].timer == "device"
    assert found.version.startswith("OpenCL ")


def test_the_systems_own_loader_is_looked_at_beside_the_bundled_one(tmp_path: Path) -> None:
    working("opencl")
    (tmp_path / "libOpenCL.so.1").touch()
    found = check("opencl", {"LD_LIBRARY_PATH": str(tmp_path)})
    if found.status is Status.BROKEN:
        pytest.skip("this pyopencl uses the system's loader and has none of its own")
    assert_proven(found)
    assert "libOpenCL.so.1: file too short" in str(found.facts["system_loader"])


def test_a_software_device_is_told_as_cpu_with_the_reason() -> None:
    found = working("opencl")
    if found.device_kind is not DeviceKind.CPU:
        pytest.skip(f"a GPU answered here ({found.evidence[0].device}): the software device was not needed")
    assert "only a software device" in found.reason


def test_another_factor_on_the_device_is_seen_as_a_wrong_answer() -> None:
    working("opencl")
    found = check("opencl", first="from probes import saxpy; saxpy.FACTOR = 2.0\n")
    assert found.status is Status.BROKEN
    assert "gave a wrong answer: 0 of 1048576 numbers right" in found.reason


def test_a_kernel_the_driver_refuses_is_broken_in_its_words(tmp_path: Path) -> None:
    working("opencl")
    (tmp_path / "saxpy.cl").write_text("__kernel void saxpy( {")
    first = f"import pathlib; from probes import saxpy; saxpy.KERNELS = pathlib.Path({str(tmp_path)!r})\n"
    found = check("opencl", first=first)
    assert found.status is Status.BROKEN
    assert "BUILD_PROGRAM_FAILURE" in found.reason


def test_a_vendor_file_that_names_a_missing_library_is_named(tmp_path: Path) -> None:
    working("opencl")
    file = vendor_file(tmp_path, "libnvidia-opencl_not_there.so.1")
    found = check("opencl", {"OCL_ICD_VENDORS": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert f"{file}: libnvidia-opencl_not_there.so.1: cannot open shared object file" in found.reason
    assert found.remedy == "unset OCL_ICD_VENDORS"


def test_a_broken_vendor_file_beside_a_working_one_is_named_too(tmp_path: Path) -> None:
    working("opencl")
    for file in Path(opencl.FOLDER).glob("*.icd"):
        shutil.copy(file, tmp_path)
    file = vendor_file(tmp_path, "libnot_there.so.1")
    found = check("opencl", {"OCL_ICD_VENDORS": str(tmp_path)})
    assert_proven(found)
    assert found.facts["icd_broken"] == [
        f"{file}: libnot_there.so.1: cannot open shared object file: No such file or directory"
    ]


def test_a_folder_without_vendor_files_is_told_from_a_broken_driver(tmp_path: Path) -> None:
    working("opencl")
    found = check("opencl", {"OCL_ICD_VENDORS": str(tmp_path)})
    assert found.reason.startswith(f"OCL_ICD_VENDORS={tmp_path} hides every OpenCL driver: it names none")


def test_no_vendor_file_anywhere_is_absent_and_normal_on_a_jetson(tmp_path: Path) -> None:
    found = opencl.no_device(Host(tmp_path), [], {}, "clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
    assert found.status is Status.ABSENT
    assert "no OpenCL driver is installed: no manifest in /etc/OpenCL/vendors" in found.reason
    assert "on a Jetson this is normal" in found.remedy


def test_without_the_python_package_it_is_absent_with_the_extra_to_install() -> None:
    found = check("opencl", first="import sys; sys.modules['pyopencl'] = None\n")
    assert found.status is Status.ABSENT
    assert found.remedy == "pip install 'edge-agent[opencl]'"


def test_a_driver_that_crashes_costs_a_copy_and_is_named(tmp_path: Path) -> None:
    working("opencl")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: a crashing OpenCL driver was not tried")
    for file in Path(opencl.FOLDER).glob("*.icd"):  # beside one that works: the loader would load both
        shutil.copy(file, tmp_path)
    (tmp_path / "crash.c").write_text(CRASHING_DRIVER)
    library = str(tmp_path / "libcrash.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "crash.c")], check=True)
    file = vendor_file(tmp_path, library)
    found = check("opencl", {"OCL_ICD_VENDORS": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert f"{file}: {library}: crashed (SIGSEGV) when it was loaded" in found.reason
    assert "move the manifest" in found.remedy
