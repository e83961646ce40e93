"""Devices in what `clinfo` prints, for recorded devices: on a live one the probe asks the loader itself.

Source: outputs in tests/fixtures/cases/DT-15; clinfo's labels are padded with spaces, a platform's block comes first
and its name again before its devices.
"""

from __future__ import annotations

import re

from probes.opencl import TYPE_CPU, TYPE_GPU, Listed

COMMAND = ("clinfo",)
LINE = re.compile(r"^ *(Platform|Device) (Name|Vendor|Version|Type) {2,}(\S.*?) *$")
COUNT = re.compile(r"^Number of platforms +([0-9]{1,6})\s*$", re.M)
BITS = {"CPU": TYPE_CPU, "GPU": TYPE_GPU}


def parse_platform_count(text: str) -> int | None:
    """How many platforms clinfo counted; None when it did not come so far, as after a driver's crash."""
    found = COUNT.search(text)
    return int(found[1]) if found else None


def parse_devices(text: str) -> list[Listed]:
    """The devices of all platforms in the loader's order; [] when there are none."""
    platforms: dict[str, dict[str, str]] = {}
    platform: dict[str, str] = {}
    devices: list[tuple[dict[str, str], dict[str, str]]] = []
    for line in text.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        what, key, value = found.groups()
        if what == "Platform":
            if key == "Name":
                platform = platforms.setdefault(value, {"Name": value})
            platform.setdefault(key, value)
        elif key == "Name":
            devices.append((platform, {"Name": value}))
        elif devices:
            devices[-1][1].setdefault(key, value)
    return [_device(index, *both) for index, both in enumerate(devices)]


def _device(index: int, platform: dict[str, str], device: dict[str, str]) -> Listed:
    return Listed(
        index=index,
        name=device.get("Name", ""),
        device_type=sum(bit for word, bit in BITS.items() if word in device.get("Type", "").upper().split(", ")),
        platform=platform.get("Name", ""),
        platform_vendor=platform.get("Vendor", ""),
        vendor=device.get("Vendor", ""),
        version=platform.get("Version", ""),
    )
