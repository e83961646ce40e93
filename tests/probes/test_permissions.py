"""What a user may read of the GPU's nodes, and which group is missing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import accounts, permissions
from probes.accounts import Account
from probes.contract import Status
from probes.host import Host

PASSWD = "root:x:0:0:root:/root:/bin/sh\nedge-agent:x:998:997::/var/lib/edge-agent:/bin/false\nbroken line\n:x:1:1\n"
GROUP = "root:x:0:\nvideo:x:44:someone,edge-agent\nrender:x:104:someone\nedge-agent:x:997:\n"


@pytest.mark.parametrize("named", ["edge-agent", "998"])
def test_a_user_is_found_by_name_and_number(named: str) -> None:
    user = accounts.find(PASSWD, GROUP, named)
    assert user == Account(name="edge-agent", uid=998, groups={997: "edge-agent", 44: "video"})


def test_a_user_who_is_not_there() -> None:
    assert accounts.find(PASSWD, GROUP, "someone") is None


@given(st.text(), st.text(), st.text())
def test_any_text_may_stand_in_passwd_and_group(passwd: str, group: str, named: str) -> None:
    user = accounts.find(passwd, group, named)
    assert user is None or (user.uid >= 0 and "\0" not in user.name)


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "can"),
    [
        (0o440, 0, 44, True),  # /dev/nvmap of some releases
        (0o660, 0, 44, True),
        (0o660, 0, 104, False),
        (0o600, 998, 0, True),
        (0o066, 998, 44, False),  # the owner's bits decide, though others might
        (0o606, 0, 44, False),  # and the group's
        (0o604, 0, 0, True),
    ],
)
def test_the_first_class_decides_as_in_the_kernel(mode: int, uid: int, gid: int, can: bool) -> None:
    user = accounts.find(PASSWD, GROUP, "edge-agent")
    assert user is not None
    status = os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))
    assert accounts.allowed(user, status, 4) is can


def test_a_closed_folder_closes_what_is_in_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user: folders of others were NOT looked at")
    folder = tmp_path / "closed"
    folder.mkdir()
    file = folder / "node"
    file.write_text("")
    file.chmod(0o644)
    opened(folder)
    nobody = Account(name="nobody", uid=65534)
    assert accounts.may_read(nobody, str(file))
    folder.chmod(0o700)
    assert not accounts.may_read(nobody, str(file))
    assert accounts.may_read(Account(name="root", uid=0), str(file))


class Pretended(Host):
    """This machine, with other nodes: device nodes of a chosen owner can only be made by root."""

    def __init__(self, modes: dict[str, tuple[int, int]], folder: Path, as_user: str = "") -> None:
        super().__init__(as_user=as_user, environ={})
        self.modes = modes
        self.folder = folder
        for number, (name, (mode, gid)) in enumerate(modes.items()):
            file = folder / str(number)
            file.touch()
            os.chown(file, 0, gid)
            file.chmod(mode)
            self.modes[name] = (mode, number)

    def glob(self, pattern: str) -> list[str]:
        import fnmatch

        return [name for name in self.modes if fnmatch.fnmatch(name, pattern)]

    def path(self, path: str) -> Path:
        return self.folder / str(self.modes[path][1]) if path in self.modes else super().path(path)

    def text(self, path: str) -> str | None:
        return {"/etc/passwd": PASSWD, "/etc/group": GROUP}.get(path) or super().text(path)

    def in_container(self) -> bool:
        return False


def opened(folder: Path) -> Path:
    """A folder that everybody can look into, as /dev is."""
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    return folder


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of other groups: missing groups were NOT told apart")
    return opened(tmp_path)


def test_the_missing_group_of_a_service_is_named(nodes: Path) -> None:
    host = Pretended({"/dev/nvmap": (0o440, 44), "/dev/dri/renderD128": (0o660, 104)}, nodes, "edge-agent")
    finding = permissions.check(host)
    assert finding.status is Status.BROKEN
    assert finding.facts["missing_groups"] == ["render"]
    assert finding.facts["blocked"] == ["/dev/dri/renderD128"]
    assert "may not read /dev/dri/renderD128 (-rw-rw---- root:render)" in finding.reason
    assert "usermod -aG render edge-agent" in finding.remedy
    assert "SupplementaryGroups=render" in finding.remedy


def test_all_nodes_open_is_works(nodes: Path) -> None:
    finding = permissions.check(Pretended({"/dev/nvmap": (0o440, 44)}, nodes, "edge-agent"))
    assert finding.status is Status.WORKS
    assert finding.facts["nodes"] == ["/dev/nvmap -r--r----- root:video"]


def test_a_node_that_no_group_opens(nodes: Path) -> None:
    finding = permissions.check(Pretended({"/dev/kfd": (0o600, 44)}, nodes, "edge-agent"))
    assert finding.status is Status.BROKEN
    assert "no group opens /dev/kfd" in finding.remedy


def test_a_user_who_is_not_there_is_unknown() -> None:
    finding = permissions.check(Host(as_user="nobody-of-that-name"))
    assert finding.status is Status.UNKNOWN
    assert "nobody-of-that-name" in finding.reason


def test_this_process_is_judged_by_the_groups_that_it_has() -> None:
    finding = permissions.check(Host())
    assert finding.status in (Status.WORKS, Status.ABSENT, Status.BROKEN)
    assert finding.facts["user"]
    assert msgspec.json.encode(finding)


def test_a_recorded_device_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvmap").touch()
    assert permissions.check(Host(root=tmp_path)).status is Status.UNKNOWN
