"""CDI files by their kind, the runtime, and the inside of a container that was started without it (case DT-19)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import container
from probes.contract import Finding, Status
from probes.diagnose import diagnose
from probes.host import Host
from tests.recorded import FIXTURES, build_device, build_files, device_names

CASES = FIXTURES / "cases" / "DT-19"
GPU = '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all"}]}'
JETSON = {"/proc/device-tree/compatible": "nvidia,p3767-0005\0nvidia,tegra234\0"}


def test_a_pva_is_no_gpu_whatever_its_devices_are_called() -> None:
    finding = container.check(Host(CASES / "pva-only"))
    assert finding.facts["gpu_cdi"] is False
    assert finding.status is Status.BROKEN
    assert "no CDI for the GPU" in finding.reason
    assert "nvidia.com/pva" in finding.reason
    assert "nvidia-ctk cdi generate" in finding.remedy


@pytest.mark.parametrize(("case", "devices"), [("csv", ["0", "all"]), ("json", ["all"])])
def test_a_gpus_file_in_either_folder_and_either_form(case: str, devices: list[str]) -> None:
    finding = container.check(Host(CASES / case))
    assert finding.facts["gpu_cdi"] is True
    assert finding.facts["gpu_cdi_devices"] == devices
    assert finding.status is Status.WORKS


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n", "it lists no device"),
        ("/run/cdi/nvidia.json", '{"kind": "nvidia.com/gpu", "devices": []}', "it lists no device"),
        ("/etc/cdi/nvidia.yml", "kind: nvidia.com/gpu\ndevices: [{name: all}]\n", "no container engine reads it"),
    ],
)
def test_a_gpus_file_that_hands_out_nothing_is_no_cdi(path: str, text: str, told: str, tmp_path: Path) -> None:
    finding = container.check(build_files(tmp_path, {path: text}))
    assert (finding.status, finding.facts["gpu_cdi"], finding.facts["gpu_cdi_devices"]) == (Status.BROKEN, False, [])
    assert told in finding.reason


def test_a_broken_file_is_named_in_the_parsers_words() -> None:
    finding = container.check(Host(CASES / "broken"))
    assert finding.facts["gpu_cdi"] is False
    assert finding.status is Status.BROKEN
    assert "/etc/cdi/nvidia.yaml: while scanning a quoted scalar" in finding.reason


def test_the_generators_error_on_a_jetson_is_explained_with_the_mode_to_take() -> None:
    said = (CASES / "stderr.txt").read_text()
    finding = Finding(subject="container", layer=1, status=Status.BROKEN, reason=said)
    explained = diagnose(finding, {})
    assert "--mode=csv" in explained.remedy


def test_on_a_jetson_the_remedy_says_the_mode(tmp_path: Path) -> None:
    files = {"/etc/cdi/nvidia.json": "{"} | JETSON
    assert "--mode=csv" in container.check(build_files(tmp_path, files)).remedy


def test_the_folder_behind_a_link_counts_once(tmp_path: Path) -> None:
    host = build_files(tmp_path, {"/run/cdi/nvidia.json": GPU})
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("../run")
    assert container.check(host).facts["gpu_cdi_devices"] == ["all"]


def test_lists_of_a_jetson_are_a_way_without_cdi(tmp_path: Path) -> None:
    files = {"/etc/nvidia-container-runtime/host-files-for-container.d/drivers.csv": "lib, /x\n"} | JETSON
    finding = container.check(build_files(tmp_path, files))
    assert finding.status is Status.WORKS
    assert "--runtime nvidia is the way here" in finding.reason


def test_docker_that_does_not_know_the_runtime_is_told(tmp_path: Path) -> None:
    files = {"/usr/bin/nvidia-ctk": "x", "/etc/docker/daemon.json": '{"runtimes": {"other": {}}}'}
    finding = container.check(build_files(tmp_path, files))
    assert finding.status is Status.BROKEN
    assert "Docker does not know the runtime nvidia" in finding.reason


def test_without_any_of_it_it_is_absent(tmp_path: Path) -> None:
    finding = container.check(build_files(tmp_path, {}))
    assert finding.status is Status.ABSENT
    assert "nvidia-container-toolkit" in finding.remedy


def test_a_placeholder_inside_of_a_container_means_that_the_runtime_was_not_asked(tmp_path: Path) -> None:
    files = {"/.dockerenv": "", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1": ""} | JETSON
    finding = container.check(build_files(tmp_path, files))
    assert finding.status is Status.BROKEN
    assert "empty placeholder" in finding.reason
    assert "--runtime nvidia" in finding.remedy


def test_references_that_would_fill_memory_are_refused() -> None:
    bomb = "kind: nvidia.com/gpu\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    assert "YAML references" in container.parse_spec("/etc/cdi/x.yaml", bomb).error


@pytest.mark.parametrize("name", device_names())
def test_every_recorded_device_is_answered(tmp_path: Path, name: str) -> None:
    assert container.check(build_device(tmp_path, name)).status in (Status.ABSENT, Status.WORKS)


@given(st.text(), st.sampled_from(["/etc/cdi/a.yaml", "/etc/cdi/a.json"]))
def test_any_text_is_a_file_that_serves_or_one_with_an_error(text: str, path: str) -> None:
    spec = container.parse_spec(path, text)
    assert spec.error or spec.kind
