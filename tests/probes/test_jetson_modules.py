"""Every module of the facts, an independent table, through the probe: a recorded root in, name and data sheet out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes import dla, hardware, jetson_modules, video_codec
from probes.contract import Finding, Status
from tests.recorded import FIXTURES, build_files

FACTS: dict[str, dict[str, Any]] = {
    module["name"]: module for module in json.loads((FIXTURES / "facts/jetson-hardware.json").read_text())["modules"]
}
UNKNOWN = "unknown (custom)"
# name in the facts -> what the finding calls it, part; by hand
NAMES = {
    "Jetson TX1": ("Jetson TX1", "p2180-1000"),
    "Jetson Nano 4GB (devkit SD)": ("Jetson Nano 4GB devkit", "p3448-0000"),
    "Jetson Nano module 16GB eMMC": ("Jetson Nano 4GB module (16GB eMMC)", "p3448-0002"),
    "Jetson Nano 2GB devkit": ("Jetson Nano 2GB devkit", "p3448-0003"),
    "Jetson TX2 8GB": ("Jetson TX2 8GB", "p3310-1000"),
    "Jetson TX2 4GB": ("Jetson TX2 4GB", "p3489-0888"),
    "Jetson TX2i": ("Jetson TX2i", "p3489-0000"),
    "Jetson TX2 NX": ("Jetson TX2 NX", "p3636-0001"),
    "Jetson AGX Xavier 8GB": ("Jetson AGX Xavier 8GB", "p2888-0006"),
    "Jetson AGX Xavier 16GB": ("Jetson AGX Xavier 16GB", "p2888-0001"),
    "Jetson AGX Xavier 32GB": ("Jetson AGX Xavier 32GB", "p2888-0004"),
    "Jetson AGX Xavier 64GB": ("Jetson AGX Xavier 64GB", "p2888-0005"),
    "Jetson AGX Xavier Industrial 32GB": ("Jetson AGX Xavier Industrial 32GB", "p2888-0008"),
    "Jetson Xavier NX (devkit SD, 8GB)": ("Jetson Xavier NX 8GB devkit", "p3668-0000"),
    "Jetson Xavier NX 8GB (eMMC module)": ("Jetson Xavier NX 8GB", "p3668-0001"),
    "Jetson Xavier NX 16GB": ("Jetson Xavier NX 16GB", "p3668-0003"),
    "Jetson Orin Nano 4GB": ("Jetson Orin Nano 4GB", "p3767-0004"),
    "Jetson Orin Nano 8GB (module)": ("Jetson Orin Nano 8GB", "p3767-0003"),
    "Jetson Orin Nano 8GB devkit, Super mode": ("Jetson Orin Nano 8GB devkit, Super", "p3767-0005"),
    "Jetson Orin NX 8GB": ("Jetson Orin NX 8GB", "p3767-0001"),
    "Jetson Orin NX 16GB": ("Jetson Orin NX 16GB", "p3767-0000"),
    "Jetson AGX Orin devkit (32GB early / 64GB)": ("Jetson AGX Orin 64GB devkit", "p3701-0000"),
    "Jetson AGX Orin 64GB (module)": ("Jetson AGX Orin 64GB", "p3701-0005"),
    "Jetson AGX Orin 32GB (module)": ("Jetson AGX Orin 32GB", "p3701-0004"),
    "Jetson AGX Orin Industrial 64GB": ("Jetson AGX Orin Industrial 64GB", "p3701-0008"),
    "IGX Orin (devkit)": ("IGX Orin devkit", "p3701-0008"),
    "Clara AGX devkit": ("Clara AGX devkit", "p3904-0000"),
    "Jetson AGX Thor devkit / T5000 128GB": ("Jetson AGX Thor T5000 128GB", "p3834-0008"),
    "Jetson T4000 64GB": ("Jetson T4000 64GB", "p3834-0000"),
}
# announced: no part number and no device tree in any source
UNDISCLOSED = ("Jetson T3000 32GB", "Jetson T2000 16GB", "IGX T5000 / IGX T7000", "Jetson Orin Nano 2 8GB")
RAM_GIB = {"Jetson AGX Orin devkit (32GB early / 64GB)": 64}
# what L4T the JetPack generations of the facts are; by hand
L4T = {
    "4": ["32"],
    "5": ["34", "35"],
    "5 (>=5.1)": ["35.2.1+"],
    "5 (>=5.1.1)": ["35.3.1+"],
    "6": ["36"],
    "6 (>=6.1r1)": ["36.4.2+"],
    "7": ["38", "39"],
    "7 (>=7.1, L4T 38.4)": ["38.4.0+", "39"],
    "7 (>=7.2)": ["39.2.0+"],
}


def tokens(name: str) -> list[str]:
    """The compatible strings of a module: notes taken off, its own part in the place of its family's."""
    module, part = FACTS[name], NAMES[name][1]
    found = [re.sub(r" \(.*\)$", "", token) for token in module["dt_compatible"] or []]
    found = [token.replace("p2888-0001", part) if "p2888" in part else token for token in found]
    return [*(found or [f"nvidia,{part}"]), *([f"nvidia,{module['soc']}"] if module["soc"] else [])]


