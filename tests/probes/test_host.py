"""A recorded device is a world of its own: its links, its commands, its missing environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.host import PART_BYTES, READ_LIMIT_BYTES, RECORDED_COMMANDS, Host


@pytest.fixture
def device(tmp_path: Path) -> Path:
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia/icd.json").write_text("manifest of the device\n")
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").symlink_to("/usr/lib/nvidia/icd.json")
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path


def test_an_absolute_link_is_followed_inside_of_the_device(device: Path) -> None:
    assert Host(device).text("/etc/vulkan/icd.d/nvidia_icd.json") == "manifest of the device\n"


def test_a_linked_folder_is_followed(device: Path) -> None:
    assert Host(device).line("/lib/nvidia/icd.json") == "manifest of the device"


def test_nothing_leads_out_of_a_recorded_device(device: Path) -> None:
    (device / "etc/hostname").symlink_to("/../../../../../../etc/hostname")
    (device / "etc/out").symlink_to("../" * 40 + "etc/hostname")
    host = Host(device)
    assert host.text("/etc/hostname") is None
    assert host.text("/etc/out") is None
    assert host.text("/../../../../../../../../etc/hostname") is None


def test_a_ring_of_links_is_no_file(device: Path) -> None:
    (device / "etc/a").symlink_to("b")
    (device / "etc/b").symlink_to("a")
    assert Host(device).text("/etc/a") is None


def test_a_link_without_its_target_exists_and_has_no_text(device: Path) -> None:
    (device / "etc/gone").symlink_to("/nowhere")
    host = Host(device)
    assert host.exists("/etc/gone")
    assert host.link("/etc/gone") == "/nowhere"
    assert host.text("/etc/gone") is None


def test_paths_that_match_are_the_devices_own_even_below_an_odd_folder(tmp_path: Path) -> None:
    root = tmp_path / "rack [1]"
    (root / "dev").mkdir(parents=True)
    (root / "dev/nvmap").touch()
    assert Host(root).glob("/dev/nv*") == ["/dev/nvmap"]


def test_a_folder_that_is_a_link_is_searched_inside_of_the_recorded_device(device: Path) -> None:
    (device / "usr/local/cuda-12.6/lib64").mkdir(parents=True)
    (device / "usr/local/cuda-12.6/lib64/libcudart.so.12").touch()
    (device / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (device / "etc/alternatives").mkdir()
    (device / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.6")
    assert Host(device).glob("/usr/local/cuda/lib64/*.so*") == ["/usr/local/cuda/lib64/libcudart.so.12"]


def test_no_search_in_a_recorded_device_leads_out_of_it(device: Path) -> None:
    (device / "system").symlink_to("/var")
    (device / "up").symlink_to("../" * 40)
    host = Host(device)
    assert host.glob("/system/*") == []
    assert host.glob("/up/var/*") == []
    assert host.glob("/../../../../../../../../var/*") == []


def test_a_recorded_device_answers_commands_from_its_record_and_nothing_else(device: Path) -> None:
    path = device / RECORDED_COMMANDS
    path.parent.mkdir()
    path.write_text('{"uname -r": "5.15.148-tegra\\n"}')
    host = Host(device)
    assert host.run(["uname", "-r"]).stdout == "5.15.148-tegra\n"
    assert host.run(["uname", "-m"]).returncode is None
    assert "not in the recorded device" in host.run(["uname", "-m"]).reason


def test_a_recorded_device_has_no_libraries_and_none_of_our_environment(device: Path) -> None:
    host = Host(device)
    assert host.environ == {}
    with pytest.raises(OSError, match="recorded device"):
        host.load_library("libc.so.6")


def test_this_machine_is_read_as_it_is() -> None:
    host = Host()
    assert not host.recorded
    assert host.environ is os.environ
    assert host.line("/proc/self/comm")
    assert "/proc/self" in host.glob("/proc/sel?")


def test_a_command_that_is_not_there_or_does_not_end_says_so() -> None:
    host = Host()
    assert host.run(["edge-agent-no-such-command"]).reason == "edge-agent-no-such-command: not found"
    assert "no answer in 0.1 s" in host.run(["sleep", "5"], timeout_s=0.1).reason


# ---- parts of a file -------------------------------------------------------------------------------------------------


def test_a_long_file_comes_in_parts_up_to_the_limit_and_its_text_is_cut(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "long").write_bytes(data)
    host = Host(tmp_path)
    parts = list(host.parts("/long", 1_000_000))
    assert b"".join(parts) == data[:1_000_000]
    assert max(map(len, parts)) <= PART_BYTES < 1_000_000
    assert b"".join(host.parts("/long")) == data[:READ_LIMIT_BYTES]


def test_what_can_t_be_read_in_parts_is_told_as_the_reason(tmp_path: Path) -> None:
    host = Host(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        next(host.parts("/gone"))
    with pytest.raises(OSError, match="not a regular file"):
        next(host.parts("/pipe"))
    assert host.text("/pipe") is None
    assert host.text("/gone") is None


def test_a_file_of_procfs_is_read_to_its_end() -> None:
    data = b"".join(Host().parts("/proc/self/maps"))  # a page at a time
    assert len(data) > 2 * 4096
    assert data.endswith(b"\n")
