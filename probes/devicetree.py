"""The device tree as text: model, compatible strings, SoC and board numbers.

Every string of a device tree ends with a NUL byte, and a property may hold several of them.

Source: Devicetree Specification 0.4, section 2.2.4; board numbers as seen on L4T 32 to 39.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from probes.host import Host

ROOT = "/proc/device-tree"
PLACEHOLDERS = frozenset(
    {
        "default string",
        "none",
        "not specified",
        "system product name",
        "system manufacturer",
        "system serial number",
        "to be filled by o.e.m.",
        "unknown",
    }
)
# Source: Linux, include/soc/tegra/fuse.h; the kernel prints the chip's number in decimal
CHIP_NUMBERS = {"24": "tegra186", "25": "tegra194", "33": "tegra210", "35": "tegra234", "38": "tegra264"}
WILDCARD_SOCS = {"tegra23x": "tegra234", "tegra26x": "tegra264"}  # L4T 35 prints both forms


class DeviceTree(msgspec.Struct, frozen=True, kw_only=True):
    """What the device tree says of the board.

    Attributes:
        model: for display only; vendors write what they like. None when there is none.
        compatible: most specific first, without NUL bytes.
        serial: None when missing or all zeros.
        board_ids: "p3448-0000" and the like, from places other than `compatible`.
        kernel_soc: the SoC by the kernel's own word, for a tree that names none; None where it does not say.
    """

    model: str | None = None
    compatible: tuple[str, ...] = ()
    serial: str | None = None
    board_ids: tuple[str, ...] = ()
    kernel_soc: str | None = None

    @property
    def soc(self) -> str | None:
        """The Tegra SoC, e.g. "tegra234"; None when no string names one, and the kernel does not either."""
        return find_soc(self.compatible) or self.kernel_soc


def parse_strings(text: str) -> tuple[str, ...]:
    """The NUL-separated strings of a property, empty ones left out."""
    return tuple(part.strip() for part in text.split("\0") if part.strip())


def find_soc(compatible: Iterable[str]) -> str | None:
    """The SoC named by the first compatible string that names one, as "tegraNNN"; None otherwise."""
    for token in compatible:
        match = re.search(r"(?:^|,)(tegra\d(?:\d\d|\dx))\b", token)
        if match:
            return WILDCARD_SOCS.get(match[1], match[1])
    return None


def find_carrier(compatible: Iterable[str]) -> str | None:
    """The carrier's board number, the one before the plus sign: "p3768-0000"; None without one."""
    for token in compatible:
        match = re.search(r"\b([pe]\d{4}-\d{4})[^+,]*\+", token)
        if match:
            return match[1]
    return None


def names_board(token: str, number: str) -> bool:
    """Whether a compatible string holds a board's number; "-b00" or "-super" may follow it."""
    return re.search(rf"(?:^|[,+]){re.escape(number)}(?!\d)", token) is not None


def parse_board_ids(text: str) -> tuple[str, ...]:
    """Board numbers in free text ("3489:0000:A0", "3448-0000-402") in the form "p3489-0000"."""
    return tuple(f"p{board}-{sku}" for board, sku in re.findall(r"\b(\d{4})[:-](\d{4})\b", text))


def usable(text: str | None) -> str | None:
    """`text` unless it is empty, all zeros or a board maker's placeholder; then None."""
    if text is None or not text.strip("0 .-") or text.strip().lower() in PLACEHOLDERS:
        return None
    return text.strip()


def read_device_tree(host: Host) -> DeviceTree:
    """Read the device tree; every field is empty on a machine without one."""
    text = host.text(f"{ROOT}/compatible") or ""
    return DeviceTree(
        model=usable(host.line(f"{ROOT}/model")),
        compatible=parse_strings(text),
        serial=usable(host.line(f"{ROOT}/serial-number")),
        board_ids=_read_board_ids(host),
        kernel_soc=_read_kernel_soc(host),
    )


def _read_kernel_soc(host: Host) -> str | None:
    """The SoC in /sys/devices/soc0: its name, or the number of a chip whose family is Tegra."""
    said = (host.line("/sys/devices/soc0/soc_id") or "").lower()
    family = (host.line("/sys/devices/soc0/family") or "").lower()
    return find_soc([said]) or (CHIP_NUMBERS.get(said) if family.startswith("tegra") else None)


def _read_board_ids(host: Host) -> tuple[str, ...]:
    """Fallbacks in the order of their trustworthiness; all of them are absent on some releases."""
    # JetPack 4: file names; JetPack 5: one property, space separated; absent on L4T 38
    names = " ".join(name.rpartition("/")[2] for name in host.glob(f"{ROOT}/chosen/plugin-manager/ids/*"))
    # /etc/nv_boot_control.conf: "TNSPEC 3310-B02-1000-E.0-..." is board, fab, SKU
    boot = host.text("/etc/nv_boot_control.conf") or ""
    spec = re.search(r"^TNSPEC\s+(\d{4})-\w*-(\d{4})", boot, re.MULTILINE)
    return (
        *parse_board_ids(names),
        *parse_board_ids((host.text(f"{ROOT}/chosen/ids") or "").replace("\0", " ")),
        *parse_board_ids((host.text(f"{ROOT}/nvidia,boardids") or "").replace("\0", " ")),
        *((f"p{spec[1]}-{spec[2]}",) if spec else ()),
    )
