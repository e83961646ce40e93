"""Permissions: whether the service's user may read the GPU's device nodes, and which groups it lacks.

The same missing group gives CUDA errors 100, 801 or 999, an empty list of Vulkan devices, or lavapipe in silence: so
this is looked at first, and by itself. Only reading is asked for, see `gpu_nodes`.

Source: ollama/ollama#18067, NVIDIA/NemoClaw#4231.
"""

from __future__ import annotations

import os
import stat

from probes import accounts, gpu_nodes
from probes.accounts import Account
from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 1
OURS = ("video", "render")  # groups that a service is put in; of another owner nothing is known


def check(host: Host) -> Finding:
    """Compare each node's owner, group and mode with the user.

    Returns: WORKS when all nodes can be read; BROKEN when one can't, with the groups that are missing; ABSENT without
        any node; UNKNOWN for a recorded device, whose nodes have lost owner and mode, and for a user that is not there.
    """
    user = read_user(host)
    facts: dict[str, Fact] = {"user": user.name if user else host.as_user, "groups": group_names(user)}
    if user is None:
        reason = f"there is no user {host.as_user!r} on this device"
        return tell(Status.UNKNOWN, reason, "name the user that the service runs as: systemctl show -p User", facts)
    paths = [path for pattern in gpu_nodes.ALL for path in host.glob(pattern)]
    if host.recorded:
        return tell(Status.UNKNOWN, "a recorded device's nodes have lost their owner and mode", "", facts)
    seen = [(path, mode_text(host, path), host.readable(path)) for path in paths]
    blocked = [path for path, _, can in seen if not can]
    facts |= {
        "nodes": [f"{path} {mode}{'' if can else ' BLOCKED'}" for path, mode, can in seen],
        "blocked": list(blocked),
    }
    if not paths:
        return tell(Status.ABSENT, "there are no device nodes of a GPU", no_nodes_remedy(host), facts)
    if not blocked:
        return tell(Status.WORKS, "", "", facts)
    missing = missing_groups(host, blocked, user)
    facts["missing_groups"] = list(missing)
    whose = ", ".join(f"{path} ({mode})" for path, mode, can in seen if not can)
    return tell(Status.BROKEN, f"user {user.name} may not read {whose}", remedy(host, user, missing, blocked), facts)


def tell(status: Status, reason: str, cure: str, facts: dict[str, Fact]) -> Finding:
    """The finding."""
    return Finding(subject="permissions", layer=LAYER, status=status, reason=reason, remedy=cure, facts=facts)


def read_user(host: Host) -> Account | None:
    """The user of `--as-user`, else the one that runs this, with the groups that this process really has."""
    passwd, group = host.text("/etc/passwd") or "", host.text("/etc/group") or ""
    if host.as_user:
        return accounts.find(passwd, group, host.as_user)
    uid = os.geteuid()
    mine = {gid: accounts.group_name(group, gid) for gid in {os.getegid(), *os.getgroups()}}
    return Account(name=accounts.user_name(passwd, uid) or str(uid), uid=uid, groups=mine)


def group_names(user: Account | None) -> list[str | int | float]:
    """For people, in order; a group without a name by its number."""
    return sorted(name or str(gid) for gid, name in user.groups.items()) if user else []


def mode_text(host: Host, path: str) -> str:
    """As in "crw-rw---- root:video"; numbers where the device has no names for them, as in containers."""
    try:
        status = host.path(path).stat()
    except OSError as error:
        return str(error.strerror)
    owner = accounts.user_name(host.text("/etc/passwd") or "", status.st_uid) or status.st_uid
    group = accounts.group_name(host.text("/etc/group") or "", status.st_gid) or status.st_gid
    return f"{stat.filemode(status.st_mode)} {owner}:{group}"


def missing_groups(host: Host, blocked: list[str], user: Account) -> list[str]:
    """The groups that would open the blocked nodes: by name, or by number where there is no name."""
    text = host.text("/etc/group") or ""
    found: dict[str, None] = {}
    for path in blocked:
        try:
            status = host.path(path).stat()
        except OSError:
            continue
        if status.st_mode & stat.S_IRGRP and status.st_gid not in user.groups and status.st_gid != 0:
            found[accounts.group_name(text, status.st_gid) or str(status.st_gid)] = None
    return list(found)


def remedy(host: Host, user: Account, missing: list[str], blocked: list[str]) -> str:
    """What opens the nodes for this user."""
    if not missing:
        return f"no group opens {blocked[0]}: look at its udev rule, or at the container's device list"
    if host.in_container():
        numbers = " ".join(f"--group-add {gid}" for gid in node_groups(host, blocked))
        return f"start the container with {numbers}: names of groups differ between images, numbers do not"
    names = ",".join(missing)
    return (
        f"sudo usermod -aG {names} {user.name} and log in again; "
        f"for a service: SupplementaryGroups={' '.join(missing)} in its unit"
    )


def node_groups(host: Host, paths: list[str]) -> list[int]:
    """The numbers of the groups that own these nodes."""
    return sorted({host.path(path).stat().st_gid for path in paths if host.exists(path)})


def no_nodes_remedy(host: Host) -> str:
    """Where nodes come from."""
    if host.in_container():
        return (
            "if the host has a GPU: start the container with --runtime nvidia, --device nvidia.com/gpu=all or /dev/dri"
        )
    return "nothing to do without a GPU; with one, its kernel driver is not loaded: see dmesg"
