from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from probes import ground as module
from probes.contract import Finding, Status
from probes.ground import PARTS, ground
from probes.host import Host
from probes.isolation import Check, execute
from probes.listing import probe_files, read_probe

ICD = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libvulkan_lvp.so", "api_version": "1.3.0"}}'


@pytest.fixture
def device(tmp_path: Path) -> Path:
    for path, text in {
        "proc/sys/kernel/osrelease": "5.15.148-tegra\n",
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.4\n",
        "usr/share/vulkan/icd.d/nvidia_icd.json": ICD,
        "usr/share/vulkan/icd.d/vendor.json": ICD.replace("libvulkan_lvp.so", "/opt/vendor/lib/libvulkan_vendor.so"),
        "etc/ld.so.cache": "glibc-ld.so.cache1.1\0libcublas.so.12\0/opt/toolkit/libcublas.so.12\0",
        "etc/OpenCL/vendors/pocl.icd": "libpocl.so.2\n",
        "usr/lib/aarch64-linux-gnu/libcuda.so.1": "",
        "usr/lib/aarch64-linux-gnu/libvulkan.so.1": "",
        "var/lib/dpkg/status": "Package: x\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def grounds(device: Path, **environ: str) -> dict[str, str]:
    environ = {"HOME": "/home/user", "PATH": "/usr/bin", **environ}
    return {part: ground(Host(device, environ=environ), (part,)) for part in PARTS}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {part for part in before if before[part] != after[part]}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("usr/share/vulkan/icd.d/nvidia_icd.json", {"vulkan"}),
        ("usr/share/vulkan/icd.d/another.json", {"vulkan"}),
        ("etc/OpenCL/vendors/pocl.icd", {"opencl"}),
        ("usr/lib/aarch64-linux-gnu/libcuda.so.1", {"libcuda"}),
        ("usr/local/cuda-12.6/targets/aarch64-linux/lib/libcudart.so.12", {"cuda_libraries"}),
        ("usr/lib/aarch64-linux-gnu/dri/swrast_dri.so", {"egl_libraries"}),
        ("usr/lib/aarch64-linux-gnu/tegra/libnvrm_gpu.so", {"driver"}),
        ("opt/vendor/lib/libvulkan_vendor.so", {"vulkan"}),  # named by a manifest
        ("opt/toolkit/libcublas.so.12", {"cuda_libraries"}),  # known to the loader only
        ("home/user/.config/vulkan/icd.d/mine.json", {"vulkan"}),
        ("etc/cdi/nvidia.yaml", {"cdi"}),
        ("etc/docker/daemon.json", {"container_runtime"}),
        ("etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv", {"container_runtime"}),
        ("usr/bin/nvidia-ctk", {"container_runtime"}),
        ("usr/bin/ffmpeg", {"video_commands"}),
        ("usr/src/tensorrt/bin/trtexec", {"tensorrt"}),
        ("dev/nvgpu/igpu0/ctrl", {"nodes"}),
        ("usr/lib/aarch64-linux-gnu/libnvinfer.so.10", {"tensorrt_libraries"}),
        ("var/lib/dpkg/status", {"packages"}),
        ("var/lib/dpkg/updates/0000", {"packages"}),
        ("usr/lib/aarch64-linux-gnu/libjpeg.so.8", set()),
        ("home/nvidia/notes.txt", set()),
    ],
)
def test_a_changed_file_makes_stale_what_rests_on_it_and_nothing_else(device: Path, path: str, parts: set[str]) -> None:
    before = grounds(device)
    (device / path).parent.mkdir(parents=True, exist_ok=True)
    (device / path).write_text("changed, and longer than it was")
    assert changed(before, grounds(device)) == parts


def test_the_kernel_and_the_drivers_variables_are_under_everything(device: Path) -> None:
    before = grounds(device)
    assert changed(before, grounds(device, VK_DRIVER_FILES="/x.json")) == PARTS
    assert changed(before, grounds(device, EDITOR="vi")) == set()
    (device / "proc/sys/kernel/osrelease").write_text("6.8.12-tegra\n")
    assert changed(before, grounds(device)) == PARTS


@pytest.mark.parametrize("path", ["proc/device-tree/model", "proc/cpuinfo", ".dockerenv"])
def test_another_board_or_a_container_makes_all_stale(device: Path, path: str) -> None:
    before = grounds(device)
    (device / path).parent.mkdir(parents=True, exist_ok=True)
    (device / path).write_text("model name : changed")
    assert changed(before, grounds(device)) == PARTS


