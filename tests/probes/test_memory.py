"""Memory: meminfo, zram, cgroup limits of both versions, and unified parts."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from probes import memory, nvidia_smi
from probes.contract import Status
from probes.host import Host
from tests.recorded import FIXTURES, build_device, build_files

CASES = FIXTURES / "cases" / "DT-12"
MEMINFO = {"/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 6000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"}
KIB = 1024


def test_an_orin_nano_shares_its_memory_and_swaps_on_zram(tmp_path: Path) -> None:
    finding = memory.check(build_device(tmp_path, "orin-nano-super-r36.4.3"))
    assert finding.status is Status.WORKS
    assert finding.facts["memory_total_bytes"] == 7802736 * KIB
    assert finding.facts["memory_available_bytes"] == 6245596 * KIB
    assert finding.facts["swap_total_bytes"] == 3901344 * KIB
    assert finding.facts["zram_bytes"] == 6 * 650224 * KIB
    assert finding.facts["unified"] is True
    assert finding.facts["cma_total_bytes"] == 262144 * KIB
    assert finding.facts["nvmap_used_bytes"] is None


def test_no_swap_is_zero_and_not_unknown(tmp_path: Path) -> None:
    facts = memory.check(build_device(tmp_path, "orin-nano-super-r39.2.1")).facts
    assert (facts["swap_total_bytes"], facts["zram_bytes"]) == (0, 0)


def test_what_the_recording_lacks_is_none(tmp_path: Path) -> None:
    finding = memory.check(build_device(tmp_path, "agx-thor-r39.2.1"))
    assert finding.facts["memory_total_bytes"] == 128825804 * KIB
    assert finding.facts["memory_available_bytes"] is None
    assert finding.facts["swap_total_bytes"] is None
    assert finding.facts["zram_bytes"] is None
    assert "MemAvailable" in finding.reason


def test_without_meminfo_it_is_unknown(tmp_path: Path) -> None:
    finding = memory.check(build_device(tmp_path, "container-on-orin-csv-r36"))
    assert finding.status is Status.UNKNOWN
    assert finding.facts["memory_total_bytes"] is None
    assert finding.facts["unified"] is True


def test_a_cgroup_v2_limit_caps_what_is_available(tmp_path: Path) -> None:
    files = MEMINFO | {
        "/proc/self/cgroup": "0::/system.slice/agent.service\n",
        "/sys/fs/cgroup/system.slice/agent.service/memory.max": "2048000\n",
        "/sys/fs/cgroup/system.slice/agent.service/memory.current": "1024000\n",
        "/sys/fs/cgroup/system.slice/agent.service/memory.stat": "anon 1\ninactive_file 24000\n",
    }
    facts = memory.check(build_files(tmp_path, files)).facts
    assert facts["cgroup_limit_bytes"] == 2048000
    assert facts["memory_available_bytes"] == 1048000  # limit - used + page cache that can be dropped


def test_a_parents_limit_binds_its_children(tmp_path: Path) -> None:
    files = MEMINFO | {
        "/proc/self/cgroup": "0::/a.slice/b.service\n",
        "/sys/fs/cgroup/a.slice/b.service/memory.max": "max\n",
        "/sys/fs/cgroup/a.slice/memory.max": "3000000\n",
        "/sys/fs/cgroup/a.slice/memory.current": "1000000\n",
    }
    facts = memory.check(build_files(tmp_path, files)).facts
    assert facts["cgroup_limit_bytes"] == 3000000
    assert facts["cgroup_path"] == "/sys/fs/cgroup/a.slice"
    assert facts["memory_available_bytes"] == 2000000


def test_a_containers_limit_is_found_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    files = MEMINFO | {
        "/proc/self/cgroup": "0::/../../docker/0123\n",
        "/sys/fs/cgroup/memory.max": "4000000\n",
        "/sys/fs/cgroup/memory.current": "500000\n",
    }
    assert memory.check(build_files(tmp_path, files)).facts["cgroup_limit_bytes"] == 4000000


def test_a_cgroup_v1_limit_counts_and_its_giant_number_does_not(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/memory"
    files = MEMINFO | {
        "/proc/self/cgroup": "5:devices:/\n4:memory,hugetlb:/box/agent\n0::/\n",
        f"{folder}/box/agent/memory.limit_in_bytes": "9223372036854771712\n",
        f"{folder}/box/memory.limit_in_bytes": "5000000\n",
        f"{folder}/box/memory.usage_in_bytes": "4990000\n",
        f"{folder}/box/memory.stat": "total_inactive_file 90000\n",
    }
    facts = memory.check(build_files(tmp_path, files)).facts
    assert facts["cgroup_limit_bytes"] == 5000000
    assert facts["memory_available_bytes"] == 100000


def test_the_giant_number_of_cgroup_v1_alone_is_no_limit(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/memory"
    files = MEMINFO | {
        "/proc/self/cgroup": "4:memory:/\n",
        f"{folder}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{folder}/memory.usage_in_bytes": "1000\n",
    }
    assert memory.check(build_files(tmp_path, files)).facts["cgroup_limit_bytes"] is None


def test_a_unified_part_that_reports_less_than_the_pool_is_flagged(tmp_path: Path) -> None:
    command = f"nvidia-smi --query-gpu={nvidia_smi.FIELDS} --format=csv"
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    files = {"/proc/meminfo": "MemTotal: 130000000 kB\nMemAvailable: 9 kB\n", f"{folder}/vendor": "0x10de\n"}
    finding = memory.check(build_files(tmp_path, files, {command: (CASES / "n1x.csv").read_text("utf-8")}))
    assert finding.facts["gpu_memory_total_bytes"] is None
    assert finding.facts["gpu_memory_reported_bytes"] == 8128 << 20
    assert "8128 MiB" in finding.reason


def test_without_a_limit_the_cgroup_says_none(tmp_path: Path) -> None:
    files = MEMINFO | {"/proc/self/cgroup": "0::/\n"}
    facts = memory.check(build_files(tmp_path, files)).facts
    assert facts["cgroup_limit_bytes"] is None
    assert facts["memory_available_bytes"] == 6000 * KIB


def test_this_machines_total_is_the_one_psutil_reads() -> None:
    finding = memory.check(Host())
    assert finding.facts["memory_total_bytes"] == psutil.virtual_memory().total


def test_a_machine_without_an_nvidia_gpu_is_not_unified(tmp_path: Path) -> None:
    assert memory.check(build_device(tmp_path, "raspberry-pi-5")).facts["unified"] is False


def test_an_nvidia_gpu_that_nobody_was_asked_about_is_of_unknown_kind(tmp_path: Path) -> None:
    assert memory.check(build_device(tmp_path, "desktop-rtx-3090")).facts["unified"] is None


@pytest.mark.parametrize(
    ("name", "unified", "total_mib"), [("rtx3090", False, 24576), ("gb10", True, None), ("n1x", True, None)]
)
def test_a_gpu_tells_its_own_memory_only_when_it_has_its_own(
    name: str, unified: bool, total_mib: int | None, tmp_path: Path
) -> None:
    command = f"nvidia-smi --query-gpu={nvidia_smi.FIELDS} --format=csv"
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    files = MEMINFO | {f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x030000\n"}
    host = build_files(tmp_path, files, {command: (CASES / f"{name}.csv").read_text("utf-8")})
    facts = memory.check(host).facts
    assert facts["unified"] is unified
    assert facts["gpu_memory_total_bytes"] == (None if total_mib is None else total_mib << 20)
    assert facts["memory_total_bytes"] == 8000 * KIB


@pytest.mark.parametrize("name", ["orin", "thor", "gb10", "n1x"])
def test_a_unified_part_keeps_its_row_and_unknown_cells_are_none(name: str) -> None:
    (row,) = nvidia_smi.parse_gpus((CASES / f"{name}.csv").read_text("utf-8"))
    assert row.unified
    if name != "n1x":
        assert (row.memory_total_bytes, row.memory_used_bytes) == (None, None)
    if name == "orin":
        assert (row.temperature_c, row.utilization_percent, row.compute_capability) == (None, None, "8.7")
    if name == "thor":
        assert row.utilization_percent == 0


def test_a_discrete_gpu_has_all_its_numbers() -> None:
    (row,) = nvidia_smi.parse_gpus((CASES / "rtx3090.csv").read_text("utf-8"))
    assert (row.unified, row.memory_total_bytes, row.memory_used_bytes) == (False, 24576 << 20, 3217 << 20)
    assert (row.temperature_c, row.utilization_percent, row.compute_capability) == (45, 12, "8.6")


def test_a_part_that_reports_less_than_the_pool_has_its_number_kept_and_is_unified() -> None:
    (row,) = nvidia_smi.parse_gpus((CASES / "n1x.csv").read_text("utf-8"))
    assert (row.unified, row.memory_total_bytes) == (True, 8128 << 20)


def test_a_mig_slice_without_units_is_read() -> None:
    (row,) = nvidia_smi.parse_gpus((CASES / "mig.csv").read_text("utf-8"))
    assert (row.memory_total_bytes, row.unified) == (24576 << 20, False)


def test_a_total_of_zero_is_unknown() -> None:
    heading = "name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
    rows = nvidia_smi.parse_gpus(
        heading + "NVIDIA GB10, 0 MiB, 0 MiB, 0 MiB\nNVIDIA A100, 40960 MiB, 0 MiB, 40960 MiB\n"
    )
    assert [(row.memory_total_bytes, row.memory_used_bytes) for row in rows] == [(None, None), (40960 << 20, 0)]


def test_a_grace_hopper_addresses_the_host_s_memory_and_has_its_own() -> None:
    heading = "name, memory.total [MiB], clocks.max.sm [MHz], addressing_mode\n"
    rows = nvidia_smi.parse_gpus(
        heading + "NVIDIA GH200 480GB, 97871 MiB, 1980 MHz, ATS\nNVIDIA GB10, [N/A], [N/A], ATS\n"
    )
    assert [(row.unified, row.memory_total_bytes, row.clock_max_hz) for row in rows] == [
        (False, 97871 << 20, 1.98e9),
        (True, None, None),
    ]


def test_a_shells_complaint_is_no_table() -> None:
    assert nvidia_smi.parse_gpus((CASES / "notfound.txt").read_text("utf-8")) == ()
