"""Hardware: every recorded device, the cases from the field, and what is read where nothing is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import devicetree, hardware, jetson_modules, l4t, pci
from probes.contract import Status
from probes.host import Host
from tests.recorded import FIXTURES, build_device, build_files, device_names

# device -> module, part, SoC, compute capability, GPU stack, NVML. Written by hand from the fixtures' sources.
DEVICES = {
    "agx-orin-64gb-r36.5.0": ("Jetson AGX Orin 64GB devkit", "p3701-0000", "tegra234", "8.7", "nvgpu", "stub"),
    "agx-thor-r38.4.0": ("Jetson AGX Thor T5000 128GB", "p3834-0008", "tegra264", "11.0", "nvidia", "partial"),
    "agx-thor-r39.2.1": ("Jetson AGX Thor T5000 128GB", "p3834-0008", "tegra264", "11.0", "nvidia", "partial"),
    "agx-xavier-r32.6.1-l4t-only": ("Jetson AGX Xavier 32GB", "p2888-0004", "tegra194", "7.2", "nvgpu", "none"),
    "container-on-orin-csv-r36": (
        "Jetson Orin Nano 8GB devkit, Super",
        "p3767-0005",
        "tegra234",
        "8.7",
        "nvgpu",
        "stub",
    ),
    "desktop-rtx-3090": (None, None, None, None, "nvidia", "full"),
    "jetson-nano-r32.7.1": ("Jetson Nano 4GB devkit", "p3448-0000", "tegra210", "5.3", "nvgpu", "none"),
    "jetson-tx2-r32.7.6": ("Jetson TX2 8GB", "p3310-1000", "tegra186", "6.2", "nvgpu", "none"),
    "orin-nano-super-r36.4.3": ("Jetson Orin Nano 8GB devkit, Super", "p3767-0005", "tegra234", "8.7", "nvgpu", "stub"),
    "orin-nano-super-r39.2.1": ("Jetson Orin Nano 8GB devkit, Super", "p3767-0005", "tegra234", "8.7", "nvgpu", "stub"),
    "orin-nx-16gb-r36.3.0": ("Jetson Orin NX 16GB", "p3767-0000", "tegra234", "8.7", "nvgpu", "stub"),
    "raspberry-pi-5": (None, None, None, None, "", "none"),
    "x86-server-no-gpu": (None, None, None, None, "", "none"),
    "xavier-nx-r35.4.1": ("Jetson Xavier NX 8GB devkit", "p3668-0000", "tegra194", "7.2", "nvgpu", "none"),
}
KEYS = ("module", "module_part", "soc", "compute_capability", "gpu_stack", "nvml")

# DT-03: device trees of custom carriers: SoC, compute capability, module, model
CASES = {
    "cti-nx": ("tegra194", "7.2", "Jetson Xavier NX 8GB", "NVIDIA Jetson Xavier NX CTI NGX004"),
    "cti-tx2i": ("tegra186", "6.2", "Jetson TX2i", "quill"),
    "an110": ("tegra194", "7.2", "unknown (custom)", "NVIDIA Jetson Xavier NX"),
    "switch": ("tegra210", "5.3", "unknown (custom)", "Nintendo Switch (2017)"),
    "tx1": ("tegra210", "5.3", "Jetson TX1", "jetson_tx1"),
    "lanai": ("tegra186", "6.2", "Jetson TX2 NX", "lanai-3636"),
    "orin-super": (
        "tegra234",
        "8.7",
        "Jetson Orin Nano 8GB devkit, Super",
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
    ),
}


def compatible(*strings: str) -> dict[str, str]:
    return {"/proc/device-tree/compatible": "".join(f"{text}\0" for text in strings)}


def meminfo(kib: int) -> dict[str, str]:
    return {"/proc/meminfo": f"MemTotal:       {kib} kB\n"}


def test_the_table_below_has_every_recorded_device() -> None:
    assert sorted(DEVICES) == device_names()


@pytest.mark.parametrize("name", DEVICES)
def test_a_recorded_device_is_named_rightly(name: str, tmp_path: Path) -> None:
    finding = hardware.check(build_device(tmp_path, name))
    assert finding.status is Status.WORKS
    assert tuple(finding.facts[key] for key in KEYS) == DEVICES[name]
    assert finding.facts["is_jetson"] is (DEVICES[name][2] is not None)
    assert finding.facts["in_container"] is name.startswith("container")


@pytest.mark.parametrize("name", CASES)
def test_a_custom_carrier_has_its_soc_read_and_shows_the_raw_model(name: str) -> None:
    finding = hardware.check(Host(root=FIXTURES / "cases" / "DT-03" / name))
    facts = finding.facts
    assert (facts["soc"], facts["compute_capability"], facts["module"], facts["model"]) == CASES[name]
    assert finding.status is Status.WORKS
    assert "\0" not in repr(finding)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("orin-jp72", ("tegra234", "8.7", "nvgpu", "stub")), ("thor-jp71", ("tegra264", "11.0", "nvidia", "partial"))],
)
def test_the_soc_decides_the_gpu_and_not_the_l4t_number(name: str, expected: tuple[str, ...]) -> None:
    facts = hardware.check(Host(root=FIXTURES / "cases" / "DT-05" / name)).facts
    assert (facts["soc"], facts["compute_capability"], facts["gpu_stack"], facts["nvml"]) == expected


def test_a_soc_newer_than_the_table_is_a_jetson_with_unknown_abilities(tmp_path: Path) -> None:
    finding = hardware.check(build_files(tmp_path, compatible("nvidia,p9999-0001", "nvidia,tegra374")))
    assert finding.status is Status.WORKS
    assert finding.facts["is_jetson"] is True
    assert finding.facts["soc"] == "tegra374"
    assert finding.facts["compute_capability"] is None
    assert "tegra374" in finding.reason


def test_an_unknown_sku_of_a_known_family_is_not_taken_for_its_sister(tmp_path: Path) -> None:
    facts = hardware.check(build_files(tmp_path, compatible("nvidia,p3768-0000+p3767-0042", "nvidia,tegra234"))).facts
    assert facts["module"] == "unknown (custom)"
    assert facts["carrier"] == "p3768-0000"


@pytest.mark.parametrize(
    ("kib", "name", "gib"),
    [(31435000, "Jetson AGX Orin 32GB devkit", 32), (64349184, "Jetson AGX Orin 64GB devkit", 64)],
)
def test_modules_that_share_a_number_are_told_apart_by_memory(kib: int, name: str, gib: int, tmp_path: Path) -> None:
    tree = compatible("nvidia,p3737-0000+p3701-0000", "nvidia,p3701-0000", "nvidia,tegra234")
    facts = hardware.check(build_files(tmp_path, tree | meminfo(kib))).facts
    assert (facts["module"], facts["ram_nominal_bytes"]) == (name, gib << 30)


def test_modules_that_share_a_number_stay_both_when_memory_is_unknown(tmp_path: Path) -> None:
    facts = hardware.check(build_files(tmp_path, compatible("nvidia,p3701-0000", "nvidia,tegra234"))).facts
    assert facts["module"] == "Jetson AGX Orin 32GB devkit or Jetson AGX Orin 64GB devkit"
    assert facts["ram_nominal_bytes"] is None


def test_the_longest_match_names_the_module(tmp_path: Path) -> None:
    tree = compatible("nvidia,p3740-0002+p3701-0008", "nvidia,p3701-0008", "nvidia,tegra234")
    assert hardware.check(build_files(tmp_path, tree)).facts["module"] == "IGX Orin devkit"


def test_super_mode_changes_the_bandwidth_of_the_data_sheet(tmp_path: Path) -> None:
    plain = compatible("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234")
    fast = compatible("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234")
    key = "datasheet_memory_bandwidth_bytes_per_s"
    assert hardware.check(build_files(tmp_path / "plain", plain)).facts[key] == 68e9
    assert hardware.check(build_files(tmp_path / "super", fast)).facts[key] == 102e9


def test_the_board_number_of_the_boot_configuration_helps_a_mute_device_tree(tmp_path: Path) -> None:
    files = compatible("vendor,box", "nvidia,tegra186") | {
        "/etc/nv_boot_control.conf": "TNSPEC 3310-B02-1000-E.0-1-0-jetson-tx2-devkit-mmcblk0p1\n"
    }
    assert hardware.check(build_files(tmp_path, files)).facts["module_part"] == "p3310-1000"


@pytest.mark.parametrize(
    ("text", "serial"), [("1421723012345\0", "1421723012345"), ("0000000000000\0", None), ("\0", None)]
)
def test_a_serial_number_of_zeros_is_none(text: str, serial: str | None, tmp_path: Path) -> None:
    files = compatible("nvidia,tegra234") | {"/proc/device-tree/serial-number": text}
    assert hardware.check(build_files(tmp_path, files)).facts["serial"] == serial


def test_a_placeholder_of_the_board_maker_is_no_model(tmp_path: Path) -> None:
    files = {"/sys/class/dmi/id/product_name": "System Product Name\n", "/sys/class/dmi/id/sys_vendor": "ACME\n"}
    assert hardware.check(build_files(tmp_path, files)).facts["model"] == "ACME"


def test_a_raspberry_pi_is_a_machine_like_any_other(tmp_path: Path) -> None:
    facts = hardware.check(build_device(tmp_path, "raspberry-pi-5")).facts
    assert facts["model"] == "Raspberry Pi 5 Model B Rev 1.0"
    assert facts["cpu_model"] == "Cortex-A76"
    assert facts["architecture"] == "aarch64"


def test_an_empty_folder_is_unknown_and_not_a_guess(tmp_path: Path) -> None:
    finding = hardware.check(build_files(tmp_path, {}))
    assert finding.status is Status.UNKNOWN
    assert finding.facts["module"] is None


def test_this_machine_is_read_without_being_a_jetson() -> None:
    finding = hardware.check(Host())
    if finding.facts["is_jetson"]:
        pytest.skip("this machine is a Jetson")
    assert finding.status is Status.WORKS
    assert finding.facts["architecture"]
    assert finding.facts["cpu_count"]


def test_a_gpu_bound_to_another_driver_is_no_nvidia_stack(tmp_path: Path) -> None:
    host = build_device(tmp_path, "desktop-rtx-3090")
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/driver").symlink_to("../../../bus/pci/drivers/nouveau")
    facts = hardware.check(host).facts
    assert facts["gpu_stack"] == ""
    assert facts["pci_gpus"] == ["0000:01:00.0 10de:? (nouveau)"]


def test_the_pci_bridges_of_an_orin_are_no_gpus(tmp_path: Path) -> None:
    folder = "/sys/bus/pci/devices/0001:00:00.0"
    host = build_files(tmp_path, {f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x060400\n"})
    assert pci.read_gpus(host) == ()


@pytest.mark.parametrize(
    ("strings", "soc"),
    [
        (("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234", "nvidia,tegra23x"), "tegra234"),
        (("nvidia,tegra23x",), "tegra234"),
        (("nvidia,tegra26x",), "tegra264"),
        (("brcm,bcm2712",), None),
        ((), None),
    ],
)
def test_the_soc_is_found_in_both_spellings(strings: tuple[str, ...], soc: str | None) -> None:
    assert devicetree.find_soc(strings) == soc


@pytest.mark.parametrize(("text", "count"), [("0-3", 4), ("0-3,6,8-9", 7), ("0", 1), ("", None), (None, None)])
def test_processors_in_a_list_are_counted(text: str | None, count: int | None) -> None:
    assert hardware.count_cpus(text) == count


def test_every_module_names_a_soc_of_the_table() -> None:
    table = jetson_modules.read_table()
    assert len(table.modules) > 25
    assert {module.soc for module in table.modules} == set(table.socs)


def test_a_proc_file_longer_than_a_page_is_read_to_its_end() -> None:
    text = Host().text("/proc/self/maps")
    assert text is not None
    assert len(text) > 4096
    assert "[stack]" in text


@pytest.mark.parametrize(
    ("soc_id", "family", "soc"),
    [
        ("tegra234", "", "tegra234"),
        ("35", "Tegra", "tegra234"),
        ("38", "Tegra", "tegra264"),
        ("25", "Tegra", "tegra194"),
        ("24", "Tegra", "tegra186"),
        ("33", "Tegra", "tegra210"),
        ("35", "Snapdragon", None),
        ("99", "Tegra", None),
    ],
)
def test_the_kernel_names_the_soc_where_the_device_tree_does_not(
    soc_id: str, family: str, soc: str | None, tmp_path: Path
) -> None:
    files = {"/sys/devices/soc0/soc_id": f"{soc_id}\n", "/sys/devices/soc0/family": f"{family}\n"}
    host = build_files(tmp_path, files | compatible("vendor,box"))
    assert hardware.check(host).facts["soc"] == soc
    assert l4t.is_jetson(host) is (soc is not None)


@pytest.mark.parametrize(
    ("node", "stack"),
    [
        ("17000000.gpu", "nvgpu"),
        ("17000000.ga10b", "nvgpu"),
        ("57000000.gpu", "nvgpu"),
        ("gpu-gpc-0", "nvidia"),
        ("bwmgr", ""),
    ],
)
def test_the_gpu_s_clock_tells_the_stack_of_a_soc_that_nobody_names(node: str, stack: str, tmp_path: Path) -> None:
    release = {
        "/etc/nv_tegra_release": "# R39 (release), REVISION: 2.0\n",
        f"/sys/class/devfreq/{node}/cur_freq": "1\n",
    }
    facts = hardware.check(build_files(tmp_path, compatible("vendor,box") | release)).facts
    assert (facts["soc"], facts["gpu_stack"]) == (None, stack)
