"""A survey leaves nothing behind: no process, no file, no memory of a GPU; nor does one that is ended early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
SURVEY = (sys.executable, "-m", "agent", "probe", "--now", "--json")
MARK = "EDGE_AGENT_TEST_RUN"
SHARED = ("/dev/shm", f"/run/user/{os.getuid()}")


class Place:
    """A home, a folder for temporary files and a name of its own for one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        self.environ |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), MARK: self.mark}
        self.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "EDGE_AGENT_STATE_DIR": str(folder / "state")}
        for name in ("home", "tmp", "state"):
            (folder / name).mkdir(parents=True)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())

    def folders(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_dir())

    def processes(self) -> list[str]:
        """Command lines of all that descends from the run, whichever session or group it has gone to."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


def shared() -> set[str]:
    return {f"{folder}/{name}" for folder in SHARED if os.path.isdir(folder) for name in os.listdir(folder)}


def nothing_left(place: Place) -> None:
    assert place.processes() == []
    assert place.files() == []
    assert place.folders() == ["home", "state", "tmp"]


def test_a_whole_survey_leaves_nothing(place: Place) -> None:
    left = set()
    for _ in range(2):  # somebody else's file may appear meanwhile, once
        before = shared()
        done = subprocess.run(SURVEY, cwd=PROJECT, env=place.environ, capture_output=True, timeout=170, check=False)
        assert done.returncode == 0, done.stderr
        left = shared() - before
        if not left:
            break
    statuses = {finding["subject"]: finding["status"] for finding in json.loads(done.stdout)["findings"]}
    assert "works" in {statuses[subject] for subject in ("opencl", "vulkan", "gles", "webgpu")}, "nothing was executed"
    assert not left
    nothing_left(place)


def interrupted(place: Place, after_s: float, number: signal.Signals) -> tuple[int, bytes]:
    with subprocess.Popen(
        SURVEY, cwd=PROJECT, env=place.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        time.sleep(after_s)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@pytest.mark.parametrize("after_s", [0.05, 0.1, 0.2, 0.3, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_one_that_is_ended_early_leaves_nothing_and_says_so_shortly(
    place: Place, after_s: float, number: signal.Signals
) -> None:
    returncode, errors = interrupted(place, after_s, number)
    if returncode != 130 and number is signal.SIGINT and str(PROJECT).encode() not in errors:
        nothing_left(place)
        pytest.skip(f"Python itself was still starting after {after_s:g} s: nobody can hook into that")
    if returncode == 0 and after_s >= 1:
        pytest.skip(f"the survey ended within {after_s:g} s")
    assert b"Traceback" not in errors
    assert returncode == (130 if number is signal.SIGINT else -signal.SIGTERM), errors
    assert errors == (b"\nedge-agent: interrupted\n" if number is signal.SIGINT else b"")
    nothing_left(place)


@pytest.fixture
def gpu_memory() -> Iterator[list[int]]:
    from ctypes import Structure, byref, c_uint, c_ulonglong, c_void_p

    from probes.host import Host

    class Memory(Structure):
        _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))

    try:
        library = Host().load_library("libnvidia-ml.so.1", local=True)
    except OSError as error:
        pytest.skip(f"no NVML here: that a survey leaves no GPU memory in use was not seen ({error})")
    count = c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(byref(count)) or not count.value:
        pytest.skip("NVML tells of no GPU: that a survey leaves no GPU memory in use was not seen")

    def used() -> list[int]:
        found = []
        for index in range(count.value):
            handle, memory = c_void_p(), Memory()
            library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
            if library.nvmlDeviceGetMemoryInfo(handle, byref(memory)):
                pytest.skip("NVML does not tell this GPU's memory (a Jetson's is the system's)")
            found.append(memory.used)
        return found

    return used  # type: ignore[return-value]


def test_a_whole_survey_leaves_no_gpu_memory_in_use(place: Place, gpu_memory) -> None:  # type: ignore[no-untyped-def]
    before = gpu_memory()
    subprocess.run(SURVEY, cwd=PROJECT, env=place.environ, capture_output=True, timeout=170, check=True)
    time.sleep(1)  # the driver frees a dead process's memory a moment later
    assert all(now - then < 16 << 20 for now, then in zip(gpu_memory(), before, strict=True))
