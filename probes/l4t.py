"""L4T, the release number of a Jetson's system software, as its files and packages state it.

Source: /etc/nv_tegra_release as seen on L4T 32 to 39. The DATE field has two formats (24 hours, and 12 hours with
AM/PM on L4T 39) and vendors rebuild with other GCIDs, so neither is read.
"""

from __future__ import annotations

import re

import msgspec

from probes import devicetree
from probes.host import Host

RELEASE_FILE = "/etc/nv_tegra_release"
CORE_PACKAGE = "nvidia-l4t-core"
JETPACK_PACKAGE = "nvidia-jetpack"


class L4TSources(msgspec.Struct, frozen=True, kw_only=True):
    """What each place says; None where it says nothing.

    Attributes:
        file: "36.4.3" from the release file; the host's release when seen in a container.
        file_line: first line of the release file, for the case that it can't be parsed.
        package: "36.4.3" from the package nvidia-l4t-core; the image's when seen in a container.
        jetpack_package: version of the package nvidia-jetpack, e.g. "7.2.1-b49".
    """

    file: str | None = None
    file_line: str | None = None
    package: str | None = None
    jetpack_package: str | None = None


def parse_release(text: str) -> str | None:
    """L4T in the text of /etc/nv_tegra_release: "36.4.3"; None when it is not there."""
    match = re.search(r"\bR(\d+)\s*\(release\),\s*REVISION:\s*(\d+(?:\.\d+)*)", text)
    return f"{match[1]}.{match[2]}" if match else None


def parse_packages(text: str) -> dict[str, str]:
    """Versions by package name from `dpkg-query -W`; packages without a version are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0].partition(":")[0]: pair[1] for pair in pairs if len(pair) == 2}


def major(release: str | None) -> int | None:
    """The first number of a release: 36 of "36.4.3"; None without one."""
    head = (release or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else None


def read_release(host: Host) -> str | None:
    """L4T by the release file alone: quick, and nothing is executed."""
    return parse_release(host.text(RELEASE_FILE) or "")


def is_jetson(host: Host) -> bool:
    """Whether this is a Jetson: by its SoC, or in a container that hides it by the release file."""
    return devicetree.read_device_tree(host).soc is not None or host.exists(RELEASE_FILE)


def read_sources(host: Host) -> L4TSources:
    """Ask the release file and dpkg; either may be missing (containers, Yocto images)."""
    packages = _installed(host)
    core = packages.get(CORE_PACKAGE)
    return L4TSources(
        file=read_release(host),
        file_line=host.line(RELEASE_FILE),
        package=core.partition("-")[0] if core else None,
        jetpack_package=packages.get(JETPACK_PACKAGE),
    )


def _installed(host: Host) -> dict[str, str]:
    both = host.run(["dpkg-query", "-W", CORE_PACKAGE, JETPACK_PACKAGE])
    if both.returncode is not None or not host.recorded:
        return parse_packages(both.stdout)  # exits 1 when one is missing, and still prints the other
    single = (host.run(["dpkg-query", "-W", name]).stdout for name in (CORE_PACKAGE, JETPACK_PACKAGE))
    return parse_packages("\n".join(single))
