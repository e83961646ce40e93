"""Power: rails in both layouts, modes by name, clocks; each recorded device, and a machine without any of it."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import nvpmodel, power, rails
from probes.contract import Status
from probes.host import Host
from tests.recorded import FIXTURES, build_device, build_files

CASES = FIXTURES / "cases" / "DT-11"
MILLIWATTS = st.integers(min_value=0, max_value=100_000)


def read(case: str) -> dict[str, rails.Rail]:
    return {rail.name: rail for rail in rails.read_rails(Host(CASES / case))}


def test_the_old_layout_has_its_own_power_reading() -> None:
    found = read("old")
    assert found["VDD_IN"] == rails.Rail(name="VDD_IN", millivolts=5040, milliamps=600, milliwatts=3024)
    assert rails.total(list(found.values())) == (3024, "rail VDD_IN")


def test_a_reading_that_fails_is_none_and_an_unconnected_channel_is_no_rail() -> None:
    found = read("new")
    assert found["VDD_IN"] == rails.Rail(name="VDD_IN", millivolts=5016, milliamps=1000, milliwatts=5016)
    assert found["VDD_CPU_GPU_CV"] == rails.Rail(
        name="VDD_CPU_GPU_CV", millivolts=5008, milliamps=None, milliwatts=None
    )
    assert set(found) == {"VDD_IN", "VDD_CPU_GPU_CV"}
    assert rails.total(list(found.values())) == (5016, "rail VDD_IN")


def test_a_thor_counts_its_input_and_not_its_usb_ports() -> None:
    found = read("thor")
    assert set(found) == {"VIN"}
    assert rails.total(list(found.values())) == (38100, "rail VIN")


@pytest.mark.parametrize("driver", ["ina3221", "ina3221x"])
@pytest.mark.parametrize("layout", ["hwmon", "iio"])
def test_either_driver_is_read_in_either_layout_whatever_its_numbers(driver: str, layout: str, tmp_path: Path) -> None:
    folder = f"/sys/bus/i2c/drivers/{driver}/7-0041"
    names = {
        "hwmon": ("hwmon/hwmon9/in1_label", "hwmon/hwmon9/in1_input", "hwmon/hwmon9/curr1_input"),
        "iio": ("iio:device3/rail_name_0", "iio:device3/in_voltage0_input", "iio:device3/in_current0_input"),
    }
    values = ("VDD_IN\n", "5000\n", "911\n")  # no file `name`: a recording may lack it
    host = build_files(tmp_path, {f"{folder}/{name}": value for name, value in zip(names[layout], values, strict=True)})
    assert rails.read_rails(host) == [rails.Rail(name="VDD_IN", millivolts=5000, milliamps=911, milliwatts=4555)]


def test_without_a_rail_for_all_the_total_is_a_sum_or_unknown() -> None:
    two = [
        rails.Rail(name=n, millivolts=1, milliamps=1, milliwatts=w) for n, w in (("VDD_GPU_SOC", 5), ("VDD_CPU_CV", 7))
    ]
    assert rails.total(two) == (12, "sum of VDD_GPU_SOC, VDD_CPU_CV")
    two.append(rails.Rail(name="VIN_SYS_5V0", millivolts=1, milliamps=None, milliwatts=None))
    assert rails.total(two)[0] is None
    assert rails.total([]) == (None, "")


@given(st.dictionaries(st.sampled_from([*rails.TOTALS, "VDD_GPU", "VDD_SOC"]), MILLIWATTS, min_size=1))
def test_a_total_is_never_counted_twice(found: dict[str, int]) -> None:
    parts = [rails.Rail(name=name, millivolts=None, milliamps=None, milliwatts=mw) for name, mw in found.items()]
    total_mw, source = rails.total(parts)
    named = [found[name] for name in rails.TOTALS if name in found]
    assert total_mw == (named[0] if named else sum(found.values())), source


@pytest.mark.parametrize(
    ("device", "mode", "mode_id", "default"),
    [
        ("orin-nano-super-r36.4.3", "25W", 1, "25W"),
        ("orin-nano-super-r39.2.1", "MAXN_SUPER", 2, None),
        ("agx-orin-64gb-r36.5.0", "MAXN", 0, None),
        ("agx-thor-r38.4.0", "MAXN", 0, "120W"),
        ("agx-xavier-r32.6.1-l4t-only", "MODE_15W_DESKTOP", 7, None),
        ("jetson-nano-r32.7.1", "MAXN", 0, None),
    ],
)
def test_the_mode_is_told_by_its_name(
    tmp_path: Path, device: str, mode: str, mode_id: int, default: str | None
) -> None:
    facts = power.check(build_device(tmp_path, device)).facts
    assert (facts["power_mode"], facts["power_mode_id"]) == (mode, mode_id)
    assert default in (None, facts["power_mode_default"])


@pytest.mark.parametrize(
    ("device", "node", "clock_hz", "total_mw", "source"),
    [
        ("orin-nano-super-r36.4.3", "17000000.gpu", 306000000, 4555, "rail VDD_IN"),
        ("agx-orin-64gb-r36.5.0", "17000000.gpu", 0, 8733, "sum of VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0"),
        ("agx-thor-r38.4.0", "gpu-gpc-0", 314000000, 19780, "rail VIN"),
        ("xavier-nx-r35.4.1", "17000000.gv11b", 114750000, 2760, "rail VDD_IN"),
        ("jetson-tx2-r32.7.6", "17000000.gp10b", 114750000, None, None),
        ("jetson-nano-r32.7.1", "57000000.gpu", 76800000, None, None),
    ],
)
def test_clock_and_total_of_recorded_devices(
    tmp_path: Path, device: str, node: str, clock_hz: int, total_mw: int | None, source: str | None
) -> None:
    finding = power.check(build_device(tmp_path, device))
    assert finding.status is Status.WORKS
    facts = finding.facts
    assert (facts["gpu_clock_node"], facts["gpu_clock_hz"]) == (node, clock_hz)
    assert (facts["power_total_mw"], facts["power_total_from"]) == (total_mw, source)
    assert facts["gpu_rail_gated"] is (clock_hz == 0)


def test_clocks_that_were_locked_are_told(tmp_path: Path) -> None:
    node = "/sys/class/devfreq/17000000.gpu"
    files = {f"{node}/cur_freq": "5\n", f"{node}/min_freq": "5\n", f"{node}/max_freq": "5\n"}
    assert power.check(build_files(tmp_path, files)).facts["clocks_locked"] is True


def test_a_machine_without_any_of_it_says_so(tmp_path: Path) -> None:
    finding = power.check(build_device(tmp_path, "x86-server-no-gpu"))
    assert finding.status is Status.ABSENT
    assert "power is not available" in finding.reason
    assert finding.facts["power_total_mw"] is None


def test_a_state_that_names_no_mode_of_the_configuration_is_told(tmp_path: Path) -> None:
    files = {nvpmodel.CONFIGURATION: "< POWER_MODEL ID=0 NAME=MAXN >\n", nvpmodel.STATE: "pmode:0009\n"}
    finding = power.check(build_files(tmp_path, files))
    assert "the power mode is not known" in finding.reason
    assert finding.facts["power_mode"] is None


def test_the_tools_answer_counts_among_its_errors() -> None:
    text = "NV Fan Mode:quiet\nNV Power Mode: MODE_15W_DESKTOP\n7\nNVPM ERROR: Error opening /sys/x\n"
    assert nvpmodel.parse_query(text) == ("MODE_15W_DESKTOP", 7)


@given(st.text())
def test_any_text_is_a_configuration(text: str) -> None:
    nvpmodel.parse_configuration(text)
    nvpmodel.parse_state(text)
    nvpmodel.parse_query(text)


# A program that never ends, as tegrastats


def endless(folder: Path, body: str) -> list[str]:
    script = folder / "endless"
    script.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\ntime.sleep(60)\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def test_the_first_line_comes_at_once_and_the_program_is_ended(tmp_path: Path) -> None:
    argv = endless(tmp_path, "print('RAM 1/2MB'); print('more')")  # unflushed: only a terminal makes it come
    assert Host().first_line(argv, 10) == "RAM 1/2MB"
    assert Host().first_line(["not-there-at-all"]) == ""


def test_a_program_that_says_nothing_costs_its_time_only(tmp_path: Path) -> None:
    assert Host().first_line(endless(tmp_path, ""), 0.3) == ""
    if shutil.which("true"):
        assert Host().first_line(["true"], 5) == ""
