"""Vulkan: selection from what devices really said, and the shader run for real on the driver that is here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from gpu_probe import assert_proven, check, working

from probes import saxpy, vulkan
from probes.contract import DeviceKind, Status
from probes.host import Host

LAVAPIPE = "/usr/share/vulkan/icd.d"
INTEGRATED, CPU = 1, 4
# The situations of the field: llama.cpp PR#14099, llama.cpp#6406, anduril/jetpack-nixos#503.
LLVMPIPE = vulkan.Listed(
    index=0,
    name="llvmpipe (LLVM 15.0.7, 128 bits)",
    device_type=CPU,
    uuid="000000000000000000000000000000aa",
    vendor_id=0x10005,
)
ORIN = vulkan.Listed(
    index=1,
    name="NVIDIA Tegra Orin (nvgpu)",
    device_type=INTEGRATED,
    uuid="80a2bc3e00000000000000000000000b",
    vendor_id=0x10DE,
)


def numbered(*devices: vulkan.Listed) -> list[vulkan.Listed]:
    return [msgspec.structs.replace(device, index=i) for i, device in enumerate(devices)]


def chosen(*devices: vulkan.Listed) -> list[int]:
    found = vulkan.as_devices(vulkan.distinct(numbered(*devices)))
    return [d.index for d in saxpy.candidates(found) if d.kind is not DeviceKind.CPU]


def icd_file(folder: Path, library: str) -> str:
    path = folder / "driver.json"
    path.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.1.0"}})
    )
    return str(path)


def lavapipe_manifest() -> str:
    found = Host().glob(f"{LAVAPIPE}/lvp_icd*.json")
    if not found:
        pytest.skip("no lavapipe manifest here: two manifests for one driver were not tried")
    return found[0]


# Selection


def test_the_gpu_beside_llvmpipe_keeps_its_raw_index() -> None:
    assert chosen(LLVMPIPE, ORIN) == [1]


def test_llvmpipe_alone_is_no_hardware_device() -> None:
    assert chosen(LLVMPIPE) == []


def test_one_gpu_listed_by_two_manifests_is_one_device() -> None:
    assert len(vulkan.distinct(numbered(ORIN, ORIN))) == 1
    assert chosen(ORIN, ORIN) == [0]


def test_two_devices_without_a_uuid_stay_two() -> None:
    plain = vulkan.Listed(index=0, name="GPU", device_type=2, uuid="0" * 32)
    assert len(vulkan.distinct(numbered(plain, plain))) == 2


def test_a_device_of_type_other_is_neither_gpu_nor_cpu() -> None:
    other = vulkan.Listed(index=0, name="Something", device_type=0)
    assert vulkan.as_devices([other])[0].kind is DeviceKind.UNKNOWN


def test_a_packed_version_is_told_in_three_numbers() -> None:
    assert vulkan.version_text(1 << 22 | 3 << 12 | 251) == "1.3.251"


# What files say


def test_a_recorded_device_tells_its_manifests_and_executes_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    icd_file(tmp_path / "etc/vulkan/icd.d", "libGLX_nvidia.so.0")
    found = vulkan.check(Host(tmp_path))
    assert (found.status, found.reason) == (Status.UNKNOWN, "a recorded device: nothing is executed")
    assert found.facts["icd"] == ["/etc/vulkan/icd.d/driver.json: libGLX_nvidia.so.0"]
    assert found.evidence == ()


def test_the_new_variable_hides_the_old_one(tmp_path: Path) -> None:
    host = Host(tmp_path, environ={"VK_DRIVER_FILES": "/new.json", "VK_ICD_FILENAMES": "/old.json"})
    assert [d.manifest for d in vulkan.read_drivers(host)] == ["/new.json"]


def test_a_variable_may_name_a_folder(tmp_path: Path) -> None:
    file = icd_file(tmp_path, "libx.so")
    assert [d.manifest for d in vulkan.read_drivers(Host(environ={"VK_DRIVER_FILES": str(tmp_path)}))] == [file]


def test_a_loader_that_is_not_installed_is_absent_with_its_package() -> None:
    said = "libvulkan.so.1: cannot open shared object file: No such file or directory"
    found = vulkan.loader_unusable(said, {})
    assert found.status is Status.ABSENT
    assert "libvulkan1" in found.remedy


def test_an_x_server_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    host = Host(tmp_path, environ={"DISPLAY": "localhost:10.0"})
    found = vulkan.no_device(host, [], {"loader_version": "1.1.0"}, "vkCreateInstance: VkErrorInitializationFailed")
    assert found.remedy.startswith("unset DISPLAY (now localhost:10.0)")


# Executed


def test_the_shader_gives_the_known_answer_timed_by_the_device() -> None:
    found = working("vulkan")
    assert_proven(found)
    assert found.evidence[0].timer == "device"
    assert re.fullmatch(r"\d+\.\d+\.\d+", found.version)


def test_a_software_device_is_told_as_cpu_with_the_reason() -> None:
    found = working("vulkan")
    if found.device_kind is not DeviceKind.CPU:
        pytest.skip(f"a GPU answered here ({found.evidence[0].device}): the software device was not needed")
    assert "only a software device (llvmpipe" in found.reason


def test_another_factor_on_the_device_is_seen_as_a_wrong_answer() -> None:
    working("vulkan")
    found = check("vulkan", first="from probes import saxpy; saxpy.FACTOR = 2.0\n")
    assert found.status is Status.BROKEN
    assert "gave a wrong answer: 0 of 1048576 numbers right, number 0 is 1.04858e+06" in found.reason
    assert found.device_kind is DeviceKind.UNKNOWN


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
def test_a_variable_that_hides_every_driver_is_named(variable: str) -> None:
    working("vulkan")
    found = check("vulkan", {variable: "/nonexistent.json"})
    assert found.status is Status.BROKEN
    assert f"{variable}=/nonexistent.json hides every Vulkan driver" in found.reason
    assert found.remedy == f"unset {variable}"
    assert found.facts["environment"] == {variable: "/nonexistent.json"}


def test_a_driver_whose_library_is_missing_is_named(tmp_path: Path) -> None:
    working("vulkan")
    (tmp_path / "vulkan/icd.d").mkdir(parents=True)
    file = icd_file(tmp_path / "vulkan/icd.d", "libGLX_not_there.so.0")
    found = check("vulkan", {"XDG_DATA_DIRS": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert f"{file}: libGLX_not_there.so.0: cannot open shared object file" in found.reason
    assert found.facts["icd_broken"] == [
        f"{file}: libGLX_not_there.so.0: cannot open shared object file: No such file or directory"
    ]


def test_a_broken_driver_beside_a_working_one_is_named_too(tmp_path: Path) -> None:
    working("vulkan")
    file = icd_file(tmp_path, "libGLX_not_there.so.0")
    found = check("vulkan", {"VK_ADD_DRIVER_FILES": file})
    assert_proven(found)
    assert found.facts["icd_broken"][0].startswith(f"{file}: libGLX_not_there.so.0: cannot open")


def test_a_manifest_that_is_no_json_is_told_from_a_missing_driver(tmp_path: Path) -> None:
    working("vulkan")
    (tmp_path / "bad.json").write_text("no JSON")
    found = check("vulkan", {"VK_DRIVER_FILES": f"{tmp_path}/bad.json"})
    assert found.status is Status.BROKEN
    assert f"{tmp_path}/bad.json: not a driver manifest: JSON is malformed" in found.reason


def test_no_manifest_at_all_is_absent_although_the_loader_is_there(tmp_path: Path) -> None:
    working("vulkan")
    found = check("vulkan", {"XDG_DATA_DIRS": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "HOME": str(tmp_path)})
    if "/etc/vulkan" in str(found.facts["icd"]):
        pytest.skip("this machine has manifests in /etc/vulkan: a loader without any was not tried")
    assert found.status is Status.ABSENT
    assert found.reason.startswith("no Vulkan driver is installed")
    assert "mesa-vulkan-drivers" in found.remedy


def test_a_filter_that_leaves_no_driver_is_named() -> None:
    working("vulkan")
    found = check("vulkan", {"VK_LOADER_DRIVERS_DISABLE": "*"})
    if found.status is Status.WORKS:
        pytest.skip(f"loader {found.version} does not know VK_LOADER_DRIVERS_DISABLE")
    assert found.remedy == "unset VK_LOADER_DRIVERS_DISABLE"


def test_a_driver_named_by_two_manifests_is_run_once(tmp_path: Path) -> None:
    working("vulkan")
    one = lavapipe_manifest()
    two = shutil.copy(one, tmp_path / "again.json")
    found = check("vulkan", {"VK_DRIVER_FILES": f"{one}:{two}"})
    assert found.facts["listed_devices"] == 2
    assert len(found.devices) == len(found.evidence) == 1


def test_a_loader_that_is_no_library_is_broken(tmp_path: Path) -> None:
    (tmp_path / "libvulkan.so.1").touch()
    found = check("vulkan", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert "libvulkan.so.1: file too short" in found.reason


def test_without_the_python_package_it_is_absent_with_the_extra_to_install() -> None:
    working("vulkan")
    found = check("vulkan", first="import sys; sys.modules['vulkan'] = None\n")
    assert found.status is Status.ABSENT
    assert found.remedy == "pip install 'edge-agent[vulkan]'"


# The shipped kernel


def interface(spirv: Path) -> list[str]:
    """What the outside sees of a shader: entry points, work group, bindings, offsets."""
    text = subprocess.run(
        ["spirv-dis", "--no-header", "--no-color", str(spirv)], capture_output=True, text=True, check=True
    ).stdout
    wanted = re.compile(r"Op(EntryPoint|ExecutionMode|MemoryModel|Decorate|MemberDecorate|MemberName|Capability)\b")
    return sorted(line.strip() for line in text.splitlines() if wanted.search(line))


def test_the_shipped_shader_is_what_its_source_compiles_to(tmp_path: Path) -> None:
    for tool in ("glslangValidator", "spirv-val", "spirv-dis"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed: saxpy.spv was not compared with saxpy.comp")
    source, shipped, fresh = saxpy.KERNELS / "saxpy.comp", saxpy.KERNELS / "saxpy.spv", tmp_path / "fresh.spv"
    subprocess.run(
        ["glslangValidator", "-V", "--target-env", "vulkan1.0", str(source), "-o", str(fresh)],
        check=True,
        capture_output=True,
    )
    for file in (shipped, fresh):
        subprocess.run(["spirv-val", "--target-env", "vulkan1.0", str(file)], check=True, capture_output=True)
    assert any("LocalSize 64 1 1" in line for line in interface(shipped))
    assert interface(shipped) == interface(fresh)
