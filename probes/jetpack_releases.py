"""The releases of L4T: the JetPack each belongs to and what it came with, from `jetpack_releases.json`.

Component versions are never taken from a neighbour: JetPack 6.0 and 6.1 differ in the major versions of cuDNN and
TensorRT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from probes import l4t


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `jetpack_releases.json`; None means not found in a source."""

    l4t: str
    jetpack: str | None
    ubuntu: str | None = None
    kernel: str | None = None
    python: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    tensorrt: str | None = None
    vpi: str | None = None
    opencv: str | None = None
    sources: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """For people: "JetPack 6.2", or "L4T 36.5.2" when its JetPack is not known."""
        return f"JetPack {self.jetpack}" if self.jetpack else f"L4T {self.l4t}"


class ReleaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """`jetpack_releases.json`.

    Attributes:
        families: the first number of L4T -> that of JetPack.
        cuda_compat: the first number of JetPack -> the newest CUDA that a cuda-compat package makes its driver serve.
    """

    newest_known: str
    families: dict[str, str]
    cuda_compat: Mapping[str, str] = {}
    releases: tuple[Release, ...]


def read_table() -> ReleaseTable:
    """The bundled table of releases."""
    data = Path(__file__).with_name("jetpack_releases.json").read_bytes()
    return msgspec.json.decode(data, type=ReleaseTable)


def numbers(version: str) -> tuple[int, ...]:
    """The dotted numbers that a version begins with: (4, 5, 4) of "4.5.4d"; () for a text that begins with none."""
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def agrees(found: str, expected: str) -> bool:
    """Whether two versions are the same as far as both tell: "9.3.0" agrees with "9.3.0.75", and "9" does."""
    pairs = list(zip(numbers(found), numbers(expected), strict=False))
    return bool(pairs) and all(one == other for one, other in pairs)


def find_release(release: str, table: ReleaseTable) -> Release | None:
    """The row of exactly this L4T release, or None."""
    return next((row for row in table.releases if row.l4t == release), None)


def family(release: str, table: ReleaseTable) -> str | None:
    """The first number of JetPack: "6" of L4T "36.4.3"; None for one that is not in the table."""
    return table.families.get(str(l4t.major(release)))


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


def missing(release: str, table: ReleaseTable) -> str:
    """How a release fails to be known: newer or older than the table, or a gap in it."""
    known = sorted(numbers(row.l4t) for row in table.releases)
    if numbers(release) > known[-1]:
        return f"is newer than our table (newest known: {table.newest_known})"
    if numbers(release) < known[0]:
        return f"is older than our table (oldest known: {'.'.join(map(str, known[0]))})"
    return "has no JetPack in our table" if find_release(release, table) else "is not in our table"
