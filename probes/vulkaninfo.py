"""Devices in what `vulkaninfo --summary` prints, for recorded devices: on a live one the probe asks the loader itself.

Drivers write warnings before and between the lines ("'DISPLAY' environment variable not set", "TU: error: ..."), and a
loader without a driver prints an error instead of devices. Source: outputs in tests/fixtures/cases/DT-14.
"""

from __future__ import annotations

import re

from probes.vulkan import Listed

COMMAND = ("vulkaninfo", "--summary")
TYPES = ("OTHER", "INTEGRATED_GPU", "DISCRETE_GPU", "VIRTUAL_GPU", "CPU")  # VkPhysicalDeviceType, by its number
HEAD = re.compile(r"^GPU([0-9]{1,4}):\s*$", re.M)
FIELD = re.compile(r"^\s+(\w+)\s*=\s*(\S.*?)\s*$", re.M)
FAILED = re.compile(r"vkCreateInstance failed with (\w+)")


def parse_summary(text: str) -> list[Listed]:
    """The physical devices in the loader's order; [] when there are none or the text is something else."""
    parts = HEAD.split(text)  # what comes before, then index and body by turns
    return [
        _device(int(index), dict(FIELD.findall(body))) for index, body in zip(parts[1::2], parts[2::2], strict=True)
    ]


def parse_failure(text: str) -> str:
    """The error code when no instance could be made ("ERROR_INCOMPATIBLE_DRIVER": loader there, no driver), or ""."""
    found = FAILED.search(text)
    return found[1] if found else ""


def _device(index: int, fields: dict[str, str]) -> Listed:
    kind = fields.get("deviceType", "").removeprefix("PHYSICAL_DEVICE_TYPE_")
    vendor = re.match(r"0x([0-9a-fA-F]{1,8})\b", fields.get("vendorID", ""))
    driver = fields.get("driverInfo") or fields.get("driverVersion", "")
    return Listed(
        index=index,
        name=fields.get("deviceName", ""),
        device_type=TYPES.index(kind) if kind in TYPES else 0,
        uuid=fields.get("deviceUUID", "").replace("-", ""),
        vendor_id=int(vendor[1], 16) if vendor else 0,
        driver=" ".join(part for part in (fields.get("driverName", ""), driver) if part),
        api_version=fields.get("apiVersion", "").partition(" ")[0],
    )