def test_what_a_variable_names_counts(device: Path) -> None:
    mine = device / "srv/mine.json"
    mine.parent.mkdir()
    before = grounds(device, VK_DRIVER_FILES="/srv/mine.json", LD_LIBRARY_PATH="/srv/lib")
    mine.write_text(ICD)
    with_file = grounds(device, VK_DRIVER_FILES="/srv/mine.json", LD_LIBRARY_PATH="/srv/lib")
    assert changed(before, with_file) == {"vulkan"}
    (device / "srv/lib").mkdir()
    (device / "srv/lib/libcudnn.so.9").write_text("")
    after = grounds(device, VK_DRIVER_FILES="/srv/mine.json", LD_LIBRARY_PATH="/srv/lib")
    assert changed(with_file, after) == {"cudnn_libraries"}


def test_many_findings_cost_one_look(device: Path) -> None:
    known: dict[str, bytes] = {}
    host = Host(device)
    assert ground(host, ("opencl",), known) == ground(host, ("opencl",))
    (device / "etc/OpenCL/vendors/pocl.icd").write_text("libother.so\n")
    assert ground(host, ("opencl",), known) != ground(host, ("opencl",))


def test_rights_count_and_a_dangling_link_is_told_from_a_missing_file(device: Path) -> None:
    before = grounds(device)
    icd = device / "etc/OpenCL/vendors/pocl.icd"
    icd.chmod(0o600)
    assert changed(before, grounds(device)) == {"opencl"}
    icd.unlink()
    gone = grounds(device)
    icd.symlink_to("nowhere")
    assert changed(gone, grounds(device)) == {"opencl"}


def test_the_same_machine_has_the_same_ground_twice() -> None:
    assert ground(Host(), tuple(PARTS)) == ground(Host(), tuple(PARTS))


def test_nothing_rests_on_an_unknown_part(device: Path) -> None:
    assert ground(Host(device), ()) == ""
    with pytest.raises(ValueError, match="weather"):
        ground(Host(device), ("weather",))


def test_a_probe_that_names_an_unknown_part_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "sunny.py"
    path.write_text('"""Looks up."""\nLAYER = 0\nRESTS_ON = ("weather",)\ndef check(host): ...\n')
    assert "weather" in read_probe(path).problem


def test_every_probe_that_executes_on_a_gpu_says_what_it_rests_on() -> None:
    files = probe_files({}).values()
    assert {file.name for file in files if file.uses_gpu} >= {"cuda", "vulkan", "opencl", "gles", "webgpu", "tensorrt"}
    assert not [file.name for file in files if file.uses_gpu and not file.rests_on]


def test_a_finding_carries_when_it_was_taken_and_its_ground() -> None:
    code = (
        "import os, sys, msgspec; from probes.contract import *; "
        "f = Finding(subject='x/y', layer=4, status=Status.WORKS, version=str(os.nice(0))); "
        "os.write(int(sys.argv[2]), msgspec.json.encode(f))"
    )
    check = Check(subject="x/y", layer=4, argv=(sys.executable, "-c", code), rests_on=("opencl",))
    finding = execute(check)
    assert finding.status is Status.WORKS
    assert finding.ground == ground(Host(), ("opencl",))
    assert finding.taken_at.endswith("Z")
    assert execute(Check(subject="x/y", layer=4, argv=check.argv)).ground == ""


def test_the_hash_covers_our_own_checks(monkeypatch: pytest.MonkeyPatch, device: Path) -> None:
    before = ground(Host(device), ("opencl",))
    monkeypatch.setattr(module, "own", lambda _host: iter(["another release"]))
    monkeypatch.setitem(module.READERS, "own", module.own)  # type: ignore[index]
    assert ground(Host(device), ("opencl",)) != before


def test_checks_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polite.py").write_text(
        '"""Tells its nice value."""\nimport os\nfrom probes.contract import Finding, Status\nLAYER = 0\n'
        "def check(host):\n"
        '    return Finding(subject="polite", layer=0, status=Status.WORKS, version=str(os.nice(0)))\n'
    )
    from probes.isolation import probe_check

    environ = {**os.environ, "EDGE_AGENT_PROBE_PATH": str(tmp_path)}
    file = probe_files(environ)["polite"]
    finding: Finding = execute(probe_check("polite", file=file), environ)
    assert int(finding.version) == min(19, os.nice(0) + 10), finding.reason
