"""Driver manifests of Vulkan, OpenCL and EGL: which libraries they name, and whether each can be loaded by itself.

A loader answers "no driver installed" and "a driver is installed that can't be loaded" with the same error code, and
skips a broken driver silently when a good one is beside it. So each manifest is read here, and each library tried.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence

import msgspec

from probes import gpu_nodes
from probes.apart import Died, apart
from probes.contract import Fact, Status
from probes.host import Host
from probes.limits import REMEDY, narrow_address_space

OTHER_ARCHITECTURE = "wrong ELF class"  # a 32-bit driver beside the 64-bit one: the loader skips it rightly
NO_FILE = "no such file"
JOIN_GROUPS = "add the user to the groups that own these nodes (video, render) and log in again"


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """One manifest.

    Attributes:
        manifest: its path on the device.
        library: the library it names, as it is handed to dlopen; empty when it could not be read.
        error: why it can't be used, in the parser's or the dynamic loader's words; empty when it can.
        deadly: whether the process that loads it does not survive: it crashes, or never comes back.
    """

    manifest: str
    library: str = ""
    error: str = ""
    deadly: bool = False

    @property
    def broken(self) -> bool:
        """Whether it was meant for this machine and can't be used."""
        return bool(self.error) and OTHER_ARCHITECTURE not in self.error


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is nothing to run on."""

    status: Status
    reason: str
    remedy: str


class _Icd(msgspec.Struct, frozen=True):
    library_path: str


class _Manifest(msgspec.Struct, frozen=True):
    ICD: _Icd


def parse_json_manifest(text: str) -> str:
    """The library path in a Vulkan or EGL manifest.

    Raises:
        ValueError: what is wrong with the text.
    """
    try:
        path = msgspec.json.decode(text, type=_Manifest).ICD.library_path
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not a driver manifest: {error}") from error
    if not path:
        raise ValueError("not a driver manifest: its library_path is empty")
    return path


def parse_icd(text: str) -> str:
    """The library named in an OpenCL `.icd` file: its first line.

    Raises:
        ValueError: the file names none.
    """
    name = text.strip().partition("\n")[0].strip()
    if not name or "\0" in name:
        raise ValueError("names no library")
    return name


def read_manifest(host: Host, path: str) -> Driver:
    """Read one manifest: `.icd` is OpenCL's, any other file the JSON of Vulkan and EGL."""
    text = host.text(path)
    if text is None:
        return Driver(manifest=path, error="can't be read" if host.exists(path) else NO_FILE)
    try:
        library = parse_icd(text) if path.endswith(".icd") else parse_json_manifest(text)
    except ValueError as error:
        return Driver(manifest=path, error=str(error))
    if "/" in library and not library.startswith("/"):
        library = os.path.join(os.path.dirname(path), library)
    return Driver(manifest=path, library=library)


def manifests(host: Host, folders: Sequence[str], suffix: str) -> list[str]:
    """The manifests in `folders`, in search order; a file reached by two paths counts once."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in host.glob(f"{folder}/*{suffix}"):
            found.setdefault(os.path.realpath(host.path(path)), path)
    return list(found.values())


def tried(host: Host, drivers: Sequence[Driver], symbols: Sequence[str]) -> list[Driver]:
    """Load each driver's library by itself in a process apart: one that crashes costs nobody else.

    Args:
        host: the machine.
        drivers: as read.
        symbols: entry points of the API's drivers; one of them must be there.
    """
    return [driver if driver.error else _tried(host, driver, symbols) for driver in drivers]


def _tried(host: Host, driver: Driver, symbols: Sequence[str]) -> Driver:
    try:
        error = apart(lambda: _load(host, driver.library, symbols))
    except Died as died:
        error = f"{driver.library}: {died} when it was loaded"
        return msgspec.structs.replace(driver, error=error, deadly=True)
    except OSError:  # no further process is allowed (RLIMIT_NPROC, a cgroup): this one is the check's own as well
        error = _load(host, driver.library, symbols)
    return msgspec.structs.replace(driver, error=error)


def _load(host: Host, name: str, symbols: Sequence[str]) -> str:
    """Why a library can't be used as a driver, in the dynamic loader's words; "" when it can."""
    try:
        library = host.load_library(name, local=True)
    except OSError as error:
        words = str(error)
        return words if name in words else f"{name}: {words}"
    return "" if any(hasattr(library, symbol) for symbol in symbols) else f"{name}: is no driver, has no {symbols[0]}"


def deadly(api: str, drivers: Sequence[Driver]) -> Judgement | None:
    """BROKEN when a driver would take every process along that asks this API's loader; None when there is none such."""
    bad = [f"{d.manifest}: {d.error}" for d in drivers if d.deadly]
    if not bad:
        return None
    reason = f"every program that uses {api} here dies or hangs with a driver: {'; '.join(bad)}"
    remedy = "reinstall the package that has this library, or move the manifest that names it away"
    return Judgement(status=Status.BROKEN, reason=reason, remedy=remedy)


