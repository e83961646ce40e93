"""Makes a recorded device, a folder that `Host(root=...)` reads, from a file of `tests/fixtures/devices`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probes.host import RECORDED_COMMANDS, Host

FIXTURES = Path(__file__).parent / "fixtures"
DEVICES = FIXTURES / "devices"


def device_names() -> list[str]:
    """Names of all recorded devices."""
    return sorted(path.stem for path in DEVICES.glob("*.json"))


def read_device(name: str) -> dict[str, Any]:
    """The document of one recorded device."""
    document: dict[str, Any] = json.loads((DEVICES / f"{name}.json").read_text("utf-8"))
    return document


def build_folder(root: Path, document: dict[str, Any]) -> Path:
    """Write the device's files, links, folders and commands below `root`.

    A link whose path is also given as a file becomes the file: its target would point out of the folder.
    """
    for path, entry in document["files"].items():
        _place(root, path).write_bytes(entry["content"].encode())
    for path, entry in document["links"].items():
        if path not in document["files"]:
            _place(root, path).symlink_to(entry["link_to"])
    for path in document["dirs"]:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    commands = {line: entry["content"] for line, entry in document["commands"].items()}
    _place(root, RECORDED_COMMANDS).write_text(json.dumps(commands), "utf-8")
    return root


def build_device(root: Path, name: str) -> Host:
    """The recorded device `name`, as a probe sees it."""
    return Host(root=build_folder(root, read_device(name)))


def build_files(root: Path, files: dict[str, str], commands: dict[str, str] | None = None) -> Host:
    """A recorded device of these files and commands alone."""
    entries = {path: {"content": content} for path, content in files.items()}
    answers = {line: {"content": content} for line, content in (commands or {}).items()}
    document = {"files": entries, "links": {}, "dirs": [], "commands": answers}
    return Host(root=build_folder(root, document))


def _place(root: Path, path: str) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
