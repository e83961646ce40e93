"""Power modes of a Jetson by name: an id means something only together with the board's own configuration file.

Mode 0 is 15W on an Orin Nano Super and MAXN on an AGX Orin. Both files are readable without root; `nvpmodel -q` prints
errors when it is not root, and ends with 0 all the same.
"""

from __future__ import annotations

import re

import msgspec

from probes.host import Host

CONFIGURATION = "/etc/nvpmodel.conf"
STATE = "/var/lib/nvpmodel/status"
MODE = re.compile(r"^[ \t]*<[ \t]*POWER_MODEL[ \t]+ID=([0-9]{1,4})[ \t]+NAME=([^\s>]{1,64})", re.M)
DEFAULT = re.compile(r"^[ \t]*<[ \t]*PM_CONFIG[ \t]+DEFAULT=([0-9]{1,4})", re.M)
CURRENT = re.compile(r"\bpmode:([0-9]{1,6})\b")
QUERY = re.compile(r"^NV Power Mode:[ \t]*(\S+)[ \t]*\n\s*([0-9]{1,4})\s*$", re.M)


class PowerMode(msgspec.Struct, frozen=True, kw_only=True):
    """The mode that is set; "" and None where the machine does not say.

    Attributes:
        modes: id -> name, as in the configuration.
        default: the id that is set at the first boot.
    """

    name: str = ""
    id: int | None = None
    modes: dict[int, str] = {}
    default: int | None = None


def parse_configuration(text: str) -> tuple[dict[int, str], int | None]:
    """(id -> name, default id) of an nvpmodel.conf."""
    default = DEFAULT.search(text)
    return {int(number): name for number, name in MODE.findall(text)}, int(default[1]) if default else None


def parse_state(text: str) -> int | None:
    """The id in "pmode:0002 fmode:fan_mode_quiet"."""
    found = CURRENT.search(text)
    return int(found[1]) if found else None


def parse_query(text: str) -> tuple[str, int] | None:
    """(name, id) as `nvpmodel -q` prints them, whatever errors stand around; None without."""
    found = QUERY.search(text)
    return (found[1], int(found[2])) if found else None


def read_power_mode(host: Host) -> PowerMode:
    """Ask the files, and the tool where they don't say."""
    modes, default = parse_configuration(host.text(CONFIGURATION) or "")
    number = parse_state(host.text(STATE) or "")
    if number is not None and number in modes:
        return PowerMode(name=modes[number], id=number, modes=modes, default=default)
    said = parse_query(host.run(["nvpmodel", "-q"]).stdout) if modes or number is not None else None
    name, number = said or ("", number)
    return PowerMode(name=name, id=number, modes=modes, default=default)
