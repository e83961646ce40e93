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
CHECK_LINE = re.compile(r"^(?:def\s+check\b|check\s*[:=])", re.M)
CONSTANT = re.compile(
    r"^(LAYER|COST_S|DEADLINE_S|MEMORY_MIB|RESTS_ON|USES_GPU)\b[^=\n]*=\s*(\([^)]*\)|\d+(?:\.\d*)?|True\b)", re.M
)
NAME = re.compile(r"""["']([^"']+)["']""")
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
    constants: dict[str, str] = {}
    for line in CONSTANT.finditer(text):
        constants.setdefault(line[1], line[2])
    layer = re.match(r"\d+", constants.get("LAYER", ""))
    missing = "LAYER" if layer is None else "" if CHECK_LINE.search(text) else "function check"
    number_of_layer = int(layer[0]) if layer else 0
    if missing:
        problem = f"{path} is no probe: it has no {missing}"
        return ProbeFile(name=path.stem, path=str(path), layer=number_of_layer, problem=problem)
    summary = SUMMARY.match(text)
    cost_s = number(constants.get("COST_S"))
    rests_on = NAME.findall(constants.get("RESTS_ON", ""))
    unknown = [part for part in rests_on if part not in PARTS]
    return ProbeFile(
        name=path.stem,
        path=str(path),
        layer=number_of_layer,
        summary=summary.group(1).strip() if summary else "",
        cost_s=1.0 if cost_s is None else cost_s,
        deadline_s=number(constants.get("DEADLINE_S")),
        memory_mib=number(constants.get("MEMORY_MIB")),
        rests_on=() if unknown else tuple(rests_on),
        uses_gpu=constants.get("USES_GPU") == "True",
        problem=f"{path} is no probe: its RESTS_ON names {unknown[0]!r}" if unknown else "",
    )


def number(value: str | None) -> float | None:
    """The number that a constant is set to; None without one."""
    return float(value) if value and value[0].isdigit() else None


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
