"""Thermal, storage, timekeeping, tenants and jetson-stats: what they read, what is unknown, what is told as a cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import jetson_stats, storage, tenants, thermal, timekeeping
from probes.contract import Status
from probes.host import Host
from tests.recorded import build_device, build_files, device_names

ZONES = "/sys/class/thermal/thermal_zone"
COOLING = "/sys/class/thermal/cooling_device"


# Thermal


def zones(folder: Path, more: dict[str, str] | None = None) -> Host:
    files = {
        f"{ZONES}0/type": "cpu-thermal\n",
        f"{ZONES}0/temp": "53968\n",
        f"{ZONES}1/type": "cv0-thermal\n",
        f"{ZONES}1/temp": "-256000\n",
        f"{ZONES}2/type": "gpu-thermal\n",
        f"{ZONES}3/type": "PMIC-Die\n",
        f"{ZONES}3/temp": "100000\n",
    }
    return build_files(folder, files | (more or {}))


def test_blocks_that_are_off_are_none_and_the_constant_one_is_left_out(tmp_path: Path) -> None:
    finding = thermal.check(zones(tmp_path))
    assert finding.facts["temperatures_c"] == {"cpu-thermal": 53.968, "cv0-thermal": None, "gpu-thermal": None}
    assert finding.facts["hottest_c"] == 53.968
    assert (finding.status, finding.reason) == (Status.WORKS, "")


def test_throttling_now_and_over_current_since_the_start_are_told(tmp_path: Path) -> None:
    more = {
        f"{COOLING}0/type": "cpu-throttle-alert\n",
        f"{COOLING}0/cur_state": "1\n",
        f"{COOLING}1/type": "gpu-throttle-alert\n",
        f"{COOLING}1/cur_state": "0\n",
        "/sys/class/hwmon/hwmon3/name": "soctherm_oc\n",
        "/sys/class/hwmon/hwmon3/oc1_event_cnt": "0\n",
        "/sys/class/hwmon/hwmon3/oc3_event_cnt": "7\n",
    }
    finding = thermal.check(zones(tmp_path, more))
    assert finding.facts["throttling"] == ["cpu-throttle-alert"]
    assert "it throttles now: cpu-throttle-alert" in finding.reason
    assert "over-current since the start: oc3 7 times" in finding.reason
    assert "power mode" in finding.remedy


def test_a_zone_near_its_critical_limit_is_told(tmp_path: Path) -> None:
    more = {f"{ZONES}0/trip_point_1_type": "critical\n", f"{ZONES}0/trip_point_1_temp": "58000\n"}
    assert "near its limit: cpu-thermal 53.968 °C (critical 58)" in thermal.check(zones(tmp_path, more)).reason


def test_a_fan_that_stands_is_zero_and_no_fan_is_none(tmp_path: Path) -> None:
    more = {"/sys/class/hwmon/hwmon1/name": "pwmfan\n", "/sys/class/hwmon/hwmon1/pwm1": "0\n"}
    assert thermal.check(zones(tmp_path, more)).facts["fan_pwm"] == 0
    assert thermal.check(zones(tmp_path / "none")).facts["fan_pwm"] is None


# Storage

ROOT = "29 1 {number} / / rw,relatime shared:1 - ext4 {source} {options}\n"


@pytest.mark.parametrize(
    ("number", "block", "more", "kind"),
    [
        ("259:1", "../../devices/nvme/nvme0n1/nvme0n1p1", {}, "nvme"),
        ("179:1", "../../devices/mmc0/mmcblk0/mmcblk0p1", {"/sys/block/mmcblk0/device/type": "MMC\n"}, "emmc"),
        ("179:1", "../../devices/mmc1/mmcblk1/mmcblk1p1", {"/sys/block/mmcblk1/device/type": "SD\n"}, "sd"),
        ("8:1", "../../devices/sda/sda1", {"/sys/block/sda/queue/rotational": "1\n"}, "hdd"),
        ("8:1", "../../devices/sda/sda1", {"/sys/block/sda/queue/rotational": "0\n"}, "ssd"),
        ("8:1", "../../devices/sda/sda1", {}, None),
        ("254:0", "../../devices/virtio/vda", {}, "virtual"),
    ],
)
def test_the_kind_of_disk(tmp_path: Path, number: str, block: str, more: dict[str, str], kind: str | None) -> None:
    host = build_files(
        tmp_path, {"/proc/self/mountinfo": ROOT.format(number=number, source="/dev/root", options="rw")} | more
    )
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / f"sys/dev/block/{number}").symlink_to(block)
    finding = storage.check(host)
    assert finding.facts["root_disk"] == kind
    assert finding.facts["root_free_bytes"] is None  # a recorded device does not know what is free


def test_a_root_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    text = ROOT.format(number="8:1", source="/dev/sda1", options="ro,errors=remount-ro")
    finding = storage.check(build_files(tmp_path, {"/proc/self/mountinfo": text}))
    assert "/ is mounted read-only" in finding.reason
    assert finding.remedy


def test_the_longest_mount_holds_a_folder_and_the_last_one_covers() -> None:
    text = ROOT.format(number="8:1", source="/dev/sda1", options="rw") + (
        "30 29 8:2 / /var rw - ext4 /dev/sda2 rw\n"
        "31 29 8:3 / /var rw - xfs /dev/sda3 rw\n"
        "32 29 8:4 / /va rw - ext4 /dev/sda4 rw\n"
    )
    mounts = storage.parse_mounts(text)
    assert [storage.holding(mounts, place).source for place in ("/", "/var/lib", "/vanished")] == [  # type: ignore[union-attr]
        "/dev/sda1",
        "/dev/sda3",
        "/dev/sda1",
    ]


def test_this_machine_tells_what_is_free() -> None:
    facts = storage.check(Host()).facts
    sizes = os.statvfs("/")
    assert facts["root_total_bytes"] == sizes.f_blocks * sizes.f_frsize


def test_without_mounts_it_is_unknown(tmp_path: Path) -> None:
    assert storage.check(build_files(tmp_path, {})).status is Status.UNKNOWN


# Timekeeping


def test_a_clock_that_was_never_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "wall_s", lambda self: 1000.0)  # the machine's own clock can't be set back here
    finding = timekeeping.check(Host())
    assert "never set: it says 1970" in finding.reason
    assert finding.facts["clock_synchronised"] is False
    assert "set-ntp" in finding.remedy


def test_who_sets_the_clock_is_named(tmp_path: Path) -> None:
    host = build_files(tmp_path, {"/proc/12/comm": "systemd-timesyn\n", "/proc/13/comm": "bash\n"})
    assert timekeeping.running(host) == ["systemd-timesyncd"]
    assert timekeeping.check(host).status is Status.UNKNOWN


# Tenants

DOCKER = "0::/system.slice/docker-4f2a9c0b1d3e5f60718293a4b5c6d7e8.scope\n"


def process(pid: int, name: str, kib: int, cgroup: str = "0::/init.scope\n") -> dict[str, str]:
    status = f"Name:\t{name}\nPPid:\t1\nVmRSS:\t  {kib} kB\nVmSwap:\t       0 kB\n"
    return {f"/proc/{pid}/status": status, f"/proc/{pid}/cgroup": cgroup}


def test_the_largest_are_named_with_their_container_and_what_they_are(tmp_path: Path) -> None:
    files = process(7, "tritonserver", 4 << 20, DOCKER) | process(9, "bash", 3000) | process(8, "llama-server", 1 << 20)
    finding = tenants.check(build_files(tmp_path, files))
    assert finding.facts["memory_tenants"] == [
        "tritonserver (Triton Inference Server), process 7, 4096 MiB, container 4f2a9c0b1d3e",
        "llama-server (llama.cpp server), process 8, 1024 MiB",
        "bash, process 9, 2 MiB",
    ]
    assert finding.facts["containers"] == ["4f2a9c0b1d3e: 4096 MiB"]
    assert finding.facts["known_tenants"] == ["Triton Inference Server", "llama.cpp server"]


def test_who_has_a_gpu_node_open_is_its_tenant(tmp_path: Path) -> None:
    host = build_files(tmp_path, process(7, "deepstream-app", 1000) | process(8, "bash", 1000) | {"/dev/nvmap": ""})
    for pid, target in ((7, "/dev/nvmap"), (8, "/dev/null")):
        (tmp_path / f"proc/{pid}/fd").mkdir()
        (tmp_path / f"proc/{pid}/fd/5").symlink_to(target)
    facts = tenants.check(host).facts
    assert facts["gpu_tenants"] == ["deepstream-app (DeepStream), process 7, 0 MiB"]
    assert facts["gpu_tenants_not_looked_into"] == 0


def test_this_process_is_seen_with_its_real_memory() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "x = b'1' * (200 << 20); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = {tenant.pid: tenant for tenant in tenants.read_tenants(Host())}
        child.communicate(b"\n")
    assert 200 << 20 <= found[child.pid].resident_bytes < 300 << 20
    assert os.getpid() in found


def test_no_process_is_unknown(tmp_path: Path) -> None:
    assert tenants.check(build_files(tmp_path, {})).status is Status.UNKNOWN


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    tenants.parse_status(text)
    tenants.container_of(text)
    storage.parse_mounts(text)


# jetson-stats


def test_without_its_service_it_is_absent_and_nothing_is_imported() -> None:
    if Path(jetson_stats.SOCKET).exists():
        pytest.skip("jetson-stats runs here: its absence was not tried")
    finding = jetson_stats.check(Host())
    assert finding.status is Status.ABSENT
    assert "values are read directly" in finding.reason
    assert "jtop" not in sys.modules


def test_a_recorded_socket_is_not_asked(tmp_path: Path) -> None:
    assert jetson_stats.check(build_files(tmp_path, {jetson_stats.SOCKET: ""})).status is Status.UNKNOWN


@pytest.mark.parametrize("name", device_names())
@pytest.mark.parametrize("probe", [thermal, storage, timekeeping, tenants, jetson_stats])
def test_every_recorded_device_is_answered_without_a_zero_for_unknown(tmp_path: Path, probe, name: str) -> None:  # type: ignore[no-untyped-def]
    finding = probe.check(build_device(tmp_path, name))
    assert finding.status is not Status.BROKEN
    numbers = [v for k, v in finding.facts.items() if k.endswith(("_bytes", "_c", "_rpm", "_pwm"))]
    assert 0 not in numbers