def facts(drivers: Sequence[Driver]) -> dict[str, Fact]:
    """What the manifests say, as facts."""
    return {
        "icd": [f"{d.manifest}: {d.library}" if d.library else d.manifest for d in drivers],
        "icd_broken": broken(drivers),
    }


def broken(drivers: Sequence[Driver]) -> list[str]:
    """The drivers that can't be used, each with the reason."""
    return [f"{d.manifest}: {d.error}" for d in drivers if d.broken]


def environment(host: Host, names: Sequence[str]) -> dict[str, str | int | float | None]:
    """The variables that are set among `names`; a name that ends in `*` stands for all with that beginning."""
    return {
        key: value
        for key, value in sorted(host.environ.items())
        if any(key == name or (name.endswith("*") and key.startswith(name[:-1])) for name in names)
    }


def override(variables: Mapping[str, object], names: Sequence[str]) -> str:
    """The first variable in `names` that is set and so replaces the loader's own search, as "NAME=value"; or ""."""
    return next((f"{name}={variables[name]}" for name in names if variables.get(name)), "")


def why_no_gpu(host: Host, drivers: Sequence[Driver]) -> str:
    """What may explain that no GPU answered: drivers that can't be loaded, nodes that can't be read; or ""."""
    parts = broken(drivers)
    nodes = gpu_nodes.unreadable(host)
    if nodes:
        parts.append(f"this user may not read {', '.join(nodes)}")
    return "; ".join(parts)


def nothing_found(
    host: Host, api: str, drivers: Sequence[Driver], *, replaced_by: str, searched: Sequence[str], said: str
) -> Judgement:
    """Judge why an API's loader found no device.

    Args:
        host: the machine.
        api: its name, for the sentences.
        drivers: after `tried`.
        replaced_by: see `override`.
        searched: the folders that were looked into.
        said: the call and the API's own words.

    Returns: BROKEN when a driver can't be loaded or a variable hides them; UNKNOWN when this user may not read the
        device; otherwise ABSENT, without a remedy: which package is missing is known to the probe.
    """
    bad = broken(drivers)
    unset = f"unset {replaced_by.partition('=')[0]}" if replaced_by else ""
    if replaced_by and len(bad) == len(drivers):
        lost = all(d.error == NO_FILE for d in drivers)
        how = f"hides every {api} driver" if lost else f"leaves only {api} drivers that can't be loaded"
        reason = f"{replaced_by} {how}: {'; '.join(bad) or 'it names none'} ({said})"
        return Judgement(status=Status.BROKEN, reason=reason, remedy=unset)
    if bad:
        remedy = "install the package that has the named library, or remove the manifest that names it"
        reason = f"{api} driver can't be loaded: {'; '.join(bad)} ({said})"
        return Judgement(status=Status.BROKEN, reason=reason, remedy=remedy)
    if not drivers:
        reason = f"no {api} driver is installed: no manifest in {', '.join(searched)} ({said})"
        return Judgement(status=Status.ABSENT, reason=reason, remedy="")
    loaded = ", ".join(d.library for d in drivers if not d.error) or "none"
    reason = f"no {api} driver found a device: {loaded} can be loaded ({said})"
    if limit := narrow_address_space():
        return Judgement(status=Status.UNKNOWN, reason=f"{reason}; {limit}", remedy=REMEDY)
    nodes = gpu_nodes.unreadable(host)
    if nodes:
        reason += f"; this user may not read {', '.join(nodes)}"
        return Judgement(status=Status.UNKNOWN, reason=reason, remedy=JOIN_GROUPS)
    return Judgement(status=Status.ABSENT, reason=reason, remedy=unset)
