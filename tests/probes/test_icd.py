"""Driver manifests: what they name, and why a driver can't be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_probe import environment

from probes import icd
from probes.contract import Status
from probes.host import Host


def manifest(library: str) -> str:
    return json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library}})


def judged(drivers: list[icd.Driver], replaced_by: str = "", root: str | Path = "/") -> icd.Judgement:
    host = Host(root)
    return icd.nothing_found(host, "Vulkan", drivers, replaced_by=replaced_by, searched=["/etc"], said="said")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ICD": {}}', '{"ICD": {"library_path": 3}}', manifest("")])
def test_a_text_that_is_no_manifest_is_an_error_with_words(text: str) -> None:
    with pytest.raises(ValueError, match="not a driver manifest: "):
        icd.parse_json_manifest(text)


def test_an_icd_file_without_line_end_names_its_library() -> None:
    assert icd.parse_icd("libpocl.so.2.10.0") == "libpocl.so.2.10.0"


@pytest.mark.parametrize("text", ["", "\n", "\0"])
def test_an_icd_file_that_names_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="names no library"):
        icd.parse_icd(text)


def test_a_path_with_a_slash_is_relative_to_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(manifest("../lib/libx.so"))
    assert icd.read_manifest(Host(), str(tmp_path / "a.json")).library == f"{tmp_path}/../lib/libx.so"


def test_a_bare_name_is_left_to_the_dynamic_loader(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(manifest("libGLX_nvidia.so.0"))
    assert icd.read_manifest(Host(), str(tmp_path / "a.json")).library == "libGLX_nvidia.so.0"


def test_a_missing_manifest_is_told_from_one_that_can_not_be_read(tmp_path: Path) -> None:
    assert icd.read_manifest(Host(), str(tmp_path / "none.json")).error == "no such file"
    (tmp_path / "folder.json").mkdir()
    assert icd.read_manifest(Host(), str(tmp_path / "folder.json")).error == "can't be read"


def test_a_recorded_manifest_is_found_behind_an_absolute_link(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr/edge-agent-test.json").write_text(manifest("libGLX_nvidia.so.0"))
    (tmp_path / "etc/nvidia_icd.json").symlink_to("/usr/edge-agent-test.json")
    driver = icd.read_manifest(Host(tmp_path), "/etc/nvidia_icd.json")
    assert (driver.library, driver.error) == ("libGLX_nvidia.so.0", "")


def test_one_file_in_two_folders_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.json").write_text(manifest("libx.so"))
    (tmp_path / "b").symlink_to(tmp_path / "a")
    found = icd.manifests(Host(), [f"{tmp_path}/a", f"{tmp_path}/b"], ".json")
    assert found == [f"{tmp_path}/a/x.json"]


def test_a_library_that_is_not_there_is_named_in_the_loaders_words() -> None:
    (driver,) = icd.tried(Host(), [icd.Driver(manifest="/m.json", library="libnot_there.so.9")], ["entry"])
    assert driver.error == "libnot_there.so.9: cannot open shared object file: No such file or directory"


def test_a_driver_that_was_tried_does_not_answer_in_its_loaders_place() -> None:
    code = (
        "import ctypes; from probes.host import Host; from probes import icd\n"
        "icd.tried(Host(), [icd.Driver(manifest='/m.json', library='libEGL.so.1')], ['eglInitialize'])\n"
        "print(hasattr(ctypes.CDLL('libEGL.so.1'), 'eglInitialize'), hasattr(ctypes.CDLL(None), 'eglInitialize'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment({}), capture_output=True, text=True, check=False
    )
    if "cannot open shared object file" in done.stderr:
        pytest.skip("libEGL.so.1 is not here: no library was loaded")
    assert done.stdout.split() == ["True", "False"]


def test_a_library_without_the_entry_point_is_no_driver() -> None:
    (driver,) = icd.tried(Host(), [icd.Driver(manifest="/m.json", library="libc.so.6")], ["clIcdGetPlatformIDsKHR"])
    assert driver.error == "libc.so.6: is no driver, has no clIcdGetPlatformIDsKHR"


def test_a_file_that_is_no_library_is_broken(tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(b"not a library at all, but long enough to be read as one" * 10)
    (driver,) = icd.tried(Host(), [icd.Driver(manifest="/m.json", library=f"{tmp_path}/libx.so")], ["entry"])
    assert "invalid ELF header" in driver.error
    assert driver.broken


def test_a_driver_of_the_other_word_size_is_not_broken() -> None:
    driver = icd.Driver(manifest="/m.i686.json", library="libx.so", error="libx.so: wrong ELF class: ELFCLASS32")
    assert not driver.broken
    assert icd.broken([driver]) == []


def test_no_manifest_at_all_is_absent() -> None:
    answer = judged([])
    assert answer.status is Status.ABSENT
    assert answer.reason == "no Vulkan driver is installed: no manifest in /etc (said)"


def test_a_manifest_whose_library_is_missing_is_broken_and_named() -> None:
    answer = judged([icd.Driver(manifest="/etc/x.json", library="libx.so", error="libx.so: cannot open")])
    assert answer.status is Status.BROKEN
    assert "/etc/x.json: libx.so: cannot open" in answer.reason


def test_a_variable_that_names_nothing_is_named_with_its_remedy() -> None:
    answer = judged([icd.Driver(manifest="/n.json", error="no such file")], "VK_DRIVER_FILES=/n.json")
    assert answer.reason.startswith("VK_DRIVER_FILES=/n.json hides every Vulkan driver: /n.json: no such file")
    assert answer.remedy == "unset VK_DRIVER_FILES"


def test_a_device_node_that_can_not_be_read_makes_it_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    # Root may read anything: the answer of the permission check is what is exchanged here, nothing else.
    monkeypatch.setattr(Host, "readable", lambda self, path: False)
    answer = judged([icd.Driver(manifest="/x.json", library="libx.so")], root=tmp_path)
    assert answer.status is Status.UNKNOWN
    assert "this user may not read /dev/dri/renderD128" in answer.reason
    assert "render" in answer.remedy


def test_drivers_that_load_without_a_device_are_absent(tmp_path: Path) -> None:
    answer = judged([icd.Driver(manifest="/x.json", library="libvulkan_intel.so")], root=tmp_path)
    assert answer.status is Status.ABSENT
    assert answer.reason == "no Vulkan driver found a device: libvulkan_intel.so can be loaded (said)"


def test_only_the_variables_that_are_set_are_told() -> None:
    host = Host(environ={"VK_LOADER_DEBUG": "all", "VK_OTHER": "1", "DISPLAY": ":0"})
    assert icd.environment(host, ["VK_LOADER_*", "DISPLAY", "HOME"]) == {"VK_LOADER_DEBUG": "all", "DISPLAY": ":0"}
