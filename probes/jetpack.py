"""JetPack: the L4T release by file and by package, the JetPack it belongs to, and where the system differs from it.

A release that is not in `jetpack_releases.json` is told as such, with the nearest family, and nothing is compared then.
A system that differs from its release was read all the same: the finding WORKS, and tells each difference, what it
means and, where one is needed, the remedy (`jetpack_differences.py`).
"""

from __future__ import annotations

import platform
import re

from probes import devicetree, jetpack_differences, jetpack_meaning, jetpack_parts, jetpack_releases, l4t
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.host import Host
from probes.jetpack_meaning import Difference
from probes.jetpack_parts import Parts
from probes.jetpack_releases import Release, ReleaseTable
from probes.l4t import L4TSources

LAYER = 1


def _system_facts(host: Host, parts: Parts) -> dict[str, Fact]:
    """What was found, whether a Jetson or not; lists hold every version that lies there, None is for none."""
    return {
        "distribution": parts.distribution,
        "ubuntu": parts.ubuntu,
        "kernel": parts.kernel,
        "python": None if host.recorded else platform.python_version(),
        "system_python": parts.python,
        "cuda_toolkit": parts.cuda,
        "cuda_compat": list(parts.cuda_compat) or None,
        "cudnn": list(parts.cudnn) or None,
        "tensorrt": list(parts.tensorrt) or None,
        "vpi": list(parts.vpi) or None,
        "opencv": list(parts.opencv) or None,
    }


def _expected_facts(row: Release | None) -> dict[str, Fact]:
    """What the release came with; None where no source says, never a neighbour's version."""
    return {
        "expected_ubuntu": row.ubuntu if row else None,
        "expected_kernel": row.kernel if row else None,
        "expected_python": row.python if row else None,
        "expected_cuda": row.cuda if row else None,
        "expected_cudnn": row.cudnn if row else None,
        "expected_tensorrt": row.tensorrt if row else None,
        "expected_vpi": row.vpi if row else None,
        "expected_opencv": row.opencv if row else None,
    }


def _differences(
    sources: L4TSources, parts: Parts, row: Release | None, table: ReleaseTable, in_container: bool
) -> tuple[Difference, ...]:
    """All that is not as it should be.

    Nothing is compared with a release that is not in the table, nor with one that only a container's packages name.
    """
    found: tuple[Difference, ...] = ()
    if sources.file and sources.package and sources.file != sources.package and not in_container:
        found = (jetpack_meaning.l4t_difference(sources.file, sources.package),)
    if row is None or (in_container and not sources.file):
        return found
    if not in_container:
        found = (*found, *jetpack_differences.compare_package(sources.jetpack_package, row))
    return (*found, *jetpack_differences.compare(parts, row, table, in_container))


def _judge(sources: L4TSources, release: str, in_container: bool, parts: Parts, system: dict[str, Fact]) -> Finding:
    table = jetpack_releases.read_table()
    row = jetpack_releases.find_release(release, table)
    by_package = re.match(r"\d+(?:\.\d+)*", sources.jetpack_package or "")
    jetpack = row.jetpack if row and row.jetpack else by_package[0] if by_package else None
    family = jetpack_releases.nearest_family(release, table)
    reasons = []
    if jetpack is None:
        missing = jetpack_releases.missing(release, table)
        reasons.append(f"JetPack unknown: L4T {release} {missing}; nearest family: JetPack {family}")
    if sources.file_line and not sources.file:
        reasons.append(f"{l4t.RELEASE_FILE} holds no release: it begins {sources.file_line[:60]!r}")
    differences = _differences(sources, parts, row, table, in_container)
    name = row.name if row else f"L4T {release}"
    reasons += [difference.tell(name) for difference in differences]
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
        "differences": [difference.fact for difference in differences],
    }
    return Finding(
        subject="jetpack",
        layer=LAYER,
        status=Status.WORKS,
        reason="; ".join(reasons),
        remedy=jetpack_meaning.remedies(differences),
        version=jetpack or "unknown",
        facts=facts,
        evidence=(Evidence(executed=f"read {l4t.RELEASE_FILE}", value=cut(sources.file_line or "")),),
    )


def check(host: Host) -> Finding:
    """Read L4T, map it to JetPack, read what the system is made of, and compare that with the release.

    Returns: WORKS when L4T is known, whether JetPack is or not; ABSENT on what is no Jetson; UNKNOWN on a Jetson
        without any trace of L4T; BROKEN when the release file is there and says nothing, and no package helps.
    """
    sources, parts = l4t.read_sources(host), jetpack_parts.read_parts(host)
    system = _system_facts(host, parts)
    release = sources.file or sources.package
    if release:
        return _judge(sources, release, host.in_container(), parts, system)
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
