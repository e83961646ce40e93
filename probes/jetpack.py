"""JetPack: the L4T release by file and by package, the JetPack it belongs to, and the system below and above it.

A release that is not in `jetpack_releases.json` is told as such, with the nearest family; component versions are never
taken from a neighbour: JetPack 6.0 and 6.1 differ in the major versions of cuDNN and TensorRT.
"""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import msgspec

from probes import devicetree, l4t
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.host import Host
from probes.l4t import L4TSources

LAYER = 1


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `jetpack_releases.json`; None means not found in a source."""

    l4t: str
    jetpack: str | None
    ubuntu: str | None = None
    python: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    tensorrt: str | None = None
    sources: tuple[str, ...] = ()
    note: str = ""


class ReleaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """`jetpack_releases.json`; `families` maps the first number of L4T to that of JetPack."""

    newest_known: str
    families: dict[str, str]
    releases: tuple[Release, ...]


def read_table() -> ReleaseTable:
    """The bundled table of releases."""
    data = Path(__file__).with_name("jetpack_releases.json").read_bytes()
    return msgspec.json.decode(data, type=ReleaseTable)


def find_release(release: str, table: ReleaseTable) -> Release | None:
    """The row of exactly this L4T release, or None."""
    return next((row for row in table.releases if row.l4t == release), None)


def nearest_family(release: str, table: ReleaseTable) -> str:
    """For people: "6.2.x" when a release of the same L4T minor is known, else "JetPack 6" by the first number."""
    prefix = ".".join(release.split(".")[:2]) + "."
    near = [row.jetpack for row in table.releases if row.l4t.startswith(prefix) and row.jetpack]
    if near:
        return ".".join(re.findall(r"\d+", near[-1])[:2]) + ".x"
    number = l4t.major(release) or 0
    known = sorted(int(key) for key in table.families)
    below = [key for key in known if key <= number] or known[:1]
    return table.families[str(below[-1])] + ".x"


def parse_os_release(text: str) -> dict[str, str]:
    """Keys of an os-release file, quotes taken off."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, sign, value in pairs if sign}


def parse_kernel(text: str) -> str | None:
    """The release in /proc/version; some dumps put the host's name where "version" stands."""
    match = re.match(r"Linux (?:version )?(?:\S+ )?(\d+\.\S+)", text)
    return match[1] if match else None


def parse_cuda_version(text: str) -> str | None:
    """The toolkit in version.json (JetPack 5 and later) or version.txt (JetPack 4)."""
    try:
        found = json.loads(text)
        return str(found["cuda"]["version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        match = re.search(r"CUDA Version (\d+\.\d+(?:\.\d+)?)", text)
        return match[1] if match else None


def _read_distribution(host: Host) -> str | None:
    names = parse_os_release(host.text("/etc/os-release") or host.text("/usr/lib/os-release") or "")
    return names.get("PRETTY_NAME") or names.get("NAME")


def _read_kernel(host: Host) -> str | None:
    return host.line("/proc/sys/kernel/osrelease") or parse_kernel(host.line("/proc/version") or "")


def _read_cuda_toolkit(host: Host) -> str | None:
    """The installed toolkit; nvcc is not in PATH on a fresh JetPack, so its absence there says nothing."""
    folders = ["/usr/local/cuda", *reversed(host.glob("/usr/local/cuda-*"))]
    for folder in folders:
        for name in ("version.json", "version.txt"):
            version = parse_cuda_version(host.text(f"{folder}/{name}") or "")
            if version:
                return version
    links = host.glob("/usr/local/cuda*/targets/*/lib/libcudart.so.*.*.*")
    return links[-1].rpartition("libcudart.so.")[2] if links else None


def _read_system_python(host: Host) -> str | None:
    """The distribution's own Python: JetPack's bindings are built for this one only."""
    match = re.search(r"python(3\.\d+)$", host.link("/usr/bin/python3") or "")
    return match[1] if match else None


def _system_facts(host: Host) -> dict[str, Fact]:
    return {
        "distribution": _read_distribution(host),
        "kernel": _read_kernel(host),
        "python": None if host.recorded else platform.python_version(),
        "system_python": _read_system_python(host),
        "cuda_toolkit": _read_cuda_toolkit(host),
    }


def _expected_facts(row: Release | None) -> dict[str, Fact]:
    """What the release ships; None where no source says, never a neighbour's version."""
    return {
        "expected_cuda": row.cuda if row else None,
        "expected_cudnn": row.cudnn if row else None,
        "expected_tensorrt": row.tensorrt if row else None,
        "expected_python": row.python if row else None,
        "expected_ubuntu": row.ubuntu if row else None,
    }


def _missing(release: str, table: ReleaseTable) -> str:
    """How a release fails to be known: newer than the table, or a gap in it."""
    newest = max(_numbers(row.l4t) for row in table.releases)
    if _numbers(release) > newest:
        return f"is newer than our table (newest known: {table.newest_known})"
    return "has no JetPack in our table" if find_release(release, table) else "is not in our table"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number[:9]) for number in re.findall(r"[0-9]+", release))


