"""A TOML file as text and values, with a sentence for each way in which it can be unreadable."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

FILE_LIMIT_BYTES = 1 << 20


class ConfigError(Exception):
    """The configuration can't be used; the message is one sentence that names the place and the remedy."""


class ConfigDamaged(ConfigError):
    """The file was not written wrongly but is broken: empty, NUL bytes, cut off. A last good copy may help."""


def read_file(path: str, required: bool) -> str | None:
    """The text of the file; None when it is missing and may be."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not data:
        raise ConfigDamaged(f"{path}: the file is empty (0 bytes); write it again, or remove it for the defaults")
    if b"\0" in data:
        raise ConfigDamaged(
            f"{path}: {data.count(0)} of {len(data)} bytes are NUL, as after a power cut; write the file again"
        )
    if len(data) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{path}: more than {FILE_LIMIT_BYTES} bytes; this is no configuration")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8") from error


def parse(text: str, path: str) -> dict[str, Any]:
    """TOML text as nested values."""
    tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return values
    except tomllib.TOMLDecodeError as error:
        kind = ConfigDamaged if "end of document" in str(error) else ConfigError
        hint = "; the file seems to be cut off" if kind is ConfigDamaged else ""
        raise kind(f"{path}: not valid TOML: {error}{hint}") from None


def line_of(key: str, text: str) -> int:
    """The line, from 1, on which a dotted key is set; 0 when it is written in a way not understood here."""
    section, wanted = "", key.split(".")
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header:
            section = header[1].replace('"', "").replace(" ", "")
            if section.split(".") == wanted:
                return number
        name = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if name and f"{section}.{name[1]}".lstrip(".").replace('"', "").split(".") == wanted:
            return number
    return 0
