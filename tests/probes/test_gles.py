"""OpenGL ES: which displays are tried, and the shader run for real on the driver that is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_probe import assert_proven, check, working

from probes import egl, gles
from probes.contract import DeviceKind, Status
from probes.host import Host

MESA = "EGL_EXT_device_base EGL_EXT_platform_device EGL_MESA_platform_surfaceless"
NVIDIA = "EGL_EXT_device_base EGL_EXT_device_enumeration EGL_EXT_platform_device"
SOFTWARE, GPU = "EGL_EXT_device_drm EGL_MESA_device_software", "EGL_NV_device_cuda EGL_EXT_device_drm"


def vendor_file(folder: Path, library: str) -> str:
    path = folder / "10_vendor.json"
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library}}))
    return str(path)


# Displays


def test_an_nvidia_device_is_reached_by_the_device_platform() -> None:
    (road,) = gles.roads([(0x1000, GPU)], NVIDIA)
    assert (road.index, road.platform, road.handle) == (0, egl.PLATFORM_DEVICE, 0x1000)


def test_mesas_software_device_is_left_to_the_surfaceless_platform() -> None:
    (road,) = gles.roads([(0x2000, SOFTWARE)], MESA)
    assert (road.index, road.platform, road.handle) == (1, egl.PLATFORM_SURFACELESS, None)


def test_hardware_is_tried_first_and_keeps_its_raw_index() -> None:
    found = gles.roads([(0x2000, SOFTWARE), (0x1000, GPU)], MESA)
    assert [(r.index, r.platform) for r in found] == [(1, egl.PLATFORM_DEVICE), (2, egl.PLATFORM_SURFACELESS)]


def test_an_egl_without_vendor_gives_no_display() -> None:
    assert gles.roads([], "EGL_EXT_client_extensions EGL_EXT_device_base") == []


# What files say


def test_a_recorded_device_tells_its_vendor_files_and_executes_nothing(tmp_path: Path) -> None:
    (tmp_path / "usr/share/glvnd/egl_vendor.d").mkdir(parents=True)
    vendor_file(tmp_path / "usr/share/glvnd/egl_vendor.d", "libEGL_nvidia.so.0")
    found = gles.check(Host(tmp_path))
    assert (found.status, found.reason) == (Status.UNKNOWN, "a recorded device: nothing is executed")
    assert found.facts["icd"] == ["/usr/share/glvnd/egl_vendor.d/10_vendor.json: libEGL_nvidia.so.0"]


@pytest.mark.parametrize(("library", "package"), [("libEGL.so.1", "libegl1"), ("libGLESv2.so.2", "libgles2")])
def test_a_library_that_is_not_installed_is_absent_with_its_package(library: str, package: str) -> None:
    said = f"{library}: cannot open shared object file: No such file or directory"
    found = gles.library_unusable(said, {})
    assert (found.status, found.reason, found.remedy) == (Status.ABSENT, said, f"apt-get install {package}")


# Executed


def test_the_shader_gives_the_known_answer_timed_by_the_host() -> None:
    found = working("gles")
    assert_proven(found)
    assert found.evidence[0].timer == "host"
    assert found.version.startswith("OpenGL ES 3.")


def test_a_software_device_is_told_as_cpu_with_the_reason() -> None:
    found = working("gles")
    if found.device_kind is not DeviceKind.CPU:
        pytest.skip(f"a GPU answered here ({found.evidence[0].device}): the software device was not needed")
    assert "only a software device (llvmpipe" in found.reason


def test_another_software_rasteriser_is_a_cpu_too() -> None:
    working("gles")
    found = check("gles", {"GALLIUM_DRIVER": "softpipe", "LIBGL_ALWAYS_SOFTWARE": "1"})
    assert_proven(found)
    assert found.evidence[0].device == "softpipe"
    assert found.device_kind is DeviceKind.CPU
    assert found.facts["environment"] == {"GALLIUM_DRIVER": "softpipe", "LIBGL_ALWAYS_SOFTWARE": "1"}


def test_another_factor_on_the_device_is_seen_as_a_wrong_answer() -> None:
    working("gles")
    found = check("gles", first="from probes import saxpy; saxpy.FACTOR = 2.0\n")
    assert found.status is Status.BROKEN
    assert "gave a wrong answer: 0 of 1048576 numbers right" in found.reason


def test_a_shader_the_driver_refuses_is_broken_with_the_compilers_log(tmp_path: Path) -> None:
    working("gles")
    (tmp_path / "saxpy_es.comp").write_text("#version 310 es\nlayout(local_size_x = 64) in;\nvoid main() { y = 1; }\n")
    first = f"import pathlib; from probes import saxpy; saxpy.KERNELS = pathlib.Path({str(tmp_path)!r})\n"
    found = check("gles", first=first)
    assert found.status is Status.BROKEN
    assert "failed: shader: " in found.reason
    assert "undeclared" in found.reason


def test_a_variable_that_hides_every_vendor_is_named() -> None:
    working("gles")
    found = check("gles", {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent.json"})
    assert found.status is Status.BROKEN
    assert "__EGL_VENDOR_LIBRARY_FILENAMES=/nonexistent.json hides every EGL driver" in found.reason
    assert found.remedy == "unset __EGL_VENDOR_LIBRARY_FILENAMES"


def test_a_vendor_file_that_names_a_missing_library_is_named(tmp_path: Path) -> None:
    working("gles")
    file = vendor_file(tmp_path, "libEGL_not_there.so.0")
    found = check("gles", {"__EGL_VENDOR_LIBRARY_DIRS": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert f"{file}: libEGL_not_there.so.0: cannot open shared object file" in found.reason


def test_no_vendor_file_anywhere_is_absent(tmp_path: Path) -> None:
    found = gles.no_device(Host(tmp_path), [], {}, "EGL offers nothing")
    assert found.status is Status.ABSENT
    assert "libegl-mesa0" in found.remedy


def test_an_egl_without_its_dri_driver_is_broken_with_the_package(tmp_path: Path) -> None:
    if "Mesa" not in str(working("gles").facts["egl"]):
        pytest.skip("EGL is not Mesa's here: a missing DRI driver was not tried")
    found = check("gles", {"LIBGL_DRIVERS_PATH": str(tmp_path)})
    if found.status is Status.WORKS:
        pytest.skip("this Mesa does not look for DRI drivers in LIBGL_DRIVERS_PATH")
    assert found.status is Status.BROKEN
    assert "eglInitialize failed: EGL_NOT_INITIALIZED (0x3001)" in found.reason
    assert "libgl1-mesa-dri" in found.remedy


def test_a_library_that_is_no_library_is_broken(tmp_path: Path) -> None:
    (tmp_path / "libGLESv2.so.2").touch()
    found = check("gles", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert found.status is Status.BROKEN
    assert "libGLESv2.so.2: file too short" in found.reason
