"""Which picture files a run is about: files, folders and lists of paths made into one list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from runners.contract import RunnerError

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
LIST_SUFFIX = ".txt"


def expand(paths: Sequence[str]) -> list[str]:
    """The picture files that some arguments name, in the order given.

    Args:
        paths: picture files (any suffix); folders, of which the files with a picture's suffix are taken, sorted by
            name, without sub-folders; and .txt lists with one path a line, relative to the list, `#` for comments.

    Raises:
        RunnerError: a path is not there or not readable, or a folder or list names no picture.
    """
    if not paths:
        raise RunnerError("no picture was named", "name picture files, a folder, or a .txt list of paths")
    if "" in paths:  # an unset variable of a script; pathlib takes it for the current folder
        raise RunnerError("an empty name is no picture", 'name the current folder as "."')
    found: list[str] = []
    for path in paths:
        found.extend(_expand_one(Path(path)))
    for name in found:
        _require_text(name)
    return found


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:  # neither JSON nor the model's process can be told about it
        raise RunnerError(f"{os.fsencode(name)!r}: this file's name is no UTF-8 text", "rename the file") from error


def _expand_one(path: Path) -> list[str]:
    try:
        if path.is_dir():
            return _in_folder(path)
        if path.suffix.lower() == LIST_SUFFIX and path.is_file():
            return _in_list(path)
        path.stat()
    except OSError as error:
        raise RunnerError(f"{path}: {error.strerror}", "check the path of the pictures") from error
    return [str(path)]


def _in_folder(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file()
        ]
    if not names:
        raise RunnerError(
            f"{folder}: no picture in this folder (looked for {', '.join(SUFFIXES)})",
            "name the files themselves when they have other suffixes",
        )
    return [str(folder / name) for name in sorted(names)]


def _in_list(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise RunnerError(f"{path}: not a text file, so not a list of pictures") from error
    named = [str(path.parent / line) for line in lines if line and not line.startswith("#")]
    if not named:
        raise RunnerError(f"{path}: the list names no picture", "write one path a line")
    return named
