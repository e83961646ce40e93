"""The packages of L4T against each other: what is missing, of another release, or not what the release file says.

Source: NVIDIA's package lists of R35.4, R35.6, R36.3, R36.4, R36.5, R38.2, R38.4 and R39.2 (anduril/jetpack-nixos,
sourceinfo/*-debs.json), of R32.4 from `apt list` on a device; the equal versions that they demand of each other from
dpkg's words in Seeed-Studio/Linux_for_Tegra#41. Which parts R38 and R39 install on which board was not seen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from probes import l4t
from probes.contract import Fact
from probes.dpkg import Package
from probes.host import Host

PREFIX = "nvidia-l4t-"
VARIANTS = ("", "-nvgpu", "-openrm")  # R38 and later have two drivers, and packages for each
RELEASE = re.compile(r"(?:^|-tegra-)(\d{2}(?:\.\d{1,4}){1,3})-\d{8,14}$")
FREE = (  # of another release on sound devices: firmware for the release before, headers and samples
    "nvidia-l4t-jetson-orin-nano-qspi-updater",
    "nvidia-l4t-jetson-multimedia-api",
)
OLDEST, NEWEST = 32, 39  # the majors whose lists were read
FINISH = "finish the upgrade: sudo apt-get -f install && sudo apt-get dist-upgrade, then reboot"
SHOWN = 6


class CorePackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package without which part of the stack is missing; `first` and `last` are majors of L4T."""

    name: str
    holds: str
    first: int = OLDEST
    last: int = NEWEST


CORE = (
    CorePackage(name="nvidia-l4t-core", holds="the libraries under all others"),
    CorePackage(name="nvidia-l4t-init", holds="udev rules and services"),
    CorePackage(name="nvidia-l4t-firmware", holds="firmware"),
    CorePackage(name="nvidia-l4t-cuda", holds="libcuda"),
    CorePackage(name="nvidia-l4t-3d-core", holds="EGL, OpenGL ES and Vulkan"),
    CorePackage(name="nvidia-l4t-kernel", holds="the kernel"),
    CorePackage(name="nvidia-l4t-kernel-oot-modules", holds="the GPU's kernel modules", first=36, last=36),
)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell, and the steps that mend it; `is_fault` when something does not work by it."""

    reason: str
    remedies: tuple[str, ...] = ()
    is_fault: bool = True


def release_of(version: str) -> str | None:
    """The L4T release in a package's version: "36.4.4" of "5.15.148-tegra-36.4.4-20250616085344"; None without one."""
    match = RELEASE.search(version)
    return match[1] if match else None


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def judge(host: Host, packages: Iterable[Package], is_whole: bool) -> tuple[dict[str, Fact], list[Trouble]]:
    """What L4T's packages say about each other.

    Args:
        host: the device.
        packages: what dpkg knows of this stack.
        is_whole: whether the whole of dpkg's database was read; nothing is called missing without.
    """
    packages = list(packages)
    there = [package for package in packages if package.state not in ("config-files", "not-installed")]
    own = [package for package in there if package.name.startswith(PREFIX)]
    counts = Counter(filter(None, (release_of(p.version) for p in own if p.name not in FREE)))
    core = next((package for package in own if package.name == l4t.CORE_PACKAGE), None)
    main = (release_of(core.version) if core else None) or (counts.most_common(1)[0][0] if counts else None)
    facts: dict[str, Fact] = {"l4t_packages": dict(counts), "l4t_missing": None}
    found = mixed(own, main)
    if host.in_container() or not l4t.is_jetson(host):  # an image holds what its maker put into it
        return facts, found
    removed = {package.name for package in packages if package.state == "config-files"}
    if is_whole and (own or any(name.startswith(PREFIX) for name in removed)):
        gone = missing(there, l4t.major(main or l4t.read_release(host)))
        facts["l4t_missing"] = [package.name for package in gone] if gone is not None else None
        found += absent(gone or [], removed, own, core)
    elif is_whole:
        found.append(Trouble(reason=f"a Jetson without any package {PREFIX}*", is_fault=False))
    by_file = l4t.read_release(host)
    if core and by_file and not core.is_unfinished and by_file != release_of(core.version):
        found.append(
            Trouble(
                reason=f"{l4t.RELEASE_FILE} says {by_file}, but the package {core.name} is {core.version}",
                remedies=(f"sudo apt-get install --reinstall {core.name}={core.version}, then reboot",),
            )
        )
    return facts, found


def mixed(own: Iterable[Package], main: str | None) -> list[Trouble]:
    """What is of another release than nvidia-l4t-core; the date of the build is no matter, R32.4.4 has two."""
    named = {core.name for core in CORE}
    strays = [
        (p, release) for p in own if p.name not in FREE and (release := release_of(p.version)) not in (None, main)
    ]
    held = [f"{package.name} {release}" for package, release in strays if package.want == "hold"]
    loose = [f"{package.name} {release}" for package, release in strays if package.want != "hold"]
    found = []
    if loose:
        is_fault = any(package.name in named and package.want != "hold" for package, _ in strays)
        reason = f"packages of more than one L4T: {l4t.CORE_PACKAGE} {main}, but {listed(loose)}"
        found.append(Trouble(reason=reason, remedies=(FINISH,), is_fault=is_fault))
    if held:
        reason = f"held at another L4T than {l4t.CORE_PACKAGE} {main}: {listed(held)}"
        found.append(Trouble(reason=reason, is_fault=False))
    return found


def missing(there: Iterable[Package], major: int | None) -> list[CorePackage] | None:
    """The packages that this L4T needs and nobody provides; None for an L4T whose list is not known."""
    if major is None or not OLDEST <= major <= NEWEST:
        return None
    names = {package.name for package in there}
    provided = {word.strip() for p in there for word in re.sub(r"\([^)]*\)", "", p.provides).split(",")}

    def is_there(core: str) -> bool:
        if any(f"{core}{variant}" in names for variant in VARIANTS) or core in provided:
            return True
        return any(name.endswith(f"-{core}") for name in names)  # a vendor's: avt-nvidia-l4t-kernel

    return [core for core in CORE if core.first <= major <= core.last and not is_there(core.name)]


def absent(gone: list[CorePackage], removed: set[str], own: list[Package], core: Package | None) -> list[Trouble]:
    """The trouble of what is missing, with the versions that fit what is there."""
    if not gone:
        return []
    told = [f"{p.name} ({p.holds}{'; it was removed' if p.name in removed else ''})" for p in gone]
    plain = core or next((package for package in own if release_of(package.version)), None)
    kernel = next((package.version for package in own if "-tegra-" in package.version), "")
    wanted = []
    for package in gone:
        version = (
            kernel if "kernel" in package.name else plain.version if plain and "-tegra-" not in plain.version else ""
        )
        wanted.append(f"{package.name}={version}" if version else package.name)
    return [Trouble(reason=f"missing: {', '.join(told)}", remedies=(f"sudo apt-get install {' '.join(wanted)}",))]
