"""The role, run for real into a folder of this machine: an install from wheels, a second run, an upgrade, a rollback.

Not run here: apt, the user and the service, which would change this machine; they need a device of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent import config
from agent.version import VERSION

pytestmark = [
    pytest.mark.skipif(
        not (Path(sys.executable).parent / "ansible-playbook").exists(),
        reason="ansible-core is not installed (it needs Python 3.11): the role was neither linted nor run",
    ),
    pytest.mark.timeout(300),
]

PROJECT = Path(__file__).parent.parent
ANSIBLE = PROJECT / "ansible"
ROLE = ANSIBLE / "roles" / "edge_agent"
NEXT_VERSION = f"{VERSION}.post1"
PACKAGED = ("agent", "probes", "runners", "systemd")


@dataclass(frozen=True)
class Run:
    """One ansible command that has ended."""

    status: int
    text: str

    @property
    def changed(self) -> int:
        """Tasks that changed something, from the recap."""
        found = re.search(r"changed=(\d+)", self.text)
        assert found, self.text
        return int(found.group(1))


def ansible(tool: str, *arguments: str, home: Path) -> Run:
    """Run one of ansible's commands with the project's configuration, nothing outside of `home` touched."""
    environment = os.environ | {
        "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
        "ANSIBLE_HOME": str(home / "ansible"),
        "ANSIBLE_REMOTE_TMP": str(home / "ansible" / "remote"),
        "ANSIBLE_NOCOLOR": "1",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # ansible-lint looks up its siblings
    }
    done = subprocess.run(
        [Path(sys.executable).parent / tool, *arguments],
        cwd=ANSIBLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return Run(done.returncode, done.stdout + done.stderr)


@dataclass(frozen=True)
class Device:
    """A folder that stands for a device's root, and the wheels that the controller has."""

    root: Path
    wheelhouse: Path

    @property
    def current(self) -> Path:
        return self.root / "opt/edge-agent/current"

    @property
    def configuration(self) -> Path:
        return self.root / "etc/edge-agent/edge-agent.toml"

    def play(self, *arguments: str, **variables: Any) -> Run:
        """Run the playbook on this device; keyword arguments override its variables, None leaves one out."""
        owner = {"edge_agent_group": str(os.getgid()), "edge_agent_owner": str(os.getuid())}
        values = owner | {
            "ansible_python_interpreter": sys.executable,
            "edge_agent_become": False,
            "edge_agent_version": VERSION,
            "edge_agent_wheelhouse": str(self.wheelhouse),
            "edge_agent_python": sys.executable,
            "edge_agent_prefix": str(self.root / "opt/edge-agent"),
            "edge_agent_config_dir": str(self.root / "etc/edge-agent"),
            "edge_agent_unit_dir": str(self.root / "etc/systemd/system"),
            "edge_agent_sysusers_dir": str(self.root / "etc/sysusers.d"),
            "edge_agent_tmpfiles_dir": str(self.root / "etc/tmpfiles.d"),
            "edge_agent_manage_user": False,
            "edge_agent_manage_service": False,
            "edge_agent_apt_packages": [],
            "edge_agent_config": {
                "agent": {"device_id": "d-1"},
                "mqtt": {"keepalive_s": 20},
            },
            **variables,
        }
        chosen = [f"-e{json.dumps({key: value})}" for key, value in values.items() if value is not None]
        local = ("-i", "localhost,", "-c", "local", "playbooks/install.yml")
        return ansible("ansible-playbook", *local, *chosen, *arguments, home=self.root)


