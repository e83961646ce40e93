"""WebGPU: which adapter is taken, and the kernel run for real on the adapters that are here."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_probe import assert_proven, check, working

from probes import webgpu
from probes.contract import DeviceKind, Status
from probes.host import Host

HIDDEN = {"VK_DRIVER_FILES": "/nonexistent.json", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent.json"}


def adapter(index: int, name: str, adapter_type: str, backend_type: str) -> webgpu.Listed:
    return webgpu.Listed(index=index, name=name, adapter_type=adapter_type, backend_type=backend_type)


VULKAN_CPU = adapter(0, "llvmpipe (LLVM 15.0.6, 256 bits)", "CPU", "Vulkan")
OPENGL_CPU = adapter(1, "llvmpipe (LLVM 15.0.6, 256 bits)", "CPU", "OpenGL")
VULKAN_GPU = adapter(2, "NVIDIA Tegra Orin (nvgpu)", "IntegratedGPU", "Vulkan")
OPENGL_GPU = adapter(3, "NVIDIA Tegra Orin (nvgpu)/integrated", "Unknown", "OpenGL")


# Choice


def test_a_hardware_adapter_is_taken_before_software_whatever_the_order() -> None:
    assert webgpu.choose([VULKAN_CPU, OPENGL_CPU, VULKAN_GPU]) == [VULKAN_GPU]


def test_vulkan_is_taken_before_opengl() -> None:
    assert webgpu.choose([OPENGL_GPU, VULKAN_GPU]) == [VULKAN_GPU]
    assert webgpu.choose([OPENGL_CPU, VULKAN_CPU]) == [VULKAN_CPU]


def test_opengl_hardware_is_taken_before_vulkan_in_software() -> None:
    assert webgpu.choose([VULKAN_CPU, OPENGL_GPU]) == [OPENGL_GPU]


def test_a_forced_backend_leaves_only_its_adapters() -> None:
    assert webgpu.choose([VULKAN_CPU, OPENGL_CPU], "OpenGL") == [OPENGL_CPU]
    assert webgpu.choose([VULKAN_CPU, OPENGL_CPU], "Metal") == []


def test_an_adapter_of_unknown_type_that_is_llvmpipe_is_a_cpu() -> None:
    assert adapter(0, "llvmpipe (LLVM 15)", "Unknown", "OpenGL").kind is DeviceKind.CPU
    assert OPENGL_GPU.kind is DeviceKind.UNKNOWN


def test_a_recorded_device_executes_nothing(tmp_path: Path) -> None:
    found = webgpu.check(Host(tmp_path))
    assert (found.status, found.reason) == (Status.UNKNOWN, "a recorded device: nothing is executed")


# Executed


def test_the_kernel_gives_the_known_answer_and_the_backend_is_told() -> None:
    found = working("webgpu")
    assert_proven(found)
    assert found.facts["backend_type"] in {"Vulkan", "OpenGL"}
    assert found.evidence[0].timer == ("device" if found.facts["backend_type"] == "Vulkan" else "host")


def test_another_factor_on_the_device_is_seen_as_a_wrong_answer() -> None:
    working("webgpu")
    found = check("webgpu", first="from probes import saxpy; saxpy.FACTOR = 2.0\n")
    assert found.status is Status.BROKEN
    assert "gave a wrong answer: 0 of 1048576 numbers right" in found.reason


def test_a_kernel_that_is_refused_is_broken_in_the_words_of_the_compiler(tmp_path: Path) -> None:
    working("webgpu")
    (tmp_path / "saxpy.wgsl").write_text("@compute @workgroup_size(64) fn saxpy() { y = 1; }")
    first = f"import pathlib; from probes import saxpy; saxpy.KERNELS = pathlib.Path({str(tmp_path)!r})\n"
    found = check("webgpu", first=first)
    assert found.status is Status.BROKEN
    assert "no definition in scope" in found.reason


def test_without_vulkan_the_opengl_adapter_is_told_and_says_nothing_about_vulkan() -> None:
    working("webgpu")
    found = check("webgpu", {"VK_DRIVER_FILES": "/nonexistent.json"})
    if found.status is not Status.WORKS:
        pytest.skip(f"no OpenGL adapter here: {found.reason}")
    assert_proven(found)
    assert found.facts["backend_type"] == "OpenGL"
    assert "by OpenGL, which says nothing about Vulkan" in found.reason
    assert found.evidence[0].timer == "host"


def test_no_adapter_at_all_is_told_with_the_variables_that_hide_the_drivers() -> None:
    working("webgpu")
    found = check("webgpu", HIDDEN)
    assert found.status is Status.BROKEN
    assert found.reason.startswith("wgpu-native found no adapter")
    assert "VK_DRIVER_FILES=/nonexistent.json" in found.reason
    assert found.remedy == "unset VK_DRIVER_FILES __EGL_VENDOR_LIBRARY_FILENAMES"


def test_a_forced_backend_that_is_not_here_is_named() -> None:
    working("webgpu")
    found = check("webgpu", {"WGPU_BACKEND_TYPE": "Metal"})
    assert found.status is Status.BROKEN
    assert found.reason.startswith("WGPU_BACKEND_TYPE=Metal leaves no adapter")
    assert found.remedy == "unset WGPU_BACKEND_TYPE"


def test_without_the_python_package_it_is_absent_with_the_extra_to_install() -> None:
    found = check("webgpu", first="import sys; sys.modules['wgpu'] = None\n")
    assert found.status is Status.ABSENT
    assert found.remedy == "pip install 'edge-agent[webgpu]'"