def files(compatible: list[str], model: str | None = None, ram_gib: int | None = None) -> dict[str, str]:
    """What a root has: strings end with NUL bytes, as in a device tree; MemTotal is 5 % below the nominal memory."""
    found = {"/proc/device-tree/compatible": "".join(f"{token}\0" for token in compatible)}
    if model:
        found["/proc/device-tree/model"] = f"{model}\0"
    if ram_gib:
        found["/proc/meminfo"] = f"MemTotal:       {int(ram_gib * 1024 * 1024 * 0.95)} kB\n"
    return found


def find(root: Path, name: str, **more: str) -> Finding:
    module = FACTS[name]
    ram = RAM_GIB.get(name, module["ram_gb"])
    return hardware.check(build_files(root, files(tokens(name), module["dt_model"], ram) | more))


def test_every_module_of_the_facts_is_in_one_of_the_tables_below() -> None:
    assert len(FACTS) == 33
    assert {*NAMES, *UNDISCLOSED} == set(FACTS)
    assert {part for _, part in NAMES.values()} | {"p3701-0002"} == {
        row.part for row in jetson_modules.read_table().modules
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_its_name_soc_and_data_sheet(name: str, tmp_path: Path) -> None:
    finding, module = find(tmp_path, name), FACTS[name]
    facts, said = finding.facts, NAMES[name]
    assert finding.status is Status.WORKS
    assert "\0" not in repr(finding)
    assert (facts["module"], facts["module_part"]) == said
    assert (facts["soc"], facts["compute_capability"], facts["is_jetson"]) == (module["soc"], module["cuda_cc"], True)
    assert facts["gpu_stack"] == ("nvidia" if module["soc"] == "tegra264" else "nvgpu")
    ram = RAM_GIB.get(name, module["ram_gb"])
    assert facts["ram_nominal_bytes"] == (ram << 30 if ram else None)
    assert facts["datasheet_cuda_cores"] == module["cuda_cores"]
    assert facts["datasheet_sm_count"] == module["sm_count"]
    assert facts["datasheet_gpu_max_hz"] == (module["gpu_max_mhz"] and module["gpu_max_mhz"] * 1e6)
    assert facts["datasheet_memory_bandwidth_bytes_per_s"] == (module["mem_bw_gbs"] and module["mem_bw_gbs"] * 1e9)
    assert facts["datasheet_dla_count"] == module["dla_count"]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_its_tops_with_their_precision(name: str, tmp_path: Path) -> None:
    said = (FACTS[name]["max_tops"] or "").partition("; ")[0].partition(" (NVIDIA's current")[0]
    assert find(tmp_path, name).facts["datasheet_max_tops"] == (said or None)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_its_video_engines_and_none_is_told_from_unknown(name: str, tmp_path: Path) -> None:
    facts = find(tmp_path, name).facts
    for engine in ("nvenc", "nvdec"):
        said = FACTS[name][engine]
        said = FACTS["Jetson Orin Nano 8GB (module)"][engine] if said == "as Orin Nano 8GB" else said
        said = FACTS["Jetson AGX Thor devkit / T5000 128GB"][engine] if (said or "").startswith("as T5000") else said
        expected = None if said is None else not said.startswith("none")
        assert facts[f"has_{engine}"] is expected, engine
        told = facts[f"datasheet_{engine}"]
        assert (told is None) is (said is None)
        if said and re.match(r"\d+x|\d+ MP", said):
            assert told == said


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_the_l4t_that_serves_it(name: str, tmp_path: Path) -> None:
    generations = FACTS[name]["jetpack_generations"]
    expected = None if generations == ["IGX OS"] else [release for key in generations for release in L4T[key]]
    assert find(tmp_path, name).facts["supported_l4t"] == expected


@pytest.mark.parametrize("name", [name for name in NAMES if "Orin Nano" in name])
def test_an_orin_nano_has_no_nvenc_and_no_dla_and_is_not_asked_for_one(name: str, tmp_path: Path) -> None:
    root = files(tokens(name))
    facts = hardware.check(build_files(tmp_path / "a", root)).facts
    assert (facts["datasheet_nvenc"], facts["has_nvenc"], facts["has_nvdec"]) == ("none", False, True)
    assert facts["datasheet_dla_count"] == 0
    assert "the Orin Nano has no NVENC" in video_codec.check(build_files(tmp_path / "b", root)).reason
    assert "the Orin Nano has no DLA" in dla.check(build_files(tmp_path / "c", root)).reason


# part, Super: name, TOPS, GPU in MHz, bandwidth in GB/s, first L4T
SUPER = {
    "p3767-0000": ("Jetson Orin NX 16GB, Super", "157 TOPS INT8 sparse", None, 102.4, "35.2.1+"),
    "p3767-0001": ("Jetson Orin NX 8GB, Super", "117 TOPS INT8 sparse", None, 102.4, "35.2.1+"),
    "p3767-0003": ("Jetson Orin Nano 8GB, Super", "67 TOPS INT8 sparse", 1020, 102, "36.4.2+"),
    "p3767-0004": ("Jetson Orin Nano 4GB, Super", "34 TOPS INT8 sparse", None, None, "35.3.1+"),
    "p3767-0005": ("Jetson Orin Nano 8GB devkit, Super", "67 TOPS INT8 sparse", 1020, 102, "36.4.2+"),
}


@pytest.mark.parametrize("part", SUPER)
@pytest.mark.parametrize("carrier", ["p3768-0000", "p3509-0000"])
def test_super_mode_has_figures_of_its_own(part: str, carrier: str, tmp_path: Path) -> None:
    compatible = [f"nvidia,{carrier}+{part}-super", f"nvidia,{part}", "nvidia,tegra234"]
    facts = hardware.check(build_files(tmp_path, files(compatible))).facts
    name, tops, mhz, bandwidth, first = SUPER[part]
    assert (facts["module"], facts["module_part"], facts["carrier"]) == (name, part, carrier)
    assert facts["datasheet_max_tops"] == tops
    assert facts["datasheet_gpu_max_hz"] == (mhz and mhz * 1e6)
    assert facts["datasheet_memory_bandwidth_bytes_per_s"] == (bandwidth and bandwidth * 1e9)
    assert isinstance(facts["supported_l4t"], list)
    assert facts["supported_l4t"][0] == first


def test_the_super_figures_are_those_of_the_facts() -> None:
    assert SUPER["p3767-0005"][1] == FACTS["Jetson Orin Nano 8GB devkit, Super mode"]["max_tops"]
    said = {
        NAMES[name][1]: match[1]
        for name in NAMES
        if (match := re.search(r"; (\d+) in Super mode", FACTS[name]["max_tops"] or ""))
    }
    assert said == {"p3767-0000": "157", "p3767-0001": "117", "p3767-0004": "34"}
    assert all(SUPER[part][1].startswith(f"{number} TOPS") for part, number in said.items())


def test_the_agx_orin_of_early_devkits_is_one_too(tmp_path: Path) -> None:
    root = files(["nvidia,p3737-0000+p3701-0001", "nvidia,tegra234"], None, 32)
    assert hardware.check(build_files(tmp_path, root)).facts["module"] == "Jetson AGX Orin 32GB devkit"


# the part number elsewhere than in `compatible`


BOARD_IDS = {
    "JetPack 4, file names": lambda part: {f"/proc/device-tree/chosen/plugin-manager/ids/{part[1:]}-402": ""},
    "JetPack 5, one property": lambda part: {"/proc/device-tree/chosen/ids": f"3737-0000-301 {part[1:]}-300\0"},
    "boardids": lambda part: {"/proc/device-tree/nvidia,boardids": f"{part[1:].replace('-', ':')}:A0\0"},
    "boot configuration": lambda part: {
        "/etc/nv_boot_control.conf": f"TNSPEC {part[1:5]}-B02-{part[6:]}-E.0-1-0-jetson-mmcblk0p1\n"
    },
}


@pytest.mark.parametrize("place", BOARD_IDS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "IGX Orin (devkit)"])
def test_a_module_is_named_by_its_board_number_alone(name: str, place: str, tmp_path: Path) -> None:
    module, (called, part) = FACTS[name], NAMES[name]
    root = files(["vendor,box", f"nvidia,{module['soc']}"], "Box", RAM_GIB.get(name, module["ram_gb"]))
    facts = hardware.check(build_files(tmp_path, root | BOARD_IDS[place](part))).facts
    assert (facts["module"], facts["module_part"]) == (called.removesuffix(", Super"), part)


