"""What a finding rests on, hashed cheaply: kernel, board, L4T, drivers, manifests, libraries, packages, environment.

A finding whose ground has not changed is as true as on the day it was taken; one whose ground has changed is stale and
is executed again. Files are told apart by what stat(2) says, not by their content; it takes milliseconds. Which files
a part consists of is in `probes.ground_table`; tests/probes/test_rests_on.py compares that with what the checks read.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from probes.ground_table import (
    ALWAYS,
    COMMANDS,
    FILES,
    LIBRARIES,
    LIBRARY_FOLDERS,
    MANIFEST_VARIABLES,
    MANIFESTS,
    PARTS,
    VARIABLE_FOLDERS,
    VARIABLES,
)
from probes.host import Host

ROOT = Path(__file__).resolve().parent.parent
OWN_FOLDERS = ("probes", "runners")  # a new release of ours may ask better questions
OWN_SUFFIXES = (".py", ".toml", ".json", ".ptx", ".spv", ".cl", ".wgsl", ".comp", ".gguf", ".onnx")
LOADER_CACHE = "/etc/ld.so.cache"  # where ldconfig(8) notes the libraries of all folders that it was told of
LOADER_CACHE_LIMIT_BYTES = 16 << 20
CPU_LINE = re.compile(r"^(?:model name|flags|Features|CPU part|CPU variant)[ \t]*:.*", re.M)
CACHED_PATH = re.compile(rb"/[^\0]{1,400}\.so[^\0/]{0,100}(?=\0)")
Reader = Callable[[Host], Iterable[str]]


def kernel(host: Host) -> Iterator[str]:
    """Its release and build: a module for one does not load into the other."""
    for path in ("/proc/sys/kernel/osrelease", "/proc/sys/kernel/version"):
        yield host.line(path) or ""


def environment(host: Host) -> Iterator[str]:
    """The variables that drivers and loaders listen to; also the user and groups, which decide about nodes."""
    yield from (f"{name}={value}" for name, value in sorted(host.environ.items()) if name.startswith(VARIABLES))
    yield f"{host.as_user or os.geteuid()} {sorted(os.getgroups())}"


def python(host: Host) -> Iterator[str]:
    """Each folder that packages are installed to: pip changes the folder's time."""
    named = [os.path.abspath(folder) for folder in host.environ.get("PYTHONPATH", "").split(":") if folder]
    for folder in sys.path:
        if folder.endswith("-packages") or (folder in named and Path(folder) != ROOT):
            yield identity(folder)


def own(_host: Host) -> Iterator[str]:
    """Our own checks' source files, and the interpreter that runs them."""
    yield sys.version
    for name in OWN_FOLDERS:
        for folder, _, files in os.walk(ROOT / name):
            yield from (identity(f"{folder}/{file}") for file in sorted(files) if file.endswith(OWN_SUFFIXES))


def machine(host: Host) -> Iterator[str]:
    """The kinds of processor: a build for another one dies by SIGILL."""
    yield from sorted(set(CPU_LINE.findall(host.text("/proc/cpuinfo") or "")))


def pci(host: Host) -> Iterator[str]:
    """The GPUs on PCI with the kernel driver that has them."""
    from probes.pci import read_gpus

    yield from (gpu.text for gpu in read_gpus(host))


READERS: Mapping[str, Reader] = {
    "environment": environment,
    "kernel": kernel,
    "machine": machine,
    "own": own,
    "pci": pci,
    "python": python,
}


def ground(host: Host, parts: Sequence[str], known: MutableMapping[str, bytes] | None = None) -> str:
    """A hash of what these parts look like now.

    Args:
        host: the machine.
        parts: names from `PARTS`; a probe's `RESTS_ON`. Those of `ALWAYS` are added.
        known: the parts that were looked at already, and is added to: so many findings cost one look. None looks anew.

    Returns: 16 hexadecimal digits; "" for no parts, which means that nothing is known to rest on anything.

    Raises:
        ValueError: there is no such part.
    """
    if not parts:
        return ""
    known = {} if known is None else known
    digest = hashlib.sha256()
    for part in sorted({*parts, *ALWAYS}):
        if part not in known:
            known[part] = "\n".join(lines(host, part)).encode("utf-8", "surrogateescape")
        digest.update(part.encode() + b"\0" + known[part] + b"\n")
    return digest.hexdigest()[:16]


