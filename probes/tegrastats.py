"""A line of `tegrastats`: five formats from JetPack 4 to 7, tokens in any order, none of them required.

What a line does not say is None, never 0: on Thor the GPU's utilisation is missing ("GR3D_FREQ @[314,314,314]"). Words
that are not known are kept, so that a new JetPack costs nothing but their meaning.

Source: lines of real devices, tests/fixtures/cases/DT-06 and DT-09 and tests/fixtures/devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

NUMBER = r"-?[0-9]{1,9}(?:\.[0-9]{1,6})?"
STAMP = re.compile(r"^\s*([0-9]{2}-[0-9]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2})\s")
RAM = re.compile(rf"\bRAM ({NUMBER})/({NUMBER})MB(?: \(lfb [^)]*\))?")
SWAP = re.compile(rf"\bSWAP ({NUMBER})/({NUMBER})MB(?: \(cached [^)]*\))?")
IRAM = re.compile(r"\bIRAM ([0-9]{1,9})/([0-9]{1,9})kB ?\(lfb [^)]*\)")
CPU = re.compile(r"\bCPU \[([^\]]*)\]")
CORE = re.compile(r"([0-9]{1,3})%(?:@([0-9]{1,6}))?")
# "GR3D_FREQ 12%@[1300,1300]", "GR3D_FREQ @[314]", "EMC_FREQ 0%", "NVENC 716", "VIC off", "NVENC 79%@166"
ENGINE = re.compile(
    r"(?<!\S)([A-Z][A-Z0-9]*(?:_FREQ)?) (?:(off)|(?:([0-9]{1,3})%)?(?:@?(?:\[([0-9,]{1,64})\]|([0-9]{1,6})))?)(?=\s|$)"
)
TEMPERATURE = re.compile(rf"(?<!\S)([A-Za-z][\w-]*)@({NUMBER})C(?:/{NUMBER}C)?(?=\s|$)")
POWER = re.compile(rf"(?<!\S)([A-Z][A-Z0-9_]*) ({NUMBER})(?:mW)?/({NUMBER})(?:mW)?(?:/{NUMBER}mW)?(?=\s|$)")


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """GPU, memory controller or a codec.

    Attributes:
        percent: utilisation; None when the line does not say.
        mhz: one clock per cluster; () when the line does not say.
        off: whether it is said to be powered off.
    """

    percent: int | None = None
    mhz: tuple[int, ...] = ()
    off: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says.

    Attributes:
        ram_mb: (used, total), in MB; None when not there, as `swap_mb`.
        cpus: per core (percent, MHz), or None for one that is off.
        engines: by name without "_FREQ".
        temperatures_c: by name as printed; a block that is off (-256) is None.
        rails_mw: by name: (now, average).
        unknown: what was left over.
    """

    stamp: str = ""
    ram_mb: tuple[float, float] | None = None
    swap_mb: tuple[float, float] | None = None
    cpus: tuple[tuple[int, int | None] | None, ...] = ()
    engines: Mapping[str, Engine] = {}
    temperatures_c: Mapping[str, float | None] = {}
    rails_mw: Mapping[str, tuple[float, float]] = {}
    unknown: str = ""

    @property
    def gpu(self) -> Engine:
        """The GPU's engine; an empty one when the line lacks it."""
        return self.engines.get("GR3D", Engine())


def parse_line(text: str) -> Line:
    """Take one line apart; any text is a line, at worst one that says nothing."""
    text = text.replace("\0", " ")[:65536].strip()
    taken: list[re.Match[str]] = []

    def first(pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.search(text)
        if found:
            taken.append(found)
        return found

    stamp, ram, swap, cpu = first(STAMP), first(RAM), first(SWAP), first(CPU)
    first(IRAM)
    temperatures, rails, engines = (_all(pattern, text, taken) for pattern in (TEMPERATURE, POWER, ENGINE))
    return Line(
        stamp=stamp[1] if stamp else "",
        ram_mb=(float(ram[1]), float(ram[2])) if ram else None,
        swap_mb=(float(swap[1]), float(swap[2])) if swap else None,
        cpus=tuple(_core(part) for part in cpu[1].split(",")) if cpu else (),
        engines={m[1].removesuffix("_FREQ"): _engine(m) for m in engines},
        temperatures_c={m[1]: None if float(m[2]) <= -255 else float(m[2]) for m in temperatures},
        rails_mw={m[1]: (float(m[2]), float(m[3])) for m in rails},
        unknown=_left(text, taken),
    )


def _all(pattern: re.Pattern[str], text: str, taken: list[re.Match[str]]) -> list[re.Match[str]]:
    """Every match outside of what has been taken by another pattern."""
    spans = [m.span() for m in taken]
    found = [m for m in pattern.finditer(text) if not any(a < m.end() and m.start() < b for a, b in spans)]
    taken += found
    return found


def _core(text: str) -> tuple[int, int | None] | None:
    found = CORE.fullmatch(text.strip())
    return (int(found[1]), int(found[2]) if found[2] else None) if found else None


def _engine(found: re.Match[str]) -> Engine:
    _, off, percent, many, one = found.groups()
    clocks = many.split(",") if many else [one] if one else []
    return Engine(
        percent=int(percent) if percent else None,
        mhz=tuple(int(clock) for clock in clocks if 0 < len(clock) < 10),
        off=bool(off),
    )


def _left(text: str, taken: list[re.Match[str]]) -> str:
    parts, at = [], 0
    for start, end in sorted(m.span() for m in taken):
        if start > at:
            parts.append(text[at:start])
        at = max(at, end)
    return " ".join(" ".join([*parts, text[at:]]).split())
