"""The unit, its user and its folders: checked by systemd's own tools, without a running systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent import config, daemon

SYSTEMD = Path(__file__).parent.parent / "systemd"
UNIT = SYSTEMD / "edge-agent.service"
EXPOSURE_LIMIT = 2.0
EXEC = "/opt/edge-agent/current/bin/edge-agent"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: the unit was not checked"
)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-sysusers") is None,
    reason="systemd-sysusers and systemd-tmpfiles change owners: not run without root",
)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def unit_text() -> str:
    return UNIT.read_text()


def setting(name: str) -> list[str]:
    """All values of a setting, in order."""
    return re.findall(rf"^{name}=(.*)$", unit_text(), re.MULTILINE)


def verify(text: str, folder: Path) -> str:
    """What `systemd-analyze verify` prints; its exit status is 0 even for a key that it does not know.

    It insists that ExecStart's program exists, which it does on a device only, so a stub stands at that place. `--root`
    is of no use here: it also wants every unit of a whole system below that folder.
    """
    stub = folder / "edge-agent"
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    copy = folder / UNIT.name
    copy.write_text(text.replace(EXEC, str(stub)))
    done = run("systemd-analyze", "verify", "--man=no", str(copy))
    return done.stdout + done.stderr


@needs_systemd
def test_verify_finds_nothing_to_say(tmp_path: Path) -> None:
    assert verify(unit_text(), tmp_path) == ""


@needs_systemd
def test_verify_would_have_told_of_a_misspelt_setting(tmp_path: Path) -> None:
    assert "WatchdogSecs" in verify(unit_text().replace("WatchdogSec=", "WatchdogSecs="), tmp_path)


@needs_systemd
def test_verify_would_have_told_of_a_missing_program(tmp_path: Path) -> None:
    text = unit_text().replace(EXEC, "/nonexistent/edge-agent")
    assert "/nonexistent/edge-agent" in verify(text, tmp_path)


@needs_systemd
def test_the_sandbox_is_as_tight_as_promised() -> None:
    tenths = str(int(EXPOSURE_LIMIT * 10))
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", "--no-pager", str(UNIT))
    assert done.returncode == 0, done.stdout.strip().rpartition("\n")[2]


@needs_systemd
def test_everything_left_open_has_its_reason_in_the_unit() -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--json=short", "--no-pager", str(UNIT))
    exposed = [row for row in json.loads(done.stdout) if row["exposure"]]
    assert exposed
    reasons = "\n".join(line for line in unit_text().splitlines() if line.startswith("#"))
    unexplained = [row["name"] for row in exposed if not all(word in reasons for word in words_of(row["name"]))]
    assert unexplained == []


def words_of(name: str) -> list[str]:
    """How a comment names a row: "RestrictAddressFamilies=~AF_(INET|INET6)" needs the setting and both families."""
    key, _, value = name.split("/")[0].partition("=")
    families = re.findall(r"AF_UNIX|@\w+", value) or (["AF_INET", "AF_INET6"] if "INET6" in value else [])
    return [f"{key}=", *families]


def test_every_device_that_is_open_says_what_it_is_for() -> None:
    lines = unit_text().splitlines()
    bare = []
    for index, line in enumerate(lines):
        above = index - 1
        while lines[above].startswith("DeviceAllow="):
            above -= 1
        if line.startswith("DeviceAllow=") and not lines[above].startswith("#"):
            bare.append(line)
    assert bare == []


@pytest.mark.parametrize(
    "group",
    ["char-nvidia*", "char-nvhost*", "char-*.gpu", "/dev/nvmap", "char-drm"],
    ids=lambda group: group.strip("/"),
)
def test_the_gpu_stays_reachable_through(group: str) -> None:
    assert f"{group} rw" in setting("DeviceAllow")
    assert setting("PrivateDevices") == []
    assert set(setting("SupplementaryGroups")[0].split()) == {"video", "render"}


def test_a_clean_stop_fits_into_the_stop_limit() -> None:
    assert float(setting("TimeoutStopSec")[0]) > daemon.STOP_COMMANDS_S + daemon.STOP_MQTT_S


def test_the_watchdog_leaves_three_turns_of_the_loop() -> None:
    assert float(setting("WatchdogSec")[0]) / 3 > daemon.TICK_S * 3


def test_the_agent_may_write_where_its_defaults_say() -> None:
    defaults = config.AgentSection()
    assert defaults.state_dir == f"/var/lib/{setting('StateDirectory')[0]}"
    assert f"d {defaults.models_dir} " in (SYSTEMD / "edge-agent.tmpfiles.conf").read_text()


def test_a_worker_that_runs_out_of_memory_does_not_stop_the_unit() -> None:
    assert setting("OOMPolicy") == ["continue"]


def test_the_unit_starts_the_daemon_of_the_command_line() -> None:
    from agent.cli import cli

    program, verb = setting("ExecStart")[0].split()
    assert program == EXEC
    assert verb in cli.commands


@needs_root
def test_a_blank_system_gets_user_groups_and_folders(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    users = run("systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "edge-agent.sysusers.conf"))
    assert users.returncode == 0, users.stderr
    folders = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", str(SYSTEMD / "edge-agent.tmpfiles.conf"))
    assert folders.returncode == 0, folders.stderr
    groups = dict(line.split(":")[::3] for line in (tmp_path / "etc/group").read_text().split())
    assert groups["video"] == groups["render"] == setting("User")[0]
    uid = int(
        next(line for line in (tmp_path / "etc/passwd").read_text().split("\n") if "edge-agent" in line).split(":")[2]
    )
    models = (tmp_path / "var/lib/edge-agent/models").stat()
    assert (models.st_uid, oct(models.st_mode)) == (uid, "0o42770")
    assert oct((tmp_path / "etc/edge-agent").stat().st_mode) == "0o40750"


@needs_root
def test_a_second_run_leaves_user_and_groups_alone(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    argv = ("systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "edge-agent.sysusers.conf"))
    run(*argv)
    before = (tmp_path / "etc/passwd").read_bytes(), (tmp_path / "etc/group").read_bytes()
    assert run(*argv).returncode == 0
    assert ((tmp_path / "etc/passwd").read_bytes(), (tmp_path / "etc/group").read_bytes()) == before
