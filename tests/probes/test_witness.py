"""Who testifies that a device did the work, and why others are silent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import gpu_counters, saxpy, witness
from probes.contract import DeviceKind, Evidence, Finding, Witness, WitnessKind
from probes.host import Host
from probes.listing import probe_files
from probes.nvml import NvmlProcesses

PROJECT = Path(__file__).parents[2]
RIGHT = Evidence(
    executed="x", device="Orin", device_kind=DeviceKind.GPU, value="1", expected="1", elapsed_s=0.001, timer="device"
)


class Spoken:
    """A counter that always has the same to say."""

    source = "a counter"

    def __init__(self, spoke: bool = True) -> None:
        self.looks = 0
        self.spoke = spoke

    def look(self) -> None:
        self.looks += 1

    def tell(self, pid: int) -> tuple[bool, str]:
        return self.spoke, f"about {pid}"


def told(evidence: Evidence, *sources: gpu_counters.Counter) -> tuple[Witness, ...]:
    with witness.Watch(Host(), sources) as watch:
        pass
    return watch.witnesses((evidence,), (77,))


def test_counters_are_looked_at_before_and_after() -> None:
    counter = Spoken()
    said = told(RIGHT, counter)
    assert counter.looks >= 2
    assert [(w.kind, w.spoke) for w in said] == [(WitnessKind.API, True), (WitnessKind.COUNTERS, True)]
    assert said[1].text == "about 77"


def test_a_time_of_the_host_is_no_word_of_the_api() -> None:
    said = told(msgspec.structs.replace(RIGHT, timer="host"))
    assert not said[0].spoke
    assert "own clock" in said[0].text


def test_counters_of_gpus_say_nothing_about_software_devices() -> None:
    said = told(msgspec.structs.replace(RIGHT, device_kind=DeviceKind.CPU), Spoken(), Spoken())
    reason = witness.NOT_COUNTED[DeviceKind.CPU]
    assert [(w.kind, w.spoke, w.text) for w in said[1:]] == [(WitnessKind.COUNTERS, False, reason)]


def test_nobody_testifies_to_a_wrong_answer() -> None:
    assert told(msgspec.structs.replace(RIGHT, value="2"), Spoken()) == ()


@pytest.mark.parametrize("numpy", [True, False])
def test_the_cpu_computes_the_same_numbers(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    said = witness.on_cpu(saxpy.problem(), (RIGHT,))
    assert said.spoke
    assert ("numpy" in said.text) is numpy
    assert "the same answer" in said.text
    assert "x as fast" in said.text


def test_other_numbers_of_the_cpu_are_told() -> None:
    problem = msgspec.structs.replace(saxpy.problem(), expected=bytes(4 * saxpy.COUNT))
    said = witness.on_cpu(problem, ())
    assert not said.spoke
    assert "ANOTHER answer" in said.text


def test_load_speaks_when_it_rises(tmp_path: Path) -> None:
    file = tmp_path / "sys/devices/gpu.0/load"
    file.parent.mkdir(parents=True)
    file.write_text("12\n")
    load = gpu_counters.Load(Host(root=tmp_path))
    load.look()
    assert load.tell(1)[0] is False
    file.write_text("630\n")
    load.look()
    file.write_text("0\n")
    load.look()
    assert load.tell(1) == (True, "1.2 % before, at most 63 % meanwhile, of all processes together")


def test_load_without_a_file_says_so(tmp_path: Path) -> None:
    assert gpu_counters.Load(Host(root=tmp_path)).tell(1) == (False, "this GPU's driver has no load file")


def test_engines_speak_when_they_spent_time(tmp_path: Path) -> None:
    for name in ("dev/dri/renderD128", "proc/self/fdinfo/5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("drm-driver:\ti915\ndrm-engine-render:\t1000000 ns\n")
    engines = gpu_counters.DrmEngines(Host(root=tmp_path))
    engines.look()
    assert engines.tell(9)[0] is False
    (tmp_path / "proc/self/fdinfo/5").write_text("drm-engine-render:\t3500000 ns\ndrm-engine-copy:\t0 ns\n")
    engines.look()
    (tmp_path / "proc/self/fdinfo/5").unlink()
    engines.look()
    assert engines.tell(9) == (True, "engines spent 2.500 ms for process 9")


def test_nvmap_clients_are_told_apart_by_process(tmp_path: Path) -> None:
    clients = gpu_counters.NvmapClients(Host(root=tmp_path))
    clients.look()
    assert clients.tell(4321) == (False, "there is no nvmap on this machine")
    file = tmp_path / gpu_counters.NVMAP_CLIENTS[1:]
    file.parent.mkdir(parents=True)
    file.write_text(
        "CLIENT                        PROCESS      PID        SIZE\nuser  python3  4321  12288K\nuser  Xorg  900  4K\n"
    )
    clients.look()
    assert clients.tell(4321) == (True, "process 4321 held 12288 KiB")
    assert clients.tell(1) == (False, "process 1 is not in the list")


def test_nvmap_of_root_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvmap").touch()
    assert gpu_counters.NvmapClients(Host(root=tmp_path)).tell(1) == (
        False,
        f"{gpu_counters.NVMAP_CLIENTS} is for root only",
    )


@given(st.text())
def test_any_text_may_stand_in_the_list_of_clients(text: str) -> None:
    assert all(size >= 0 for size in gpu_counters.parse_nvmap_clients(text).values())


def test_nvml_that_is_not_there_is_silent() -> None:
    nvml = NvmlProcesses(Host())
    nvml.look()
    spoke, text = nvml.tell(os.getpid())
    if Host().glob("/dev/nvidia0"):
        pytest.skip("this machine has NVML: its absence was not seen")
    assert not spoke
    assert "libnvidia-ml.so.1" in text


@pytest.mark.parametrize("probe", ["vulkan", "opencl", "gles", "webgpu"])
def test_each_api_names_its_witnesses(probe: str) -> None:
    done = subprocess.run([sys.executable, "-m", "probes", probe], cwd=PROJECT, capture_output=True, check=False)
    finding = msgspec.json.decode(done.stdout, type=Finding)
    if not finding.evidence:
        pytest.skip(f"{probe}: {finding.reason}")
    kinds = [w.kind for w in finding.witnesses]
    assert kinds[0] is WitnessKind.API
    assert WitnessKind.COUNTERS in kinds
    assert kinds[-1] is WitnessKind.COMPARISON
    assert finding.witnesses[-1].spoke
    assert all(w.text for w in finding.witnesses)


@pytest.mark.parametrize("name", [name for name, file in probe_files(None).items() if file.uses_gpu])
def test_each_check_that_uses_a_gpu_asks_witnesses(name: str) -> None:
    text = (PROJECT / "probes" / f"{name}.py").read_text(encoding="utf-8")
    asks = "witness.Watch(host)" in text and "watch.witnesses(" in text
    by_engine = "tensorrt_engine.execute(" in text or "tensorrt_engine.build_and_run(" in text
    assert asks or by_engine