def lines(host: Host, part: str) -> Iterator[str]:
    """What is known about one part, as text."""
    if part not in PARTS:
        raise ValueError(f"nothing can rest on {part!r}; there are {', '.join(sorted(PARTS))}")
    if part in READERS:
        yield from READERS[part](host)
    yield from (identity(str(host.path(path))) for path in files(host, FILES.get(part, ())))
    if part in MANIFESTS:
        yield from manifests(host, part)
    if part in LIBRARIES:
        yield from (identity(path) for path in libraries(host, LIBRARIES[part]))
    for name in COMMANDS.get(part, ()):
        for folder in filter(None, host.environ.get("PATH", os.defpath).split(":")):
            if host.exists(f"{folder}/{name}"):
                yield identity(str(host.path(f"{folder}/{name}")))


def files(host: Host, patterns: Iterable[str]) -> Iterator[str]:
    """The device's paths that match; one that is named without a wildcard is told from its absence by being there."""
    for pattern in patterns:
        for expanded in in_folders(host, pattern):
            if glob.has_magic(expanded):
                yield from host.glob(expanded)
            elif host.exists(expanded):
                yield expanded


def in_folders(host: Host, pattern: str) -> list[str]:
    """A pattern with its variable's folders in place of "$NAME"; [] where the variable has none."""
    if not pattern.startswith("$"):
        return [pattern]
    name, _, rest = pattern[1:].partition("/")
    variable, usual = VARIABLE_FOLDERS[name]
    home = host.environ.get("HOME", "")
    if usual.startswith("~"):
        usual = home and home + usual[1:]
    value = host.environ.get(variable) or usual
    return [f"{glob.escape(folder.rstrip('/'))}/{rest}" for folder in value.split(":") if folder]


def manifests(host: Host, part: str) -> Iterator[str]:
    """Manifests, and the libraries that they name."""
    from probes.icd import read_manifest

    named = [path for name in MANIFEST_VARIABLES[part] for path in host.environ.get(name, "").split(":") if path]
    paths = [*files(host, MANIFESTS[part])]
    for path in named:
        paths += [path, *host.glob(f"{glob.escape(path)}/*")]
    names = []
    for path in paths:
        yield identity(str(host.path(path)))
        library = read_manifest(host, path).library
        if library.startswith("/"):
            yield identity(str(host.path(library)))
        elif library:
            names.append(glob.escape(library))
    if names:
        yield from (identity(path) for path in libraries(host, names))


def libraries(host: Host, patterns: Iterable[str]) -> Iterator[str]:
    """Where libraries of these names lie on this machine: in the usual folders, and where the loader looks besides."""
    wanted = "|".join(map(fnmatch.translate, patterns))
    is_wanted = re.compile(wanted).match
    folders = [folder for pattern in LIBRARY_FOLDERS for folder in host.glob(pattern)]
    folders += [folder for folder in host.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    for folder in dict.fromkeys(folders):
        place = str(host.path(folder))
        yield from (f"{place}/{name}" for name in host.names(folder, "*.so*") if is_wanted(name))
    with contextlib.suppress(OSError):
        cache = str(host.path(LOADER_CACHE))
        for path in cached_libraries(cache, os.stat(cache).st_mtime_ns, wanted):
            if path.rpartition("/")[0] not in folders:
                yield str(host.path(path))


@functools.lru_cache(64)
def cached_libraries(cache: str, _changed_ns: int, wanted: str) -> tuple[str, ...]:
    """The libraries of these names that the dynamic loader knows by its cache. Source: ld.so(8)."""
    is_wanted = re.compile(wanted).match
    with open(cache, "rb") as file:
        paths = {os.fsdecode(path) for path in CACHED_PATH.findall(file.read(LOADER_CACHE_LIMIT_BYTES))}
    return tuple(sorted(path for path in paths if is_wanted(path.rpartition("/")[2])))


def identity(path: str) -> str:
    """A file, its target and its rights, without reading it; files of procfs and sysfs have no size: they are read."""
    try:
        target = os.readlink(path) if os.path.islink(path) else ""
        status = os.stat(path)
    except OSError as error:
        return f"{path} {error.errno}"
    content = ""
    if path.startswith(("/proc/", "/sys/")):
        try:
            content = Path(path).read_text(errors="replace")[:4096]
        except OSError as error:
            content = str(error.errno)
        return f"{path} {content}"
    when = "" if path.startswith("/dev/") else f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
    return f"{path} {target} {status.st_mode:o} {status.st_uid} {status.st_gid} {status.st_rdev} {when}"