def _judge(sources: L4TSources, release: str, in_container: bool, system: dict[str, Fact]) -> Finding:
    table = read_table()
    row = find_release(release, table)
    by_package = re.match(r"\d+(?:\.\d+)*", sources.jetpack_package or "")
    jetpack = row.jetpack if row and row.jetpack else by_package[0] if by_package else None
    family = nearest_family(release, table)
    reasons, remedy = [], ""
    if jetpack is None:
        reasons.append(f"JetPack unknown: L4T {release} {_missing(release, table)}; nearest family: JetPack {family}")
    if sources.file_line and not sources.file:
        reasons.append(f"{l4t.RELEASE_FILE} holds no release: it begins {sources.file_line[:60]!r}")
    if sources.file and sources.package and sources.file != sources.package and not in_container:
        reasons.append(
            f"{l4t.RELEASE_FILE} says {sources.file}, but the package {l4t.CORE_PACKAGE} is {sources.package}"
        )
        remedy = "finish the upgrade: sudo apt --fix-broken install && sudo apt dist-upgrade, then reboot"
    facts: dict[str, Fact] = {
        "l4t": release,
        "jetpack": jetpack,
        "jetpack_family": family,
        "l4t_source": "file" if sources.file else "package",
        "l4t_file": sources.file,
        "l4t_package": sources.package,
        "jetpack_package": sources.jetpack_package,
        **system,
        **_expected_facts(row),
    }
    return Finding(
        subject="jetpack",
        layer=LAYER,
        status=Status.WORKS,
        reason="; ".join(reasons),
        remedy=remedy,
        version=jetpack or "unknown",
        facts=facts,
        evidence=(Evidence(executed=f"read {l4t.RELEASE_FILE}", value=cut(sources.file_line or "")),),
    )


def check(host: Host) -> Finding:
    """Read L4T, map it to JetPack, read distribution, kernel and Python.

    Returns: WORKS when L4T is known, whether JetPack is or not; ABSENT on what is no Jetson; UNKNOWN on a Jetson
        without any trace of L4T; BROKEN when the release file is there and says nothing, and no package helps.
    """
    sources, system = l4t.read_sources(host), _system_facts(host)
    release = sources.file or sources.package
    if release:
        return _judge(sources, release, host.in_container(), system)
    facts: dict[str, Fact] = {"l4t": None, "jetpack": None, **system}
    status, remedy = Status.ABSENT, ""
    if sources.file_line is not None:
        status = Status.BROKEN
        reason = f"{l4t.RELEASE_FILE} holds no release: it begins {sources.file_line[:60]!r}"
        remedy = f"reinstall the package: sudo apt install --reinstall {l4t.CORE_PACKAGE}"
    elif soc := devicetree.read_device_tree(host).soc:
        status = Status.UNKNOWN
        reason = f"the SoC is {soc}, but there is neither {l4t.RELEASE_FILE} nor the package {l4t.CORE_PACKAGE}"
        remedy = (
            "in a container: start it with --runtime nvidia, which mounts the file; else flash L4T with its packages"
        )
    else:
        reason = "not a Jetson: no Tegra SoC in the device tree and no L4T"
    return Finding(subject="jetpack", layer=LAYER, status=status, reason=reason, remedy=remedy, facts=facts)