def build_wheels(version: str, folder: Path, source: Path, *options: str) -> None:
    """Build the project's wheel, from a copy so that nothing is left in the project's folder."""
    for name in PACKAGED:
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    spelled = source / "agent" / "version.py"
    spelled.write_text(spelled.read_text().replace(f'"{VERSION}"', f'"{version}"'))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(folder), *options, str(source)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A blank device, but for what a power cut in the middle of an earlier install has left."""
    base = tmp_path_factory.mktemp("ansible")
    build_wheels(VERSION, base / "wheels", base / "source")
    build_wheels(NEXT_VERSION, base / "wheels", base / "source-next", "--no-deps")
    torn = base / "device" / "opt/edge-agent/releases" / VERSION / "bin"
    torn.mkdir(parents=True)
    (torn / "edge-agent").write_text("")
    return Device(base / "device", base / "wheels")


@pytest.fixture(scope="module")
def dry(device: Device) -> Run:
    return device.play("--check", "--diff")


@pytest.fixture(scope="module")
def installed(device: Device, dry: Run) -> Run:
    assert not device.current.exists(), "the dry run was not dry"
    run = device.play()
    assert run.status == 0, run.text
    return run


@pytest.fixture(scope="module")
def upgraded(device: Device, installed: Run) -> Run:
    run = device.play(edge_agent_version=NEXT_VERSION)
    assert run.status == 0, run.text
    return run


def version_in_force(device: Device) -> str:
    return subprocess.run(
        [device.current / "bin/edge-agent", "--version"], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()[-1]


def test_the_linter_has_nothing_to_say(tmp_path: Path) -> None:
    run = ansible("ansible-lint", "--offline", "--profile", "production", home=tmp_path)
    assert run.status == 0, run.text


def test_the_playbook_can_be_read(tmp_path: Path) -> None:
    run = ansible("ansible-playbook", "-i", "localhost,", "--syntax-check", "playbooks/install.yml", home=tmp_path)
    assert run.status == 0, run.text


def test_the_example_inventory_can_be_read(tmp_path: Path) -> None:
    run = ansible("ansible-inventory", "-i", "inventory.example.yml", "--host", "thor-1", home=tmp_path)
    assert run.status == 0, run.text
    assert "broker-b.example.org" in run.text


def test_defaults_and_their_descriptions_agree() -> None:
    import yaml

    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    options = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    described = {name: option["default"] for name, option in options.items() if not option.get("required")}
    assert described == defaults
    assert all(option["description"] for option in options.values())


def test_only_builtin_modules_are_used() -> None:
    texts = "\n".join(path.read_text() for path in sorted(ROLE.rglob("*.yml")))
    modules = set(re.findall(r"^ +(\w+\.\w+\.\w+):", texts, re.MULTILINE))
    assert modules
    assert {module for module in modules if not module.startswith("ansible.builtin.")} == set()


def test_no_task_touches_the_locks_of_apt_or_ignores_its_errors() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROLE / "tasks").glob("*.yml")))
    assert "ignore_errors" not in text
    assert "/var/lib/dpkg" not in text
    assert "/var/lib/apt" not in text


def test_a_dry_run_on_a_blank_host_succeeds_and_shows_the_configuration(dry: Run) -> None:
    assert dry.status == 0, dry.text
    assert '+device_id = "d-1"' in dry.text


def test_an_install_puts_a_working_release_in_force(device: Device, installed: Run) -> None:
    assert installed.changed > 0
    assert version_in_force(device) == VERSION


def test_the_written_configuration_says_what_was_asked_for(device: Device, installed: Run) -> None:
    loaded = config.load(device.configuration, {})
    assert (loaded.agent.device_id, loaded.mqtt.keepalive_s) == ("d-1", 20)


def test_the_configuration_is_closed_to_others(device: Device, installed: Run) -> None:
    assert oct(device.configuration.stat().st_mode)[-3:] == "640"
    assert oct(device.configuration.parent.stat().st_mode)[-3:] == "750"


def test_a_release_brings_its_own_unit(device: Device, installed: Run) -> None:
    unit = device.root / "etc/systemd/system/edge-agent.service"
    assert unit.read_bytes() == (PROJECT / "systemd/edge-agent.service").read_bytes()


def test_no_wheels_stay_on_the_device(device: Device, installed: Run) -> None:
    assert list(device.root.rglob("*.whl")) == []


def test_a_second_run_changes_nothing(device: Device, installed: Run) -> None:
    again = device.play()
    assert (again.status, again.changed) == (0, 0), again.text


def test_a_wrong_key_is_named_and_leaves_everything_as_it_was(device: Device, installed: Run) -> None:
    before = device.configuration.read_bytes()
    run = device.play("--tags", "edge_agent_configure", edge_agent_config={"mqtt": {"hots": "broker"}})
    assert run.status != 0
    assert "did you mean 'mqtt.host'?" in run.text
    assert device.configuration.read_bytes() == before


def test_a_release_without_wheels_is_refused_in_a_sentence(device: Device, installed: Run) -> None:
    run = device.play(edge_agent_version="9.9.9", edge_agent_wheelhouse="")
    assert run.status != 0
    assert "edge-agent==9.9.9 is not on this device, and edge_agent_wheelhouse is empty" in " ".join(run.text.split())


@pytest.mark.parametrize(("version", "reason"), [(None, "missing required arguments"), ("../..", "name a release")])
def test_a_version_that_is_none_is_refused(device: Device, version: str | None, reason: str) -> None:
    run = device.play(edge_agent_version=version)
    assert run.status != 0
    assert reason in run.text
    assert run.changed == 0


def test_an_upgrade_and_a_rollback_without_wheels_switch_one_link(device: Device, upgraded: Run) -> None:
    assert version_in_force(device) == NEXT_VERSION
    back = device.play(edge_agent_version=VERSION, edge_agent_wheelhouse="")
    assert (back.status, back.changed) == (0, 1), back.text
    assert version_in_force(device) == VERSION
