"""JetPack: what differs from the release is told, what it means, and what to do; what is meant is no fault."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import jetpack, jetpack_differences, jetpack_releases
from probes.contract import Finding, Status
from probes.jetpack_meaning import Meaning
from probes.jetpack_parts import Parts
from tests.probes.jetsons import COMPAT, COMPONENTS, WHOLE, check, differences
from tests.recorded import build_device, build_files, device_names


def test_a_whole_jetpack_differs_in_nothing_and_every_part_is_told(tmp_path: Path) -> None:
    finding = check(tmp_path, **WHOLE)
    facts = finding.facts
    assert (finding.status, finding.reason, finding.remedy, facts["differences"]) == (Status.WORKS, "", "", [])
    assert [facts[key] for key in ("ubuntu", "kernel", "system_python", "cuda_toolkit")] == [
        "22.04",
        "5.15.148-tegra",
        "3.10",
        "12.6.11",
    ]
    assert [facts[key] for key in ("cudnn", "tensorrt", "vpi", "opencv")] == [
        ["9.3.0"],
        ["10.3.0"],
        ["3.2.4"],
        ["4.8.0"],
    ]
    assert [facts[f"expected_{key}"] for key in COMPONENTS] == [
        "22.04",
        "5.15.148-tegra",
        "3.10",
        "12.6",
        "9.3.0.75",
        "10.3.0.30",
        "3.2.4",
        "4.8.0",
    ]


@pytest.mark.parametrize("name", device_names())
def test_no_recorded_device_is_accused_of_a_difference(name: str, tmp_path: Path) -> None:
    finding = jetpack.check(build_device(tmp_path, name))
    assert not finding.facts.get("differences")
    assert finding.remedy == ""


# release, what is there, component, expected, meaning, a part of the reason, a part of the remedy
ONE_DIFFERENCE = {
    "a CUDA upgraded with its cuda-compat": (
        "36.4.3",
        {"cuda": "12.8.1"},
        ("12.8",),
        ("cuda", "12.8.1", "12.6", "upgraded"),
        "CUDA 12.8.1 is installed, JetPack 6.2 came with 12.6: an upgrade that is meant",
        "",
    ),
    "a CUDA upgraded on JetPack 5, with the compat of a newer one": (
        "35.4.1",
        {"cuda": "11.8.0"},
        ("12.2",),
        ("cuda", "11.8.0", "11.4", "upgraded"),
        "its cuda-compat is there",
        "",
    ),
    "a CUDA upgraded without cuda-compat, same major": (
        "36.4.3",
        {"cuda": "12.8.1"},
        (),
        ("cuda", "12.8.1", "12.6", "needs_compat"),
        "cuda-compat-12-8 is not there, without which the driver takes no PTX of a newer CUDA (error 222)",
        "sudo apt install cuda-compat-12-8",
    ),
    "a CUDA upgraded without cuda-compat, newer major": (
        "35.4.1",
        {"cuda": "12.2.0"},
        (),
        ("cuda", "12.2.0", "11.4", "needs_compat"),
        "takes no newer major (error 35)",
        "sudo apt install cuda-compat-12-2",
    ),
    "a CUDA beyond every cuda-compat": (
        "36.4.3",
        {"cuda": "13.0.0"},
        ("13.0",),
        ("cuda", "13.0.0", "12.6", "wrong_release"),
        "with cuda-compat this driver serves CUDA 12.9 at most",
        "install CUDA 12.9 or older",
    ),
    "a newer CUDA on JetPack 4": (
        "32.7.1",
        {"cuda": "11.4.0"},
        (),
        ("cuda", "11.4.0", "10.2", "wrong_release"),
        "JetPack 4 has no cuda-compat",
        "use CUDA 10.2",
    ),
    "the CUDA of the JetPack before": (
        "36.4.3",
        {"cuda": "12.2.12"},
        (),
        ("cuda", "12.2.12", "12.6", "half_upgraded"),
        "it is JetPack 6.0's",
        "sudo apt install nvidia-jetpack",
    ),
    "the TensorRT of the JetPack before": (
        "36.4.3",
        {"tensorrt": "8.6.2"},
        (),
        ("tensorrt", "8.6.2", "10.3.0.30", "wrong_release"),
        "programs for JetPack 6.2 look for libnvinfer.so.10; it is JetPack 6.0's",
        "sudo apt install nvidia-jetpack",
    ),
    "the TensorRT of a newer JetPack of the same family": (
        "38.4.0",
        {"tensorrt": "10.16.2"},
        (),
        ("tensorrt", "10.16.2", "10.13.3.9", "half_upgraded"),
        "it is JetPack 7.2's, L4T is not",
        "dist-upgrade",
    ),
    "the TensorRT of a newer family": (
        "36.4.3",
        {"tensorrt": "10.13.3"},
        (),
        ("tensorrt", "10.13.3", "10.3.0.30", "wrong_release"),
        "L4T is not",
        "nvidia-jetpack",
    ),
    "a TensorRT of no release, newer": (
        "36.4.3",
        {"tensorrt": "10.7.0"},
        (),
        ("tensorrt", "10.7.0", "10.3.0.30", "upgraded"),
        "engines must be built again",
        "",
    ),
    "the cuDNN of another major": (
        "36.3.0",
        {"cudnn": "9.3.0"},
        (),
        ("cudnn", "9.3.0", "8.9.4.25", "wrong_release"),
        "cuDNN 9.3.0 is installed, JetPack 6.0 came with 8.9.4.25: programs for JetPack 6.0 look for libcudnn.so.8",
        "nvidia-jetpack",
    ),
    "an older VPI": (
        "39.2.0",
        {"vpi": "4.0.5"},
        (),
        ("vpi", "4.0.5", "4.1.3", "half_upgraded"),
        "it is JetPack 7.1's",
        "nvidia-jetpack",
    ),
    "an OpenCV built by hand": (
        "36.4.3",
        {"opencv": "4.10.0"},
        (),
        ("opencv", "4.10.0", "4.8.0", "own"),
        "another build",
        "",
    ),
    "Ubuntu's own OpenCV": (
        "36.4.3",
        {"opencv": "4.5.4d 4.5d"},
        (),
        ("opencv", "4.5.4d", "4.8.0", "own"),
        "Ubuntu's own build",
        "",
    ),
    "a newer Ubuntu": (
        "36.4.3",
        {"ubuntu": "24.04"},
        (),
        ("ubuntu", "24.04", "22.04", "wrong_release"),
        "Ubuntu 24.04 is installed, JetPack 6.2 came with 22.04",
        "in a container",
    ),
    "another Python": (
        "36.4.3",
        {"python": "3.12"},
        (),
        ("python", "3.12", "3.10", "wrong_release"),
        "/usr/bin/python3 leads to it",
        "sudo ln -sf python3.10 /usr/bin/python3",
    ),
    "the kernel of a newer L4T": (
        "36.4.3",
        {"kernel": "5.15.185-tegra"},
        (),
        ("kernel", "5.15.185-tegra", "5.15.148-tegra", "half_upgraded"),
        "kernel 5.15.185-tegra runs, JetPack 6.2 came with 5.15.148-tegra: it is JetPack 6.2.2's",
        "reboot",
    ),
    "the kernel of an older family": (
        "36.4.3",
        {"kernel": "5.10.104-tegra"},
        (),
        ("kernel", "5.10.104-tegra", "5.15.148-tegra", "half_upgraded"),
        "it is JetPack 5's",
        "reboot",
    ),
    "a kernel built by hand with the numbers of another release": (
        "36.4.3",
        {"kernel": "5.15.185-custom"},
        (),
        ("kernel", "5.15.185-custom", "5.15.148-tegra", "own"),
        "L4T's drivers must be built for it too",
        "",
    ),
    "a kernel built by hand": (
        "36.4.3",
        {"kernel": "6.12.9-edge"},
        (),
        ("kernel", "6.12.9-edge", "5.15.148-tegra", "own"),
        "another build",
        "",
    ),
}


@pytest.mark.parametrize("case", ONE_DIFFERENCE)
def test_a_difference_is_told_with_its_meaning_and_its_remedy(case: str, tmp_path: Path) -> None:
    release, parts, compat, difference, reason, remedy = ONE_DIFFERENCE[case]
    finding = check(tmp_path, release, tuple(COMPAT.format(version) for version in compat), **parts)
    assert finding.status is Status.WORKS
    assert differences(finding) == [difference]
    assert reason in finding.reason
    assert remedy in finding.remedy
    assert bool(remedy) is bool(finding.remedy)


SAME = {
    "a patch of the toolkit": ("36.4.3", {"cuda": "12.6.85"}),
    "a soname alone": ("36.4.3", {"cudnn": "9", "tensorrt": "10"}),
    "two versions side by side": ("36.4.3", {"cudnn": "8.9.4 9.3.0", "tensorrt": "8.6.2 10.3.0"}),
    "a kernel with an ABI number": ("38.4.0", {"kernel": "6.8.12-1021-tegra"}),
    "a kernel built again": ("36.4.3", {"kernel": "5.15.148-rt-tegra"}),
    "a kernel of which two numbers are known": ("35.4.1", {"kernel": "5.10.120-tegra"}),
    "a star in the table": ("39.2.1", {"kernel": "6.8.12-1022-tegra"}),
    "a VPI of an early release": ("38.2.0", {"vpi": "4.0.0"}),
    "a JetPack 4": ("32.7.6", {"cuda": "10.2.300", "cudnn": "8.2.1", "tensorrt": "8.2.1", "opencv": "4.1.1 4.1"}),
    "an own build beside JetPack's OpenCV": ("36.4.3", {"opencv": "4.8.0 408 4.10.0"}),
    "what no source tells": ("36.3.0", {"vpi": "1.0.0", "opencv": "1.0.0"}),
    "what no source tells of cuDNN": ("35.1.0", {"cudnn": "7.0.0", "tensorrt": "7.0.0"}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_agrees_and_what_is_unknown_is_no_difference(case: str, tmp_path: Path) -> None:
    release, parts = SAME[case]
    finding = check(tmp_path, release, **parts)
    assert (finding.reason, differences(finding)) == ("", [])


@pytest.mark.parametrize("release", ["40.1.0", "36.4.99", "37.0.0"])
def test_a_release_that_is_not_in_the_table_is_compared_with_nothing(release: str, tmp_path: Path) -> None:
    finding = check(tmp_path, release, **{**WHOLE, "ubuntu": "26.04", "cuda": "14.1.0", "tensorrt": "12.0.0"})
    assert differences(finding) == []
    assert finding.remedy == ""
    assert "came with" not in finding.reason
    assert [finding.facts[f"expected_{key}"] for key in COMPONENTS] == [None] * len(COMPONENTS)
    assert finding.facts["cuda_toolkit"] == "14.1.0"


def test_a_gap_in_the_table_is_compared_by_its_l4t(tmp_path: Path) -> None:
    finding = check(tmp_path, "36.5.2", cuda="12.2.0")
    assert "L4T 36.5.2 came with 12.6" in finding.reason


def test_an_upgraded_compute_stack_is_meant_as_a_whole(tmp_path: Path) -> None:
    stack = {"cuda": "13.2.1", "cudnn": "9.20.0", "tensorrt": "10.16.2"}  # of JetPack 7.2, on 7.1
    finding = check(tmp_path / "whole", "38.4.0", (COMPAT.format("13.2"),), **stack)
    assert [difference[3] for difference in differences(finding)] == ["upgraded"] * 3
    assert finding.remedy == ""
    finding = check(tmp_path / "half", "38.4.0", (COMPAT.format("13.2"),), **{**stack, "cuda": "13.0.0"})
    assert [difference[3] for difference in differences(finding)] == ["half_upgraded"] * 2


def test_a_half_upgraded_system_is_told_once_what_to_do(tmp_path: Path) -> None:
    parts = {**WHOLE, "cuda": "12.2.12", "cudnn": "8.9.4", "tensorrt": "8.6.2"}
    finding = check(tmp_path, **parts)
    assert [difference[0] for difference in differences(finding)] == ["cuda", "cudnn", "tensorrt"]
    assert finding.remedy.count("nvidia-jetpack") == 1
    assert finding.reason.count("JetPack 6.0's") == 3


def test_another_ubuntu_explains_another_python(tmp_path: Path) -> None:
    finding = check(tmp_path, **{**WHOLE, "ubuntu": "24.04", "python": "3.12"})
    assert [difference[0] for difference in differences(finding)] == ["ubuntu", "python"]
    assert "it comes with the other Ubuntu" in finding.reason
    assert "ln -sf" not in finding.remedy


@pytest.mark.parametrize(
    ("package", "meanings"), [("6.2+b77", []), ("6.2.1+b38", ["half_upgraded"]), ("6.1+b123", ["half_upgraded"])]
)
def test_the_package_of_another_jetpack_is_told(package: str, meanings: list[str], tmp_path: Path) -> None:
    line = {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"}
    finding = jetpack.check(
        build_files(tmp_path, line, {"dpkg-query -W nvidia-jetpack": f"nvidia-jetpack\t{package}\n"})
    )
    assert [difference[3] for difference in differences(finding)] == meanings
    assert ("dist-upgrade" in finding.remedy) is bool(meanings)


def test_file_and_package_of_l4t_are_a_difference_too(tmp_path: Path) -> None:
    line = {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"}
    packages = {"dpkg-query -W nvidia-l4t-core": "nvidia-l4t-core\t36.4.7-20250918154033\n"}
    finding = jetpack.check(build_files(tmp_path, line, packages))
    assert differences(finding) == [("l4t", "36.4.7", "36.4.3", "half_upgraded")]
    assert "came with" not in finding.reason


# containers


IMAGE = {**WHOLE, "ubuntu": "24.04", "python": "3.12", "cudnn": "9.8.0", "tensorrt": "10.8.0", "vpi": "", "opencv": ""}


def test_a_containers_own_userland_is_told_and_not_faulted(tmp_path: Path) -> None:
    finding = check(tmp_path, "36.4.3", ("/.dockerenv",), **IMAGE)
    assert {(name, meaning) for name, _, _, meaning in differences(finding)} == {
        (name, "container") for name in ("ubuntu", "python", "cudnn", "tensorrt")
    }
    assert "Ubuntu 24.04 is installed, JetPack 6.2 came with 22.04: it is the container's own" in finding.reason
    assert (finding.status, finding.remedy) == (Status.WORKS, "")


def test_a_container_like_its_host_has_nothing_to_tell(tmp_path: Path) -> None:
    finding = check(tmp_path, "36.4.3", ("/.dockerenv",), **WHOLE)
    assert (finding.reason, differences(finding)) == ("", [])


def test_a_containers_cuda_that_the_hosts_driver_cannot_serve_is_told_with_a_remedy(tmp_path: Path) -> None:
    finding = check(tmp_path, "36.4.3", ("/.dockerenv",), **{**WHOLE, "cuda": "13.0.0"})
    assert differences(finding) == [("cuda", "13.0.0", "12.6", "wrong_release")]
    assert "image that was made for this L4T" in finding.remedy


def test_a_containers_cuda_with_its_compat_is_its_own(tmp_path: Path) -> None:
    finding = check(tmp_path, "36.4.3", ("/.dockerenv", COMPAT.format("12.8")), **{**WHOLE, "cuda": "12.8.0"})
    assert differences(finding) == [("cuda", "12.8.0", "12.6", "container")]
    assert finding.remedy == ""


def test_a_release_that_only_an_images_packages_name_is_not_compared(tmp_path: Path) -> None:
    files = {"/.dockerenv": "", "/proc/version": "Linux version 5.15.148-tegra (x) #1\n"}
    finding = jetpack.check(
        build_files(tmp_path, files, {"dpkg-query -W nvidia-l4t-core": "nvidia-l4t-core\t35.4.1-1\n"})
    )
    assert finding.facts["l4t"] == "35.4.1"
    assert differences(finding) == []


def test_the_finding_reads_back_from_json(tmp_path: Path) -> None:
    finding = check(tmp_path, **{**WHOLE, "cuda": "13.0.0"})
    again = msgspec.json.decode(msgspec.json.encode(finding), type=Finding)
    assert differences(again) == differences(finding) == [("cuda", "13.0.0", "12.6", "wrong_release")]


MANY = ("cudnn", "tensorrt", "vpi", "opencv", "cuda_compat")
TABLE = jetpack_releases.read_table()
VERSION = st.one_of(
    st.text(max_size=12),
    st.lists(st.integers(0, 99), min_size=1, max_size=5).map(lambda numbers: ".".join(map(str, numbers))),
    st.sampled_from([str(getattr(row, name)) for row in TABLE.releases for name in COMPONENTS]),
)


@settings(deadline=None, max_examples=300)
@given(
    row=st.sampled_from(TABLE.releases),
    one=st.fixed_dictionaries(dict.fromkeys(("ubuntu", "kernel", "python", "cuda"), st.none() | VERSION)),
    many=st.fixed_dictionaries(
        dict.fromkeys(("cudnn", "tensorrt", "vpi", "opencv", "cuda_compat"), st.lists(VERSION, max_size=2))
    ),
    package=st.none() | VERSION,
    in_container=st.booleans(),
)
def test_any_versions_are_compared_and_each_difference_is_told_once(
    row: jetpack_releases.Release,
    one: dict[str, str | None],
    many: dict[str, list[str]],
    package: str | None,
    in_container: bool,
) -> None:
    parts = Parts(**one, **{name: tuple(found) for name, found in many.items()})
    found = [
        *jetpack_differences.compare_package(package, row),
        *jetpack_differences.compare(parts, row, TABLE, in_container),
    ]
    names = [difference.component for difference in found]
    assert len(names) == len(set(names))
    for difference in found:
        assert difference.found
        assert difference.expected
        meant = difference.meaning in (Meaning.UPGRADED, Meaning.OWN, Meaning.CONTAINER)
        assert not (meant and difference.remedy)
        assert f"came with {difference.expected}" in difference.tell(row.name)
