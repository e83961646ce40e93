"""The device's own name, where the configuration gives none: stable across host names, different for cloned images."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from agent.config import Config

FILE_NAME = "device-id.json"
SERIAL_FILES = (  # the first two are L4T's, the others a PC's
    "proc/device-tree/serial-number",
    "sys/firmware/devicetree/base/serial-number",
    "sys/class/dmi/id/product_serial",
    "sys/class/dmi/id/product_uuid",
)
NO_SERIAL = re.compile(
    r"(.)\1*|.*(not.?(specified|applicable|set)|to.?be.?filled|default|unknown|none|system.?serial).*", re.I
)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A name that was made up, and the hardware it was made up for; "" where that has no serial number."""

    device_id: str
    hardware: str


def device_id(config: Config, root: str = "/") -> tuple[str, str]:
    """The name of this device.

    Args:
        config: may name it.
        root: where the device's files are.

    Returns: the name, and a sentence on what is not well with it ("" when all is).
    """
    if config.agent.device_id:
        return config.agent.device_id, ""
    serial = hardware_serial(root)
    if serial and Path(root, SERIAL_FILES[0]).exists():
        return f"jetson-{serial}", ""
    return made_up(Path(config.agent.state_dir) / FILE_NAME, serial)


def hardware_serial(root: str = "/") -> str:
    """A serial number that tells this board from others; "" when there is none, or only a placeholder."""

    def read(name: str) -> str | None:
        try:
            return Path(root, name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return None

    return first_serial(read)


def first_serial(read: Callable[[str], str | None]) -> str:
    """The first of `SERIAL_FILES` that holds a serial number and no placeholder; "" when none does.

    Args:
        read: gives the text of a file, or None; a recorded device is read through its `Host`.
    """
    for name in SERIAL_FILES:
        serial = re.sub(r"[^0-9A-Za-z-]", "", (read(name) or "").replace("\0", ""))
        if serial and not NO_SERIAL.fullmatch(serial):
            return serial.lower()
    return ""


def made_up(path: Path, hardware: str) -> tuple[str, str]:
    """The name kept at `path`, or a new one: on the first start, and on other hardware (a cloned image)."""
    from agent.durable import write_durably
    from agent.topics import TopicError, check_level

    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        check_level(kept.device_id, "the device id")
        if not (kept.hardware and hardware) or kept.hardware == hardware:
            return kept.device_id, ""
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, TopicError):
        pass  # the first start, or a file that a power cut has taken: a new name is made below
    kept = Kept(device_id=f"edge-{os.urandom(6).hex()}", hardware=hardware)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, msgspec.json.encode(kept))
    except OSError as error:
        return kept.device_id, f"the device's name could not be kept, set agent.device_id: {path}: {error.strerror}"
    return kept.device_id, ""
