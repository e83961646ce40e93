"""JetPack: every recorded device, the release files from the field, and sources that disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import jetpack, jetpack_parts, l4t
from probes.contract import Status
from probes.host import Host
from tests.recorded import FIXTURES, build_device, build_files, device_names

RELEASE = "# R{} (release), REVISION: {}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: Fri Jan 16 03:50:45 UTC 2026\n"
FILE = "/etc/nv_tegra_release"
QUERY = "dpkg-query -W nvidia-l4t-core nvidia-jetpack"

# device -> L4T, JetPack, by hand. The Thor on 39.2.1 was recorded with the release file of 39.2.0: that is read.
DEVICES = {
    "agx-orin-64gb-r36.5.0": ("36.5.0", "6.2.2"),
    "agx-thor-r38.4.0": ("38.4.0", "7.1"),
    "agx-thor-r39.2.1": ("39.2.0", "7.2"),
    "agx-xavier-r32.6.1-l4t-only": ("32.6.1", "4.6"),
    "container-on-orin-csv-r36": ("36.4.3", "6.2"),
    "desktop-rtx-3090": (None, None),
    "jetson-nano-r32.7.1": ("32.7.1", "4.6.1"),
    "jetson-tx2-r32.7.6": ("32.7.6", "4.6.6"),
    "orin-nano-super-r36.4.3": ("36.4.3", "6.2"),
    "orin-nano-super-r39.2.1": ("39.2.1", "7.2.1"),
    "orin-nx-16gb-r36.3.0": ("36.3.0", "6.0"),
    "raspberry-pi-5": (None, None),
    "x86-server-no-gpu": (None, None),
    "xavier-nx-r35.4.1": ("35.4.1", "5.1.2"),
}
# DT-01: L4T, JetPack (None: unknown), nearest family
RELEASES = {
    "r39.2.0": ("39.2.0", "7.2", "7.2.x"),
    "r38.4.0": ("38.4.0", "7.1", "7.1.x"),
    "r36.5.2": ("36.5.2", None, "6.2.x"),
    "r36.4.7": ("36.4.7", "6.2.1", "6.2.x"),
    "r36.4.4": ("36.4.4", "6.2.1", "6.2.x"),
    "r35.6.4": ("35.6.4", "5.1.6", "5.1.x"),
    "r32.7.5": ("32.7.5", "4.6.5", "4.6.x"),
    "r40.1.0": ("40.1.0", None, "7.x"),
}


def test_the_table_below_has_every_recorded_device() -> None:
    assert sorted(DEVICES) == device_names()


@pytest.mark.parametrize("name", DEVICES)
def test_a_recorded_device_has_its_l4t_and_jetpack_named(name: str, tmp_path: Path) -> None:
    finding = jetpack.check(build_device(tmp_path, name))
    assert (finding.facts["l4t"], finding.facts["jetpack"]) == DEVICES[name]
    assert finding.status is (Status.WORKS if DEVICES[name][0] else Status.ABSENT)


@pytest.mark.parametrize("name", RELEASES)
def test_l4t_is_exact_and_jetpack_is_known_or_told_unknown(name: str) -> None:
    finding = jetpack.check(Host(root=FIXTURES / "cases" / "DT-01" / name))
    release, version, family = RELEASES[name]
    facts = finding.facts
    assert (facts["l4t"], facts["jetpack"], facts["jetpack_family"]) == (release, version, family)
    assert finding.status is Status.WORKS
    assert ("JetPack unknown" in finding.reason and family in finding.reason) is (version is None)


def test_no_component_version_is_taken_from_a_neighbour() -> None:
    facts = jetpack.check(Host(root=FIXTURES / "cases" / "DT-01" / "r40.1.0")).facts
    assert [facts[key] for key in ("expected_cuda", "expected_cudnn", "expected_tensorrt")] == [None] * 3


@pytest.mark.parametrize(
    ("device", "tensorrt"), [("orin-nx-16gb-r36.3.0", "8.6.2.3"), ("orin-nano-super-r36.4.3", "10.3.0.30")]
)
def test_jetpack_6_0_and_6_2_expect_different_tensorrt(device: str, tensorrt: str, tmp_path: Path) -> None:
    assert jetpack.check(build_device(tmp_path, device)).facts["expected_tensorrt"] == tensorrt


def test_file_and_package_that_disagree_are_told(tmp_path: Path) -> None:
    packages = "nvidia-jetpack\t6.2.1+b38\nnvidia-l4t-core\t36.4.7-20250918154033\n"
    finding = jetpack.check(build_files(tmp_path, {FILE: RELEASE.format(36, "4.3")}, {QUERY: packages}))
    assert finding.status is Status.WORKS
    assert "36.4.3" in finding.reason
    assert "36.4.7" in finding.reason
    assert finding.remedy
    assert finding.facts["l4t_package"] == "36.4.7"


def test_a_containers_own_packages_are_no_disagreement(tmp_path: Path) -> None:
    files = {FILE: RELEASE.format(36, "4.3"), "/.dockerenv": ""}
    finding = jetpack.check(build_files(tmp_path, files, {QUERY: "nvidia-l4t-core\t36.2.0-20231218214829\n"}))
    assert finding.reason == ""
    assert finding.facts["l4t"] == "36.4.3"


def test_the_package_alone_is_enough(tmp_path: Path) -> None:
    finding = jetpack.check(build_files(tmp_path, {}, {QUERY: "nvidia-l4t-core\t35.4.1-20230801124926\n"}))
    assert (finding.facts["l4t"], finding.facts["jetpack"], finding.facts["l4t_source"]) == (
        "35.4.1",
        "5.1.2",
        "package",
    )


def test_the_meta_package_names_a_jetpack_that_the_table_does_not_know(tmp_path: Path) -> None:
    files = {FILE: RELEASE.format(40, "1.0")}
    packages = "nvidia-jetpack\t8.0-b12\nnvidia-l4t-core\t40.1.0-20270101000000\n"
    assert jetpack.check(build_files(tmp_path, files, {QUERY: packages})).facts["jetpack"] == "8.0"


def test_a_release_file_without_a_release_is_broken_and_quoted(tmp_path: Path) -> None:
    finding = jetpack.check(build_files(tmp_path, {FILE: "<html>404</html>\n"}))
    assert finding.status is Status.BROKEN
    assert "<html>404" in finding.reason
    assert finding.remedy


def test_a_tegra_without_any_l4t_is_unknown_with_a_remedy(tmp_path: Path) -> None:
    finding = jetpack.check(build_files(tmp_path, {"/proc/device-tree/compatible": "nvidia,tegra234\0"}))
    assert finding.status is Status.UNKNOWN
    assert "tegra234" in finding.reason
    assert "--runtime nvidia" in finding.remedy


def test_plain_linux_still_has_its_distribution_and_kernel(tmp_path: Path) -> None:
    facts = jetpack.check(build_device(tmp_path, "raspberry-pi-5")).facts
    assert facts["distribution"] == "Debian GNU/Linux 13 (trixie)"
    assert facts["kernel"] == "6.18.39+rpt-rpi-2712"
    assert facts["python"] is None  # of the recorded device, not of the Python that runs this test


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("# R39 (release), REVISION: 2.0, GCID: 1, DATE: Mon Jun  1 09:28:48 PM UTC 2026", "39.2.0"),
        ("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref", "32.7.1"),
        ("# R36 (release), REVISION: , GCID: 1", None),
        ("", None),
    ],
)
def test_the_release_is_read_whatever_the_date_looks_like(text: str, release: str | None) -> None:
    assert l4t.parse_release(text) == release


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("Linux version 6.8.12-1021-tegra (case@build) #1 SMP PREEMPT", "6.8.12-1021-tegra"),
        ("Linux HOST 4.9.253-tegra #6 SMP PREEMPT", "4.9.253-tegra"),
        ("", None),
    ],
)
def test_the_kernel_is_read_from_proc_version(text: str, kernel: str | None) -> None:
    assert jetpack_parts.parse_kernel(text) == kernel


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"cuda": {"name": "CUDA SDK", "version": "12.6.11"}}', "12.6.11"),
        ("CUDA Version 10.2.300", "10.2.300"),
        ("{}", None),
        ("[1]", None),
        ("", None),
    ],
)
def test_the_toolkits_version_is_read_in_both_forms(text: str, version: str | None) -> None:
    assert jetpack_parts.parse_cuda_version(text) == version


def test_this_machine_tells_its_python() -> None:
    assert str(jetpack.check(Host()).facts["python"]).startswith("3.")


@pytest.mark.parametrize(
    ("release", "told"),
    [
        ("40.1.0", "L4T 40.1.0 is newer than our table (newest known: "),
        ("32.5.1", "L4T 32.5.1 is older than our table (oldest known: 32.6.1)"),
        ("28.2.1", "L4T 28.2.1 is older than our table"),
        ("36.5.2", "L4T 36.5.2 has no JetPack in our table"),
        ("36.4.99", "L4T 36.4.99 is not in our table"),
    ],
)
def test_a_release_beyond_the_table_is_told_from_a_gap_in_it(tmp_path: Path, release: str, told: str) -> None:
    major, _, rest = release.partition(".")
    line = f"# R{major} (release), REVISION: {rest}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n"
    assert told in jetpack.check(build_files(tmp_path, {"/etc/nv_tegra_release": line})).reason
