"""A recorded device is only read: what needs executing is unknown, and nothing of this machine is in its findings."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from probes import nvidia_smi, nvml
from probes.contract import Finding, Status
from probes.host import RECORDED
from probes.isolation import list_probes
from tests.recorded import build_device, device_names, read_device

# What these check is in files, which a recording has; all other checks execute something.
READ = {
    "container",
    "environment",
    "hardware",
    "jetpack",
    "memory",
    "packages",
    "permissions",
    "power",
    "storage",
    "thermal",
}
EXECUTED = sorted(set(list_probes({})) - READ)
JETSONS = [name for name in device_names() if read_device(name)["kind"].startswith("jetson")]
FOREIGN = "NVIDIA GeForce RTX 4090"
SMI = f"""#!/bin/sh
echo 'name, memory.total [MiB], compute_cap'
echo '{FOREIGN}, 24564 MiB, 8.9'
"""


@pytest.fixture
def _a_machine_with_a_geforce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine gets an nvidia-smi that lists a GeForce, and a tensorrt_rtx, tensorrt and jtop that tell of one."""
    programs, modules = tmp_path / "programs", tmp_path / "modules"
    for folder in (programs, modules / "nvidia/cudnn/lib"):
        folder.mkdir(parents=True)
    (programs / "nvidia-smi").write_text(SMI)
    (programs / "nvidia-smi").chmod(0o755)
    for name in ("tensorrt_rtx", "tensorrt", "jtop"):
        (modules / f"{name}.py").write_text(f"raise RuntimeError({FOREIGN!r})\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    (modules / "nvidia/cudnn/lib/libcudnn.so.9.99.0").write_text(FOREIGN)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", FOREIGN)
    monkeypatch.syspath_prepend(str(modules))


def check(name: str, device: str, folder: Path) -> Finding:
    finding: Finding = importlib.import_module(f"probes.{name}").check(build_device(folder, device))
    return finding


def test_there_are_jetsons_among_the_recorded_devices() -> None:
    assert len(JETSONS) >= 10


@pytest.mark.usefixtures("_a_machine_with_a_geforce")
@pytest.mark.parametrize("device", device_names())
def test_what_needs_executing_is_unknown_on_a_recorded_device_or_refused_by_the_table(
    device: str, tmp_path: Path
) -> None:
    for name in EXECUTED:
        finding = check(name, device, tmp_path / "device" / name)
        refused = finding.reason.startswith("refused: ")
        assert finding.status is (Status.ABSENT if refused else Status.UNKNOWN), name
        assert refused or RECORDED in finding.reason, name
        assert not finding.devices, name
        assert not finding.witnesses, name
        assert not [evidence for evidence in finding.evidence if evidence.device or evidence.expected], name


@pytest.mark.usefixtures("_a_machine_with_a_geforce")
@pytest.mark.parametrize("device", device_names())
def test_nothing_of_this_machine_is_in_a_recorded_devices_findings(device: str, tmp_path: Path) -> None:
    for name in [*EXECUTED, *sorted(READ)]:
        finding = check(name, device, tmp_path / "device" / name)
        assert FOREIGN not in repr(finding), name
        assert "libcudnn.so.9.99.0" not in repr(finding), name


@pytest.mark.parametrize("device", JETSONS)
def test_a_recorded_jetson_refuses_tensorrt_rtx_without_naming_a_gpu(device: str, tmp_path: Path) -> None:
    finding = check("tensorrt_rtx", device, tmp_path)
    assert (finding.status, finding.version, dict(finding.facts)) == (Status.ABSENT, "", {})
    assert "not for embedded" in finding.reason
    assert "GeForce" not in repr(finding)


@pytest.mark.parametrize("device", ["desktop-rtx-3090", "raspberry-pi-5", "x86-server-no-gpu"])
def test_a_recorded_machine_that_is_no_jetson_leaves_tensorrt_rtx_unknown(device: str, tmp_path: Path) -> None:
    assert check("tensorrt_rtx", device, tmp_path).status is Status.UNKNOWN


@pytest.mark.usefixtures("_a_machine_with_a_geforce")
@pytest.mark.parametrize("device", device_names())
def test_nvidia_smi_and_nvml_of_this_machine_are_not_asked_about_another(device: str, tmp_path: Path) -> None:
    host = build_device(tmp_path / "device", device)
    assert nvidia_smi.read_gpus(host) == ()
    spoke, said = nvml.NvmlProcesses(host).tell(os.getpid())
    assert not spoke
    assert RECORDED in said
