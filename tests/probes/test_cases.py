"""Every value that the cases of the field expect (`tests/fixtures/facts/cases.json`), asked of the probe itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probes import clinfo, container, hardware, jetpack, memory, nvidia_smi, opencl, power, rails, tegrastats, vulkan
from probes.contract import DeviceKind, Finding, Status
from probes.diagnose import diagnose
from probes.host import Host
from tests.recorded import FIXTURES, build_files

CASES = FIXTURES / "cases"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "facts/cases.json").read_text())
SMI = f"nvidia-smi --query-gpu={nvidia_smi.FIELDS} --format=csv"
DEVICE_TREES = [(case, name) for case in ("DT-03", "DT-05") for name in EXPECTED[case]]
FACT_NAMES = {"soc": "soc", "cc": "compute_capability", "model": "model", "gpu_stack": "gpu_stack"}


def lines(case: str) -> list[tuple[str, dict[str, Any]]]:
    read = (CASES / case / "lines.txt").read_text().splitlines()
    return list(zip(read, EXPECTED[case]["lines"], strict=False))


def test_no_case_is_left_out() -> None:
    assert set(EXPECTED) == {path.name for path in CASES.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", EXPECTED["DT-01"])
def test_dt_01_l4t_and_jetpack(name: str) -> None:
    facts = jetpack.check(Host(root=CASES / "DT-01" / name)).facts
    assert [facts["l4t"], facts["jetpack"]] == EXPECTED["DT-01"][name]
    assert facts["cuda_toolkit"] is None  # nothing is installed in these folders: no version is made up
    assert (facts["expected_cuda"] is None) is (name == "r40.1.0")


@pytest.mark.parametrize(("case", "name"), DEVICE_TREES)
def test_dt_03_and_dt_05_what_the_device_tree_says(case: str, name: str) -> None:
    expected = dict(EXPECTED[case][name])
    host = Host(root=CASES / case / name)
    facts = hardware.check(host).facts
    if "l4t" in expected:
        assert jetpack.check(host).facts["l4t"] == expected.pop("l4t")
    assert {key: facts[FACT_NAMES[key]] for key in expected} == expected


def test_dt_05_an_orin_has_its_clock_and_load_in_sysfs_and_a_thor_no_load() -> None:
    orin = power.check(Host(root=CASES / "DT-05/orin-jp72")).facts
    thor = power.check(Host(root=CASES / "DT-05/thor-jp71")).facts
    assert (orin["gpu_clock_node"], orin["gpu_clock_hz"], orin["gpu_load_percent"]) == ("17000000.gpu", 306000000, 12.3)
    assert (thor["gpu_clock_node"], thor["gpu_load_percent"]) == ("gpu-gpc-0", None)
    assert (orin["gpu_governor"], orin["clocks_locked"]) == (None, None)  # not in the folder, and no 3D scaling either


@pytest.mark.parametrize("case", ["DT-06", "DT-09"])
def test_dt_06_and_dt_09_every_value_of_every_line(case: str) -> None:
    assert len(lines(case)) == len(EXPECTED[case]["lines"])
    for text, expected in lines(case):
        line = tegrastats.parse_line(text)
        mhz = list(line.gpu.mhz)
        found = {
            **{f"{name.lower()}_mhz": engine.mhz[0] for name, engine in line.engines.items() if engine.mhz},
            "ram_used_mb": line.ram_mb and line.ram_mb[0],
            "ram_total_mb": line.ram_mb and line.ram_mb[1],
            "gr3d_util": line.gpu.percent,
            "gr3d_mhz": mhz if isinstance(expected.get("gr3d_mhz"), list) else mhz[0] if mhz else None,
            "cpu": [list(core) if core else None for core in line.cpus],
            "temps": {name: line.temperatures_c[name] for name in expected.get("temps", {})},
            "power_mw": {name: list(line.rails_mw[name]) for name in expected.get("power_mw", {})},
        }
        assert {key: found[key] for key in expected} == expected
        assert line.unknown == ""


def test_dt_06_a_busy_decoder_changes_no_other_key() -> None:
    idle, busy = (tegrastats.parse_line(text) for text, _ in lines("DT-06")[:2])
    assert set(busy.engines) - set(idle.engines) == {"NVDEC"}
    assert set(idle.engines) <= set(busy.engines)
    assert (idle.rails_mw.keys(), idle.temperatures_c.keys()) == (busy.rails_mw.keys(), busy.temperatures_c.keys())
    assert (len(idle.cpus), bool(idle.swap_mb)) == (len(busy.cpus), bool(busy.swap_mb))


@pytest.mark.parametrize("name", EXPECTED["DT-11"])
def test_dt_11_rails_and_their_total(name: str) -> None:
    expected = EXPECTED["DT-11"][name]
    found = {rail.name: rail for rail in rails.read_rails(Host(root=CASES / "DT-11" / name))}
    units = {"mv": "millivolts", "ma": "milliamps", "mw": "milliwatts"}
    for rail, values in expected.items():
        if isinstance(values, dict):
            assert {unit: getattr(found[rail], units[unit]) for unit in values} == values
    assert not set(expected.get("skip", ())) & set(found)
    total_mw, source = rails.total(list(found.values()))
    assert total_mw == expected["total_mw"]
    assert source == f"rail {expected.get('total_rail', 'VDD_IN')}"
    assert power.check(Host(root=CASES / "DT-11" / name)).facts["power_total_mw"] == expected["total_mw"]


def memory_of(root: Path, name: str, jetson: bool) -> Finding:
    """What is found of a machine with that answer of nvidia-smi, or none, and the case's /proc/meminfo."""
    files = {"/proc/meminfo": (CASES / "DT-12/meminfo").read_text()}
    if jetson:
        soc = "tegra264" if name.startswith("thor") else "tegra234"
        files["/proc/device-tree/compatible"] = f"nvidia,{soc}\0"
    else:
        folder = "/sys/bus/pci/devices/0000:01:00.0"
        files |= {f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x030000\n"}
    table = (CASES / "DT-12" / name).read_text()
    return memory.check(build_files(root, files, {SMI: table} if name.endswith(".csv") else {}))


@pytest.mark.parametrize("name", [name for name in EXPECTED["DT-12"] if name.endswith(".csv")])
def test_dt_12_each_row_with_its_cells(name: str, tmp_path: Path) -> None:
    expected = EXPECTED["DT-12"][name]
    (row,) = nvidia_smi.parse_gpus((CASES / "DT-12" / name).read_text())
    facts = memory_of(tmp_path, name, name in ("orin.csv", "thor.csv")).facts
    total_mib = None if row.memory_total_bytes is None else row.memory_total_bytes >> 20
    used_mib = None if row.memory_used_bytes is None else row.memory_used_bytes >> 20
    found = {
        "unified": row.unified,
        "total": "MemTotal" if facts["gpu_memory_total_bytes"] is None else "its own",
        "temp": row.temperature_c,
        "total_mib": total_mib,
        "reported_mib": total_mib,
        "used_mib": used_mib,
        "clock": row.clock_max_hz,
    }
    assert {key: found[key] for key in expected} == expected
    assert facts["unified"] is expected.get("unified", False)
    assert facts["memory_total_bytes"] == 7789568 * 1024


def test_dt_12_without_nvidia_smi_the_kernel_s_figures_count(tmp_path: Path) -> None:
    assert EXPECTED["DT-12"]["notfound.txt"] == "fallback"
    finding = memory_of(tmp_path, "notfound.txt", jetson=True)
    assert (finding.status, finding.facts["unified"]) == (Status.WORKS, True)
    assert finding.facts["memory_total_bytes"] == 7789568 * 1024
    assert nvidia_smi.parse_gpus((CASES / "DT-12/notfound.txt").read_text()) == ()


@pytest.mark.parametrize("name", EXPECTED["DT-14"])
def test_dt_14_the_gpu_s_raw_index(name: str, tmp_path: Path) -> None:
    expected = EXPECTED["DT-14"][name]
    text = (CASES / "DT-14" / name).read_text()
    finding = vulkan.check(build_files(tmp_path, {}, {"vulkaninfo --summary": text}))
    index = finding.facts["gpu_index"]
    found = {
        "use_raw_index": index,
        "devices": len(finding.devices),
        "name": next((device.name for device in finding.devices if device.index == index), None),
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", EXPECTED["DT-15"])
def test_dt_15_what_kind_of_opencl_it_is(name: str, tmp_path: Path) -> None:
    text = (CASES / "DT-15" / name).read_text()
    text = json.loads(text)["stdout"] if name.endswith(".json") else text
    finding = opencl.check(build_files(tmp_path, {}, {"clinfo": text}))
    kinds = {device.kind for device in finding.devices}
    crashed = "did not come to its end" in finding.reason
    kind = "probe-crashed" if crashed else "none" if not kinds else "cpu-only" if kinds == {DeviceKind.CPU} else "gpu"
    if kind == "gpu" and finding.facts.get("experimental"):
        kind = "pocl-gpu"
    assert kind == EXPECTED["DT-15"][name]
    assert kind == "probe-crashed" or clinfo.parse_platform_count(text) is not None


@pytest.mark.parametrize("name", [name for name in EXPECTED["DT-19"] if name != "stderr.txt"])
def test_dt_19_cdi_by_kind(name: str) -> None:
    expected = EXPECTED["DT-19"][name]
    finding = container.check(Host(root=CASES / "DT-19" / name))
    assert finding.facts["gpu_cdi"] is expected["gpu_cdi"]
    assert finding.facts["gpu_cdi_devices"] == expected.get("devices", [])
    assert expected.get("bad_file", "") in finding.reason


def test_dt_19_the_generator_s_error_asks_for_the_csv_mode() -> None:
    assert EXPECTED["DT-19"]["stderr.txt"] == "use-csv-mode"
    said = (CASES / "DT-19/stderr.txt").read_text()
    assert "--mode=csv" in diagnose(Finding(subject="container", layer=1, status=Status.BROKEN, reason=said), {}).remedy
