"""dpkg's database, read as a file: which packages are on hold, half done or of this stack, and who is changing them.

Source: dpkg(1), "Information about packages"; deb822(5) for stanzas; what dpkg 1.21.22 itself wrote, in
tests/probes/test_packages.py. The journal beside it holds what an interrupted dpkg had not merged yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

import msgspec

from probes.host import Host

FOLDER = "/var/lib/dpkg"
STATUS_FILE = f"{FOLDER}/status"
JOURNAL = f"{FOLDER}/updates/[0-9]*"  # beside them lies tmp.i, which is padding
LOCKS = (f"{FOLDER}/lock-frontend", f"{FOLDER}/lock")
STATUS_LIMIT_BYTES = 16 << 20  # a full Jetson has about 5 MB
STANZA_LIMIT_BYTES = 1 << 20
JOURNAL_FILES = 100
KEPT_PACKAGES = 5000
DAMAGED_STANZAS = 100  # enough to know that this is no status file
NAME_LENGTH = 128
PROVIDES_LENGTH = 1024
NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9+._~-]{1,127}")
VERSION = re.compile(rb"[A-Za-z0-9][A-Za-z0-9+._:~-]{0,127}")
STACK = tuple(
    b"cuda libcud libcublas libcufft libcurand libcusolver libcusparse libnpp libnvinfer libnvjitlink libnvonnxparser"
    b" libnvidia- libnvvpi python3-libnvinfer tensorrt nvidia- linux-modules-nvidia xserver-xorg-video-nvidia"
    b" mesa- libegl libgbm libgl1 libgldispatch libgles libglvnd libglx libvulkan ocl-icd libpocl pocl-"
    b" docker-ce docker.io containerd".split()
)
L4T = b"nvidia-l4t-"  # vendors put their name before it: avt-nvidia-l4t-kernel
PLAIN = b"\nStatus: install ok installed\n"
FIELD = re.compile(rb"^(package|status|version|architecture|provides):[ \t]*([^\n]*)", re.IGNORECASE | re.MULTILINE)
FIELD_NAMES = 5
LOCK_LINE = re.compile(
    r"^\d{1,9}: (?:POSIX|OFDLCK|FLOCK) +\S+ +WRITE (-?\d{1,9}) ([0-9a-f]{1,8}):([0-9a-f]{1,8}):(\d{1,20}) ",
    re.ASCII | re.MULTILINE,
)
WANTS = frozenset({b"unknown", b"install", b"hold", b"deinstall", b"purge"})
STATES = frozenset(
    b"not-installed config-files half-installed unpacked half-configured triggers-awaited triggers-pending"
    b" installed".split()
)


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One stanza; the words are dpkg's.

    Attributes:
        want: unknown, install, hold, deinstall or purge.
        flag: "ok" or "reinstreq".
        state: one of `STATES`.
        version: "" where dpkg knows none, as of one whose first unpacking was interrupted.
    """

    name: str
    want: str
    flag: str
    state: str
    version: str = ""
    architecture: str = ""
    provides: str = ""

    @property
    def is_chosen_otherwise(self) -> bool:
        """Whether it is installed, and on hold or marked for removal."""
        return self.state == "installed" and self.want != "install"

    @property
    def is_of_stack(self) -> bool:
        """Whether this stack rests on it."""
        name = self.name.encode()
        return name.startswith(STACK) or L4T in name

    @property
    def is_unfinished(self) -> bool:
        """Whether dpkg began something with it and did not end it."""
        return self.flag != "ok" or self.state not in ("installed", "config-files", "not-installed")

    @property
    def status(self) -> str:
        """As the file has it: "install ok half-configured"."""
        return f"{self.want} {self.flag} {self.state}"


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        packages: those of this stack, and every other one that is not plainly installed or just removed.
        installed: how many are in the state "installed".
        damaged: how many stanzas are none, counted up to `DAMAGED_STANZAS`.
        damage: the beginning of the first of them.
        cut_off: whether the file is longer than what was read.
        journal: how many changes were not merged when dpkg ended, or runs.
    """

    packages: tuple[Package, ...] = ()
    installed: int = 0
    damaged: int = 0
    damage: str = ""
    cut_off: bool = False
    journal: int = 0


def parse_status(parts: Iterable[bytes], keep_all: bool = False) -> Database:
    """Read a status file from its parts, each forgotten before the next is taken.

    Args:
        parts: the file's bytes; a part may end anywhere.
        keep_all: keep plainly installed packages that are not of this stack, too.
    """
    kept: dict[tuple[str, str], Package] = {}
    installed, damaged, damage = 0, 0, b""
    for stanza in stanzas(parts):
        plain = PLAIN in stanza and stanza.startswith(b"Package: ")
        matters = keep_all or L4T in stanza  # it may provide one of them
        if plain and not matters and not stanza.startswith(STACK, 9):
            installed += 1
            continue
        package = parse_stanza(stanza)
        if package is None:
            damage = damage or stanza[:400]
            damaged += 1
            if damaged >= DAMAGED_STANZAS:
                break
            continue
        installed += package.state == "installed"
        matters = matters or package.is_of_stack or package.is_unfinished or package.is_chosen_otherwise
        if matters and len(kept) < KEPT_PACKAGES:
            kept[package.name, package.architecture] = package
    return Database(
        packages=tuple(kept.values()),
        installed=installed,
        damaged=damaged,
        damage=damage.decode("utf-8", "replace"),
    )


def stanzas(parts: Iterable[bytes]) -> Iterator[bytes]:
    """What stands between empty lines; one longer than `STANZA_LIMIT_BYTES` comes in pieces."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n\n")
        yield from filter(None, whole)
        if len(rest) > STANZA_LIMIT_BYTES:
            yield rest
            rest = b""
    if rest.strip(b"\n"):
        yield rest