# modules that nobody has disclosed yet


@pytest.mark.parametrize("name", UNDISCLOSED)
def test_an_announced_module_is_unknown_whatever_its_model_says(name: str, tmp_path: Path) -> None:
    assert FACTS[name]["module_part"] is FACTS[name]["dt_compatible"] is FACTS[name]["cuda_cc"] is None
    model = f"NVIDIA {name} Developer Kit"
    root = files(["nvidia,p3999-0000+p4999-0001", "nvidia,p4999-0001", "nvidia,tegra999"], model, 8)
    finding = hardware.check(build_files(tmp_path, root))
    facts = finding.facts
    assert (facts["model"], facts["module"], facts["module_part"]) == (model, UNKNOWN, None)
    assert (facts["soc"], facts["compute_capability"], facts["gpu_stack"]) == ("tegra999", None, "")
    assert "the SoC is not in our table" in finding.reason
    assert not [key for key in facts if key.startswith("datasheet_")]


def test_an_orin_nano_2_is_no_orin_nano_even_with_its_sisters_soc(tmp_path: Path) -> None:
    root = files(
        ["nvidia,p3768-0000+p3767-0009", "nvidia,p3767-0009", "nvidia,tegra234"], "NVIDIA Jetson Orin Nano 2", 8
    )
    facts = hardware.check(build_files(tmp_path, root)).facts
    assert (facts["module"], facts["module_part"], facts["soc"]) == (UNKNOWN, None, "tegra234")
    assert "has_nvenc" not in facts


