"""Devices in the listings of vulkaninfo and clinfo: the cases of the field, and texts that are no listing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import clinfo, opencl, vulkan, vulkaninfo
from probes.contract import DeviceKind, Finding, Status
from tests.recorded import FIXTURES, build_files

VULKAN = FIXTURES / "cases" / "DT-14"
OPENCL = FIXTURES / "cases" / "DT-15"


def vulkan_finding(folder: Path, text: str) -> Finding:
    return vulkan.check(build_files(folder, {}, {"vulkaninfo --summary": text}))


def opencl_finding(folder: Path, text: str) -> Finding:
    return opencl.check(build_files(folder, {}, {"clinfo": text}))


@pytest.mark.parametrize(
    ("file", "names", "gpu_index"),
    [
        ("two.txt", ["llvmpipe (LLVM 15.0.7, 128 bits)", "NVIDIA Tegra Orin (nvgpu)"], 1),
        ("cpu-only.txt", ["llvmpipe (LLVM 15.0.7, 128 bits)"], None),
        ("duplicate.txt", ["NVIDIA Tegra Orin (nvgpu)"], 0),
        ("nodriver.txt", [], None),
    ],
)
def test_vulkaninfo_of_the_field(tmp_path: Path, file: str, names: list[str], gpu_index: int | None) -> None:
    finding = vulkan_finding(tmp_path, (VULKAN / file).read_text())
    assert finding.status is Status.UNKNOWN  # a recorded device: nothing was executed
    assert [d.name for d in finding.devices] == names
    assert finding.facts["gpu_index"] == gpu_index


def test_the_device_type_decides_and_a_driver_that_is_missing_is_named(tmp_path: Path) -> None:
    kinds = [d.kind for d in vulkan_finding(tmp_path / "a", (VULKAN / "two.txt").read_text()).devices]
    assert kinds == [DeviceKind.CPU, DeviceKind.GPU]
    reason = vulkan_finding(tmp_path / "b", (VULKAN / "nodriver.txt").read_text()).reason
    assert "ERROR_INCOMPATIBLE_DRIVER: the loader is there, a driver is missing" in reason


def test_what_vulkaninfo_says_of_a_device() -> None:
    device = vulkaninfo.parse_summary((VULKAN / "two.txt").read_text())[1]
    assert (device.index, device.vendor_id, device.api_version) == (1, 0x10DE, "1.3.251")
    assert [d.device_type for d in vulkaninfo.parse_summary((VULKAN / "two.txt").read_text())] == [4, 1]
    assert (device.uuid, device.driver) == ("80a2bc3e00000000000000000000000b", "540.5.0.0")


@pytest.mark.parametrize(
    ("file", "kinds", "experimental", "told"),
    [
        ("zero.txt", [], None, "0 platform(s) and no device"),
        ("pocl-cpu.txt", [DeviceKind.CPU], None, "cpu-cortex-a78ae (CPU by way of PoCL)"),
        (
            "pocl-cuda.txt",
            [DeviceKind.CPU, DeviceKind.GPU],
            ["1: NVIDIA Tegra X1 by way of PoCL"],
            "NVIDIA Tegra X1 (GPU by way of PoCL)",
        ),
    ],
)
def test_clinfo_of_the_field(
    tmp_path: Path, file: str, kinds: list[DeviceKind], experimental: list[str] | None, told: str
) -> None:
    finding = opencl_finding(tmp_path, (OPENCL / file).read_text())
    assert [d.kind for d in finding.devices] == kinds
    assert finding.facts.get("experimental") == experimental
    assert told in finding.reason
    assert "NVIDIA OpenCL" not in finding.reason


def test_a_clinfo_that_crashed_is_told_as_such(tmp_path: Path) -> None:
    recorded = json.loads((OPENCL / "segv.json").read_text())
    assert "did not come to its end" in opencl_finding(tmp_path, recorded["stdout"]).reason


def test_two_platforms_and_a_device_under_each() -> None:
    text = (
        "Number of platforms                               2\n"
        "  Platform Name                                   NVIDIA CUDA\n"
        "  Platform Vendor                                 NVIDIA Corporation\n"
        "  Platform Name                                   Portable Computing Language\n"
        "  Platform Vendor                                 The pocl project\n\n"
        "  Platform Name                                   NVIDIA CUDA\n"
        "Number of devices                                 1\n"
        "  Device Name                                     NVIDIA GeForce RTX 3090\n"
        "  Device Type                                     GPU\n"
        "  Platform Name                                   Portable Computing Language\n"
        "Number of devices                                 1\n"
        "  Device Name                                     cpu-haswell\n"
        "  Device Type                                     CPU, Default\n"
    )
    devices = clinfo.parse_devices(text)
    assert [(d.index, d.name, d.platform_vendor) for d in devices] == [
        (0, "NVIDIA GeForce RTX 3090", "NVIDIA Corporation"),
        (1, "cpu-haswell", "The pocl project"),
    ]
    assert [opencl.kind_of(d) for d in devices] == [DeviceKind.GPU, DeviceKind.CPU]


@given(st.text())
def test_any_text_is_a_listing_without_devices_or_with(text: str) -> None:
    for device in vulkaninfo.parse_summary(text + "\nGPU0:\n\tdeviceName = " + text):
        assert isinstance(device.index, int)
    clinfo.parse_devices(text)
    clinfo.parse_platform_count(text)
