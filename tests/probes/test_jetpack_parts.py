"""What a Jetson's system is made of: each part is found where JetPack 4 to 7 put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import jetpack, jetpack_parts
from tests.probes.jetsons import check, differences, jetson
from tests.recorded import build_device, build_files


def test_the_toolkit_is_the_one_that_usr_local_cuda_leads_to(tmp_path: Path) -> None:
    host = jetson(tmp_path, cuda="12.6.11", extra=("/usr/local/cuda-12.8/bin/nvcc",))
    (tmp_path / "usr/local/cuda-12.8/version.json").write_text('{"cuda": {"version": "12.8.1"}}')
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / "etc/alternatives").mkdir()
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.6")
    assert jetpack.check(host).facts["cuda_toolkit"] == "12.6.11"


def test_cuda_compat_is_found_beside_the_toolkit_whatever_its_folder_is_called(tmp_path: Path) -> None:
    host = jetson(tmp_path, extra=("/usr/local/cuda/compat/libcuda.so.1",))
    (tmp_path / "usr/local/cuda/version.json").write_text('{"cuda": {"version": "12.8.1"}}')
    assert jetpack.check(host).facts["cuda_compat"] == ["12.8"]


def test_a_runtime_without_a_toolkit_tells_its_cuda(tmp_path: Path) -> None:
    path = "/usr/local/cuda-13.2/targets/sbsa-linux/lib/libcudart.so.13.2.75"
    assert check(tmp_path, "39.2.0", (path,)).facts["cuda_toolkit"] == "13.2.75"


def test_python_is_followed_through_the_alternatives(tmp_path: Path) -> None:
    host = jetson(tmp_path)
    for path, target in (
        ("usr/bin/python3", "/etc/alternatives/python3"),
        ("etc/alternatives/python3", "/usr/bin/python3.12"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(target)
    assert jetpack.check(host).facts["system_python"] == "3.12"


@pytest.mark.parametrize(
    ("text", "ubuntu"),
    [
        ('PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION="22.04.5 LTS (Jammy Jellyfish)"\n', "22.04"),
        ('NAME="Ubuntu"\nVERSION_ID="18.04"\nID=ubuntu\n', "18.04"),
        ('NAME="Poky (Yocto Project Reference Distro)"\nID=poky\nVERSION_ID="5.0"\n', None),
        ('PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"\n', None),
        ('NAME="Ubuntu"\nID=mint\nVERSION_ID="22"\n', None),
        ("", None),
    ],
)
def test_only_ubuntu_is_compared(text: str, ubuntu: str | None, tmp_path: Path) -> None:
    host = build_files(tmp_path, {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3\n", "/etc/os-release": text})
    finding = jetpack.check(host)
    assert finding.facts["ubuntu"] == ubuntu
    assert [name for name, *_ in differences(finding)] == (["ubuntu"] if ubuntu == "18.04" else [])


def test_a_recorded_uname_stands_for_the_kernel(tmp_path: Path) -> None:
    assert jetpack.check(build_device(tmp_path, "orin-nano-super-r36.4.3")).facts["kernel"] == "5.15.148-tegra"


@pytest.mark.parametrize(
    ("names", "versions"),
    [
        (("libcudnn.so.9", "libcudnn.so.9.3.0"), ("9.3.0",)),
        (("libcudnn.so.8.9.4", "libcudnn.so.9.3.0", "libcudnn.so.10.1.0"), ("8.9.4", "9.3.0", "10.1.0")),
        (("libopencv_core.so.4.5d", "libopencv_core.so.4.5.4d"), ("4.5.4d",)),
        (("libopencv_core.so.408",), ()),
        (("libnvinfer.so.10", "libnvinfer.so"), ("10",)),
        ((), ()),
    ],
)
def test_versions_are_read_from_the_names_of_libraries(names: tuple[str, ...], versions: tuple[str, ...]) -> None:
    assert jetpack_parts.versions(f"/usr/lib/{name}" for name in names) == versions


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/opt/nvidia/vpi1/lib64/libnvvpi.so.1.2.3", ["1.2.3"]),
        ("/opt/nvidia/vpi3/lib/aarch64-linux-gnu/libnvvpi.so.3.2.4", ["3.2.4"]),
        ("/opt/nvidia/vpi4/share/doc", ["4"]),
        ("/opt/nvidia/vpi/share/doc", None),
    ],
)
def test_vpi_is_found_in_the_folders_of_each_jetpack(path: str, version: list[str] | None, tmp_path: Path) -> None:
    assert jetpack.check(build_files(tmp_path, {path: ""})).facts["vpi"] == version
