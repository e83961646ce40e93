from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from agent.config import AgentSection, Config
from agent.identity import device_id


def device(root: Path, serial: str | None = None, machine_id: str = "a" * 32, hostname: str = "tegra-ubuntu") -> Path:
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc/machine-id").write_text(machine_id + "\n")
    (root / "etc/hostname").write_text(hostname + "\n")
    if serial is not None:
        (root / "proc/device-tree").mkdir(parents=True, exist_ok=True)
        (root / "proc/device-tree/serial-number").write_bytes(serial.encode() + b"\0")
    return root


def name(root: Path, state: Path) -> str:
    config = Config(agent=AgentSection(state_dir=str(state)))
    found, trouble = device_id(config, str(root))
    assert trouble == ""
    return found


def test_two_boards_with_one_image_have_two_names(tmp_path: Path) -> None:
    """Case MQ-14: same machine-id, same host name."""
    one = name(device(tmp_path / "1", "1421223012345"), tmp_path / "s1")
    two = name(device(tmp_path / "2", "1421223099999"), tmp_path / "s2")
    assert (one, two) == ("jetson-1421223012345", "jetson-1421223099999")


def test_a_new_host_name_leaves_the_name(tmp_path: Path) -> None:
    first = name(device(tmp_path / "d", "1421223012345"), tmp_path / "s")
    assert name(device(tmp_path / "d", "1421223012345", hostname="line-4"), tmp_path / "s") == first


def test_a_serial_number_of_zeros_is_none(tmp_path: Path) -> None:
    found = name(device(tmp_path / "d", "0" * 16), tmp_path / "s")
    assert re.fullmatch(r"edge-[0-9a-f]{12}", found)
    assert name(device(tmp_path / "d", "0" * 16), tmp_path / "s") == found


def test_a_cloned_disk_on_other_hardware_gets_a_new_name(tmp_path: Path) -> None:
    for number, serial in (("1", "ABC123"), ("2", "DEF456")):
        folder = tmp_path / number / "sys/class/dmi/id"
        folder.mkdir(parents=True)
        (folder / "product_serial").write_text(serial + "\n")
    first = name(tmp_path / "1", tmp_path / "s")
    assert name(tmp_path / "1", tmp_path / "s") == first
    assert name(tmp_path / "2", tmp_path / "s") != first


def test_a_file_that_a_power_cut_has_taken_gives_a_new_name_and_no_error(tmp_path: Path) -> None:
    state = tmp_path / "s"
    state.mkdir()
    (state / "device-id.json").write_bytes(b"\0" * 100)
    assert name(device(tmp_path / "d"), state).startswith("edge-")


def test_the_configured_name_wins(tmp_path: Path) -> None:
    config = msgspec.structs.replace(Config(), agent=AgentSection(device_id="press-7", state_dir=str(tmp_path)))
    assert device_id(config, str(device(tmp_path / "d", "1421223012345"))) == ("press-7", "")


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config(agent=AgentSection(state_dir=str(tmp_path / "file" / "s")))
    found, trouble = device_id(config, str(device(tmp_path / "d")))
    assert found.startswith("edge-")
    assert "set agent.device_id" in trouble


@pytest.mark.parametrize("kept", [b'{"device_id":"a/b","hardware":""}', b'{"device_id":"","hardware":""}', b'"\xff"'])
def test_a_kept_name_that_cannot_stand_in_a_topic_is_replaced(tmp_path: Path, kept: bytes) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "device-id.json").write_bytes(kept)
    found = name(device(tmp_path / "d"), state)
    assert found.startswith("edge-")
    assert name(device(tmp_path / "d"), state) == found
