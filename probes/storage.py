"""Storage: the kind of disk below root and below the agent's state, free space, and whether it can be written.

Source: proc(5), mountinfo; sysfs of block devices: `queue/rotational`, `device/type` ("MMC" for eMMC, "SD" for a card).
"""

from __future__ import annotations

import os
import re

import msgspec

from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 0
PLACES = ("/", "/var/lib")
LOW_BYTES = 1 << 30
LOW_INODES = 10_000


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A mounted file system; `number` is the device's "major:minor"."""

    place: str
    number: str
    kind: str
    source: str
    read_only: bool


def parse_mounts(text: str) -> list[Mount]:
    """The rows of /proc/self/mountinfo in their order; a later one covers an earlier one at the same place."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        front, back = left.split(), right.split()
        if not dash or len(front) < 6 or len(back) < 3:
            continue
        is_ro = "ro" in front[5].split(",") or "ro" in back[2].split(",")
        place = re.sub(r"\\([0-3][0-7]{2})", lambda m: chr(int(m[1], 8)), front[4])
        found.append(Mount(place=place, number=front[2], kind=back[0], source=back[1], read_only=is_ro))
    return found


def holding(mounts: list[Mount], place: str) -> Mount | None:
    """The mount on which a folder lies."""
    above = [m for m in mounts if place == m.place or place.startswith(m.place.rstrip("/") + "/")]
    return max(reversed(above), key=lambda m: len(m.place), default=None)


def disk_kind(host: Host, mount: Mount) -> str | None:
    """One of nvme, emmc, sd, hdd, ssd, virtual, memory (tmpfs) and network; None when the kernel does not say."""
    if mount.kind in ("tmpfs", "ramfs"):
        return "memory"
    if mount.kind.startswith(("nfs", "cifs", "smb", "9p", "virtiofs", "ceph")):
        return "network"
    name = (host.link(f"/sys/dev/block/{mount.number}") or mount.source).rstrip("/").rpartition("/")[2]
    if name.startswith("nvme"):
        return "nvme"
    if found := re.match(r"(mmcblk[0-9]{1,4})", name):
        kind = host.line(f"/sys/block/{found[1]}/device/type")
        return {"MMC": "emmc", "SD": "sd"}.get(kind or "")
    if re.match(r"(vd|xvd|pmem)[a-z0-9]", name):
        return "virtual"
    whole = re.sub(r"[0-9]+$", "", name)
    rotational = host.integer(f"/sys/block/{whole}/queue/rotational")
    return None if rotational is None else "hdd" if rotational else "ssd"


def check(host: Host) -> Finding:
    """Read the disks.

    Returns: WORKS; with a reason where it is nearly full or can't be written; UNKNOWN without a list of mounts.
    """
    mounts = parse_mounts(host.text("/proc/self/mountinfo") or "")
    facts: dict[str, Fact] = {}
    reasons = []
    for place in PLACES:
        mount, label = holding(mounts, place), "root" if place == "/" else "state"
        if mount is None:
            continue
        facts |= _facts(host, mount, place, label)
        reasons += _reasons(facts, place, label)
    if not facts:
        reason = "/proc/self/mountinfo is missing or lists no root"
        return Finding(subject="storage", layer=LAYER, status=Status.UNKNOWN, reason=reason)
    remedy = "free space (journalctl --vacuum-size, apt-get clean, old models), or mount it writable" if reasons else ""
    return Finding(
        subject="storage",
        layer=LAYER,
        status=Status.WORKS,
        reason="; ".join(dict.fromkeys(reasons)),
        remedy=remedy,
        facts=facts,
    )


def _facts(host: Host, mount: Mount, place: str, label: str) -> dict[str, Fact]:
    free = total = inodes = None
    if not host.recorded:
        try:
            sizes = os.statvfs(host.path(place))
            free, total = sizes.f_bavail * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize
            inodes = sizes.f_favail if sizes.f_files else None  # some file systems do not count them
        except OSError:
            pass
    return {
        f"{label}_filesystem": mount.kind,
        f"{label}_disk": disk_kind(host, mount),
        f"{label}_read_only": mount.read_only,
        f"{label}_free_bytes": free,
        f"{label}_total_bytes": total,
        f"{label}_free_inodes": inodes,
    }


def _reasons(facts: dict[str, Fact], place: str, label: str) -> list[str]:
    free, inodes = facts[f"{label}_free_bytes"], facts[f"{label}_free_inodes"]
    reasons = []
    if facts[f"{label}_read_only"]:
        reasons.append(f"{place} is mounted read-only")
    if isinstance(free, int) and free < LOW_BYTES:
        reasons.append(f"{place} has {free >> 20} MiB left")
    if isinstance(inodes, int) and inodes < LOW_INODES:
        reasons.append(f"{place} has {inodes} inodes left")
    return reasons
