"""The wall clock: what timesyncd's files and the kernel say, and what both together mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probes import wall_clock

NOW_S = wall_clock.EARLIEST_PLAUSIBLE_S + 1.0


def test_timesyncds_mark_tells(tmp_path: Path) -> None:
    state = tmp_path / "timesync"
    assert wall_clock.by_files(NOW_S, str(state)) is None
    state.mkdir()
    assert wall_clock.by_files(NOW_S, str(state)) is False
    (state / "synchronized").touch()
    assert wall_clock.by_files(NOW_S, str(state)) is True
    assert wall_clock.by_files(1000.0, str(state)) is False


def test_the_kernel_is_asked() -> None:
    assert wall_clock.by_kernel() in (True, False)


@pytest.mark.parametrize(
    ("files", "kernel", "in_container", "answer"),
    [
        (True, False, False, True),
        (False, True, False, True),  # another program than timesyncd keeps the time
        (None, True, True, True),
        (False, False, True, False),
        (None, False, False, False),
        (None, False, True, None),  # the host's program need not tell the kernel
        (None, None, False, None),
    ],
)
def test_whoever_says_so_is_believed(
    files: bool | None,
    kernel: bool | None,
    in_container: bool,
    answer: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wall_clock, "by_files", lambda now_s: files)
    monkeypatch.setattr(wall_clock, "by_kernel", lambda: kernel)
    assert wall_clock.synchronised(in_container, NOW_S) is answer
    assert wall_clock.synchronised(in_container, 1000.0) is False


def test_the_daemons_way_loads_no_native_code() -> None:
    code = "import sys; from probes import wall_clock; wall_clock.by_files(); print('ctypes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
