"""Probes and files that mean harm: they cost a finding, and leave no process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from probes.contract import Status
from probes.host import Host
from probes.isolation import execute, probe_check
from probes.listing import PROBE_PATH, probe_files

DAEMON = '''"""Starts a daemon."""
import os, time
LAYER = 2
def check(host):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open({pid_file!r}, "w").write(str(os.getpid()))
            time.sleep(60)
        os._exit(0)
    while not os.path.exists({pid_file!r}) or not os.path.getsize({pid_file!r}):
        time.sleep(0.01)
    os.abort()
'''


def test_a_daemon_that_a_probe_started_does_not_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "daemon.py").write_text(DAEMON.format(pid_file=str(pid_file)))
    monkeypatch.setenv(PROBE_PATH, str(tmp_path))
    finding = execute(probe_check("daemon"))
    assert finding.status is Status.BROKEN
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    until_s = time.monotonic() + 5
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s, "the daemon lives on"
        time.sleep(0.05)


@pytest.mark.timeout(20)
def test_a_pipe_a_device_and_a_ring_of_links_among_the_probes_are_findings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "ring.py").symlink_to("ring.py")
    with open(tmp_path / "large.py", "wb") as file:
        file.truncate(40 << 30)
    files = probe_files({PROBE_PATH: str(tmp_path)})
    assert "not a regular file" in files["pipe"].problem
    assert "not a regular file" in files["device"].problem
    assert "symbolic links" in files["ring"].problem
    assert "larger than" in files["large"].problem


@pytest.mark.timeout(20)
def test_a_pipe_in_a_recorded_device_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc" / "nv_tegra_release")
    assert Host(tmp_path).text("/etc/nv_tegra_release") is None
