"""Which probes there are: the folder's listing is the register. Files are read as text, never imported, for it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from probes.ground_table import PARTS

PROBE_PATH = "EDGE_AGENT_PROBE_PATH"  # folders with more probes, separated by ":"
FOLDER = Path(__file__).parent
SOURCE_LIMIT_BYTES = 1 << 20
LAYER_LINE = re.compile(r"^LAYER\b[^=\n]*=\s*(\d+)", re.M)
CHECK_LINE = re.compile(r"^(?:def\s+check\b|check\s*[:=])", re.M)
NUMBER_LINE = r"^{}\b[^=\n]*=\s*(\d+(?:\.\d*)?)"
NAMES_LINE = r"^{}\b[^=\n]*=\s*\(([^)]*)\)"
GPU_LINE = re.compile(r"^USES_GPU\b[^=\n]*=\s*True\b", re.M)
SUMMARY = re.compile(r'\A(?:\s*#[^\n]*\n)*\s*[rR]?(?:"""|\'\'\'|")\s*([^\n"]+)')


class ProbeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One probe, as its source text tells.

    Attributes:
        name: the file's name without ".py"; the subject of its finding.
        layer: its `LAYER`, 0 to 7; 0 when it has none.
        summary: first line of its docstring.
        cost_s: seconds it is thought to take: its `COST_S`; the longest is started first.
        deadline_s: its `DEADLINE_S`, seconds; None for the usual one.
        memory_mib: its `MEMORY_MIB`, what it may use; None for the usual limit.
        rests_on: its `RESTS_ON`, parts of `probes.ground_table` on which its answer rests; empty for a reading, which
            is taken anew each time.
        uses_gpu: its `USES_GPU`: it executes something on a GPU where there is one, and only one such runs at a time.
        problem: why it can't be one; "" when nothing stands against it. It is listed all the same, and answers BROKEN.
    """

    name: str
    path: str
    layer: int = 0
    summary: str = ""
    cost_s: float = 1.0
    deadline_s: float | None = None
    memory_mib: float | None = None
    rests_on: tuple[str, ...] = ()
    uses_gpu: bool = False
    problem: str = ""


def probe_files(environ: Mapping[str, str] | None = None) -> dict[str, ProbeFile]:
    """Every probe in this folder and in those of `EDGE_AGENT_PROBE_PATH`, by name, in layer order.

    A probe from the environment's folders takes the place of a shipped one of the same name.
    """
    environ = os.environ if environ is None else environ
    found = {file.name: file for file in shipped()}
    for folder in filter(None, environ.get(PROBE_PATH, "").split(os.pathsep)):
        found |= {file.name: file for file in added(Path(folder))}
    return dict(sorted(found.items(), key=lambda item: (item[1].layer, item[0])))


def shipped() -> Iterator[ProbeFile]:
    """The files of this folder that have both a `LAYER` and a `check`; the others are no probes."""
    for path in FOLDER.glob("*.py"):
        file = read_probe(path)
        if not file.problem:
            yield file


def added(folder: Path) -> Iterator[ProbeFile]:
    """All Python files of a folder that somebody named: each is meant to be a probe."""
    try:
        paths = [path for path in sorted(folder.iterdir()) if path.suffix == ".py" and not path.name.startswith("_")]
    except OSError as error:
        problem = f"{PROBE_PATH} names {folder}, which can't be listed: {error.strerror}"
        yield ProbeFile(name=folder.name or str(folder), path=str(folder), problem=problem)
        return
    yield from (read_probe(Path(os.path.abspath(path))) for path in paths)


def read_probe(path: Path) -> ProbeFile:
    """What a probe's source text says about it."""
    try:
        text = source_text(path)
    except OSError as error:
        return ProbeFile(name=path.stem, path=str(path), problem=f"{path} can't be read: {error.strerror}")
    layer = LAYER_LINE.search(text)
    missing = "LAYER" if layer is None else "" if CHECK_LINE.search(text) else "function check"
    summary = SUMMARY.match(text)
    deadline_s = number(text, "DEADLINE_S")
    cost_s = number(text, "COST_S")
    rests_on = names(text, "RESTS_ON")
    unknown = [part for part in rests_on if part not in PARTS]
    problem = f"it has no {missing}" if missing else f"its RESTS_ON names {unknown[0]!r}" if unknown else ""
    return ProbeFile(
        name=path.stem,
        path=str(path),
        layer=int(layer.group(1)) if layer else 0,
        summary=summary.group(1).strip() if summary else "",
        cost_s=1.0 if cost_s is None else cost_s,
        deadline_s=deadline_s,
        memory_mib=number(text, "MEMORY_MIB"),
        rests_on=() if unknown else rests_on,
        uses_gpu=GPU_LINE.search(text) is not None,
        problem=f"{path} is no probe: {problem}" if problem else "",
    )


def source_text(path: Path) -> str:
    """The text of a regular file; a pipe would make us wait for its writer, and a device may have no end.

    Raises:
        OSError: it can't be read, is no regular file, or is larger than `SOURCE_LIMIT_BYTES`.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > SOURCE_LIMIT_BYTES:
        raise OSError(errno.EFBIG, f"larger than {SOURCE_LIMIT_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8", errors="replace")


def number(text: str, name: str) -> float | None:
    """The number that the module-level constant `name` is set to in a source text; None without one."""
    line = re.search(NUMBER_LINE.format(name), text, re.M)
    return float(line.group(1)) if line else None


def names(text: str, constant: str) -> tuple[str, ...]:
    """The texts in the module-level tuple `constant` in a source text; () without one."""
    line = re.search(NAMES_LINE.format(constant), text, re.M)
    return tuple(re.findall(r"""["']([^"']+)["']""", line.group(1))) if line else ()
