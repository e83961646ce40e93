"""Nothing that a check reads may change without making its finding stale: what it asks for lies in its `RESTS_ON`."""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from probes.child import load
from probes.clocks import LOADS
from probes.gpu_counters import NVMAP_CLIENTS
from probes.ground import ROOT, in_folders, libraries
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
from probes.host import RECORDED_COMMANDS, Host
from probes.listing import ProbeFile, probe_files
from runners.checks import runner_checks
from tests.probes.reading import ReadingHost
from tests.recorded import build_device, device_names

PROBES = {name: file for name, file in probe_files({}).items() if file.rests_on}
# Taken anew by each check, of the moment: what a witness saw meanwhile, and what this very process has loaded.
LOAD_OF_GPU = "/sys/class/devfreq/*"
READINGS = {*LOADS, NVMAP_CLIENTS, LOAD_OF_GPU, "/proc/self/maps", "/proc/self/fdinfo/*", f"/{RECORDED_COMMANDS}"}
PCI = "/sys/bus/pci/devices/*/*"
# Every program here has these; the packages they are from are the distribution's own, not a driver's.
EVERYBODYS = re.compile(
    r"(ld-linux|lib(c|m|dl|rt|pthread|util|resolv|nss_\w+|gcc_s|stdc\+\+|ffi|z|z3|zstd|lzma|bz2|xml2|icu\w+|expat|elf|bsd|md|"
    r"edit|tinfo|ncursesw|uuid|crypto|ssl|sqlite3|udev|hwloc|sensors|pciaccess|xshmfence|X\w+|X11-xcb|xcb|xcb-\w+|"
    r"wayland-\w+|python[\d.]+|cap|systemd|numa|ltdl|dw|unwind))[-.].*"
)


def covered(kind: str, name: str, parts: set[str]) -> bool:
    """Whether a change of this changes the ground made of `parts`."""
    if kind == "variable":
        folders = {VARIABLE_FOLDERS[p[1:].partition("/")[0]][0] for p in patterns(parts) if p.startswith("$")}
        return name.startswith(VARIABLES) or name in folders | {"HOME"}
    if kind == "command":
        return any(name in COMMANDS.get(part, ()) for part in parts)
    if kind == "mapped":
        wanted = [pattern for part in parts for pattern in LIBRARIES.get(part, ())]
        real = {os.path.realpath(path) for path in libraries(Host(), wanted)}
        return bool(EVERYBODYS.match(os.path.basename(name))) or is_in_python(name) or os.path.realpath(name) in real
    if "/" not in name:
        return any(fnmatch.fnmatch(name, pattern) for part in parts for pattern in LIBRARIES.get(part, ()))
    return (
        any(fnmatch.fnmatch(name, place) for pattern in patterns(parts) for place in in_folders(Host(), pattern))
        or ("pci" in parts and fnmatch.fnmatch(name, PCI))
        or is_in_stdlib(name)
        or ("python" in parts and is_in_python(name))
        or is_library_of(name, parts)
        or (name in LIBRARY_FOLDERS and any(LIBRARIES.get(part) for part in parts))
    )


def patterns(parts: set[str]) -> list[str]:
    return [pattern for part in parts for table in (FILES, MANIFESTS) for pattern in table.get(part, ())]


def is_library_of(path: str, parts: set[str]) -> bool:
    """`path` may be a pattern itself; what a manifest names counts wherever it lies."""
    folder, _, name = path.rpartition("/")
    folder = re.sub("^/lib/", "/usr/lib/", folder + "/").rstrip("/")
    wanted = [pattern for part in parts for pattern in LIBRARIES.get(part, ())]
    return any(fnmatch.fnmatch(name, pattern) for pattern in wanted) and any(
        fnmatch.fnmatch(folder, place) for place in LIBRARY_FOLDERS
    )


def is_in_stdlib(path: str) -> bool:
    """The interpreter's own: the part "own" has its version."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    is_zip = path.endswith(".zip") or path.startswith(f"{sys.base_prefix}/pyvenv")
    return is_zip or ("-packages/" not in path and path.startswith(tuple(f"{folder}/" for folder in folders)))


def is_in_python(path: str) -> bool:
    """Where packages are installed to, or are looked for."""
    places = [sys.prefix, sys.base_prefix, *sys.path]
    return "-packages/" in path or path.startswith(tuple(f"{place}/" for place in places if place))


def uncovered(asked: set[tuple[str, str]], file: ProbeFile) -> list[tuple[str, str]]:
    parts = {*file.rests_on, *ALWAYS}
    return sorted(
        (kind, name)
        for kind, name in asked
        if not (name in READINGS or fnmatch.fnmatch(name, LOAD_OF_GPU) or name.startswith("/dev/null") or is_ours(name))
        and not covered(kind, name, parts)
    )


def is_ours(path: str) -> bool:
    """Our own files, and what a driver compiled for itself and keeps."""
    return path.startswith((f"{ROOT}/probes/", f"{ROOT}/runners/")) or "/pocl/kcache/" in path


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("devices")
    return {name: build_device(folder / name, name).root for name in device_names()}


@pytest.mark.parametrize("name", PROBES)
def test_what_a_check_reads_of_recorded_devices_is_in_its_ground(name: str, devices: dict[str, Path]) -> None:
    for device, root in devices.items():
        host = ReadingHost(root)
        load(PROBES[name]).check(host)
        assert not uncovered(host.asked, PROBES[name]), f"{name} reads this of {device}, and does not rest on it"


@pytest.mark.parametrize("name", PROBES)
def test_what_a_check_reads_and_loads_here_is_in_its_ground(name: str) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as answer:
        command = [sys.executable, "-m", "tests.probes.reading", name, str(theirs)]
        done = subprocess.run(command, pass_fds=(theirs,), cwd=ROOT, capture_output=True, timeout=120, check=False)
        os.close(theirs)
        text = answer.read()
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    asked = {(kind, path) for kind, path in json.loads(text)}
    assert asked
    assert not uncovered(asked, PROBES[name])


@pytest.mark.parametrize("name", PROBES)
def test_the_variables_that_a_check_reports_are_in_the_ground(name: str) -> None:
    named = getattr(importlib.import_module(f"probes.{name}"), "VARIABLES", ())
    assert not [variable for variable in named if not covered("variable", variable.rstrip("*"), set())]


def test_every_part_is_under_some_check() -> None:
    used = {part for file in PROBES.values() for part in file.rests_on}
    used |= {part for check in runner_checks() for part in check.rests_on}
    assert set(PARTS) - used - set(ALWAYS) <= {"packages"}, "a part that nothing rests on is looked at for nothing"
    assert set(MANIFEST_VARIABLES) == set(MANIFESTS)
    assert all(name.startswith(VARIABLES) for names in MANIFEST_VARIABLES.values() for name in names)


def test_the_test_itself_sees_what_is_missing() -> None:
    file = PROBES["container"]
    assert uncovered({("path", "/etc/shadow"), ("command", "ldd"), ("variable", "EDITOR")}, file) == [
        ("command", "ldd"),
        ("path", "/etc/shadow"),
        ("variable", "EDITOR"),
    ]