def test_a_jetson_that_names_no_soc_is_one_by_its_release_file_and_nothing_is_guessed(tmp_path: Path) -> None:
    root = files(["nvidia,jetson-orin-nano-2"], "NVIDIA Jetson Orin Nano 2 8GB", 8)
    finding = hardware.check(
        build_files(tmp_path, root | {"/etc/nv_tegra_release": "# R40 (release), REVISION: 1.0\n"})
    )
    facts = finding.facts
    assert (facts["is_jetson"], facts["module"], facts["soc"], facts["compute_capability"]) == (
        True,
        UNKNOWN,
        None,
        None,
    )
    assert "the SoC is not in our table" in finding.reason


# NUL bytes and suffixes

SUFFIXES = ("", "-a02", "-b00", "-b01", "-super", "-antmicro", "-0000-b00", "-cti-NGX004", "_rev2", ".dtb")


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([name for name in NAMES if name != "IGX Orin (devkit)"]),
    suffix=st.sampled_from(SUFFIXES),
    vendor=st.sampled_from(("nvidia", "connecttech", "seeed", "x-y.z")),
    carrier=st.sampled_from(("", "p3768-0000+", "p9999-1234-a00+", "e3360-1099+")),
    before=st.lists(st.sampled_from(("", " ", "vendor,box", "nvidia,jetson")), max_size=3),
    nuls=st.integers(0, 3),
)
def test_nul_bytes_vendors_carriers_and_suffixes_do_not_hide_a_module(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    suffix: str,
    vendor: str,
    carrier: str,
    before: list[str],
    nuls: int,
) -> None:
    module, (called, part) = FACTS[name], NAMES[name]
    called = called.removesuffix(", Super")
    compatible = [*before, f"{vendor},{carrier}{part}{suffix}", f"nvidia,{module['soc']}"]
    root = files(compatible, "Box" + "\0" * nuls, RAM_GIB.get(name, module["ram_gb"]))
    root["/proc/device-tree/compatible"] += "\0" * nuls
    finding = hardware.check(build_files(tmp_path_factory.mktemp("root"), root))
    facts = finding.facts
    assert facts["module"] == (f"{called}, Super" if suffix == "-super" else called)
    assert (facts["soc"], facts["compute_capability"], facts["model"]) == (module["soc"], module["cuda_cc"], "Box")
    assert facts["carrier"] == (re.match(r"[pe]\d{4}-\d{4}", carrier) or [None])[0]
    assert "\0" not in repr(finding)
    assert "\\x00" not in repr(finding)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.binary(max_size=40), max_size=6), model=st.binary(max_size=40))
def test_any_device_tree_is_read_without_a_nul_byte_left(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], model: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    host = build_files(root, files(["x"], "x"))
    (root / "proc/device-tree/compatible").write_bytes(b"\0".join(texts))
    (root / "proc/device-tree/model").write_bytes(model)
    finding = hardware.check(host)
    assert "\\x00" not in repr(finding)
    assert finding.facts["module"] in (None, UNKNOWN)


@pytest.mark.parametrize("token", ["nvidia,p3767-00005", "nvidia,xp3767-0005", "nvidia,ap3767-0005"])
def test_a_number_within_another_word_is_no_board(token: str, tmp_path: Path) -> None:
    assert hardware.check(build_files(tmp_path, files([token, "nvidia,tegra234"]))).facts["module"] == UNKNOWN