def parse_stanza(stanza: bytes) -> Package | None:
    """One package, or None when its name or a status that dpkg knows is not there.

    A remedy holds names and versions, and people paste it into a shell: what can't be one is not taken for one.
    """
    fields: dict[bytes, bytes] = {}
    for match in FIELD.finditer(stanza):
        fields.setdefault(match[1].lower(), match[2])
        if len(fields) == FIELD_NAMES:
            break
    words = fields.get(b"status", b"").split()
    name = fields.get(b"package", b"").strip()
    if not NAME.fullmatch(name) or len(words) != 3 or words[0] not in WANTS or words[2] not in STATES:
        return None
    version = fields.get(b"version", b"").strip()
    return Package(
        name=name.decode(),
        want=words[0].decode(),
        flag="ok" if words[1] == b"ok" else "reinstreq",  # "hold-reinstreq" in old files
        state=words[2].decode(),
        version=version.decode() if VERSION.fullmatch(version) else "",
        architecture=fields.get(b"architecture", b"")[:NAME_LENGTH].decode("utf-8", "replace"),
        provides=fields.get(b"provides", b"")[:PROVIDES_LENGTH].decode("utf-8", "replace"),
    )


def read_database(host: Host) -> Database:
    """The status file with the journal laid over it, as dpkg reads them.

    Raises:
        OSError: the status file is missing or can't be read.
    """
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for part in host.parts(STATUS_FILE, STATUS_LIMIT_BYTES + 1):
            size += len(part)
            yield part

    base = parse_status(counted())
    names = host.glob(JOURNAL)
    journal = parse_status(journal_parts(host, names[:JOURNAL_FILES]), keep_all=True) if names else Database()
    newer = {(package.name, package.architecture): package for package in journal.packages}
    merged = {(package.name, package.architecture): package for package in base.packages} | newer
    return msgspec.structs.replace(
        base, packages=tuple(merged.values()), cut_off=size > STATUS_LIMIT_BYTES, journal=len(names)
    )


def journal_parts(host: Host, names: Iterable[str]) -> Iterator[bytes]:
    """The journal's entries in order; each is one stanza."""
    for name in names:
        yield (host.text(name) or "").encode() + b"\n\n"


def parse_locks(text: str) -> dict[tuple[int, int, int], int]:
    """Process ids by (major, minor, inode) of the files that are locked for writing. Source: proc_locks(5)."""
    return {
        (int(major, 16), int(minor, 16), int(inode)): int(pid) for pid, major, minor, inode in LOCK_LINE.findall(text)
    }


def lock_holder(host: Host, paths: Iterable[str] = LOCKS) -> str:
    """Who holds dpkg's lock now, as in "apt-get (process 812)"; "" when nobody does or it can't be seen.

    The lock files are root's: they are looked up in /proc/locks, which anybody may read.
    """
    if host.recorded:
        return ""
    held = parse_locks(host.text("/proc/locks") or "")
    for path in paths if held else ():
        try:
            status = os.stat(host.path(path))
        except OSError:
            continue
        pid = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
        if pid is not None:
            name = host.line(f"/proc/{pid}/comm") if pid > 0 else ""  # of another namespace: 0 or -1
            return f"{name or 'a process'} (process {pid})" if pid > 0 else "a process outside of this container"
    return ""
