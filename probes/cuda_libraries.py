"""The CUDA libraries above the driver: where they lie, loading one, and calling it; shared by the probes of this layer.

Three places count: what the loader finds by itself, the toolkit's own folders, and NVIDIA's wheels in this Python's
folders, which only a framework that knows them finds.

Source: folders per JetPack from NVIDIA's package lists; sonames from the packages of CUDA 10.2 to 13.5, cuDNN 7 to 9.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Sequence

import msgspec

from probes import cudadriver, devicetree, fatbin, jetson_modules
from probes.contract import DeviceKind, Evidence, Fact
from probes.cudadriver import CudaDriver, CudaError, DeviceInfo, SymbolMissing
from probes.host import Host
from probes.saxpy import describe

TOOLKIT_FOLDERS = (
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/cuda*/lib64",
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
)
FILES_LIMIT = 24


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A library that was asked for.

    Attributes:
        library: None when it did not load.
        name: what was given to the loader.
        files: the files of this library on the device, one per real file.
        problem: the loader's words when a file is there, or why nothing was loaded; "" with a library.
    """

    library: ctypes.CDLL | None = None
    name: str = ""
    files: tuple[str, ...] = ()
    problem: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that the libraries would use, as far as it is known.

    Attributes:
        driver: started; None when CUDA does not start, and then `problem` says why.
        version: the CUDA that the driver supports, "12.6"; None when libcuda does not say.
        capability: "8.7", by the driver or by the SoC; None when neither tells.
    """

    driver: CudaDriver | None = None
    info: DeviceInfo | None = None
    version: str | None = None
    capability: str | None = None
    problem: str = ""


def find_files(host: Host, stem: str) -> tuple[str, ...]:
    """Files of a library such as "libcudart", in the three places, one path per real file; nothing is loaded."""
    pythons = ["/usr/local/lib/python3*/dist-packages"] if host.recorded else sys.path
    places = (*TOOLKIT_FOLDERS, *(f"{python}/nvidia/*/lib" for python in pythons))
    folders = (folder for place in places for folder in host.glob(place))
    found = [f"{folder}/{name}" for folder in folders for name in host.names(folder, f"{stem}.so.*")]
    real: dict[str, str] = {}
    for path in found:
        real.setdefault(path if host.recorded else os.path.realpath(path), path)
    return tuple(real.values())[:FILES_LIMIT]


def file_version(path: str) -> str | None:
    """The version in a library's file name: "12.6.68" of "libcudart.so.12.6.68"; None when it holds none."""
    match = re.search(r"\.so\.(\d+(?:\.\d+){0,3})\Z", path)
    return match[1] if match else None


def load(host: Host, stem: str, versions: Sequence[str], driver_version: str | None = None) -> Loaded:
    """Load a library: by the loader's own search first, then by its files.

    Args:
        host: the machine.
        stem: "libcudart".
        versions: the sonames' numbers, newest first.
        driver_version: what the driver supports; a library of a newer major is tried last.
    """
    files = find_files(host, stem)
    if not host.executes:
        return Loaded(files=files, problem=f"{stem}: {host.not_executed}")
    names = [f"{stem}.so.{version}" for version in versions]
    problem = f"{names[0]}: cannot open shared object file, nor an older one" if names else stem
    for name in in_order([*names, *files], driver_version):
        try:
            return Loaded(library=host.load_library(name), name=name, files=files)
        except OSError as error:
            if not _is_missing_itself(str(error), name):
                problem = str(error)
    return Loaded(files=files, problem=problem)


def in_order(names: Sequence[str], driver_version: str | None) -> list[str]:
    """`names` with those that need a newer major than the driver supports at the end."""
    limit = _major(driver_version)
    if limit is None:
        return list(names)
    return sorted(names, key=lambda name: (_major(file_version(name)) or 0) > limit)


def _major(version: str | None) -> int | None:
    head = (version or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else None


def _is_missing_itself(said: str, name: str) -> bool:
    """Whether the loader misses the library itself, and not one below it, nor finds it broken."""
    return said.startswith(f"{name}: cannot open shared object file")


def is_newer(wanted: str | None, driver: str | None) -> bool | None:
    """Whether a CUDA version ("13.5") is newer than the driver's ("12.6"); None when one is not known."""
    numbers = [re.fullmatch(r"(\d+)\.(\d+)", text or "") for text in (wanted, driver)]
    if numbers[0] is None or numbers[1] is None:
        return None
    (a, b), (c, d) = ((int(match[1]), int(match[2])) for match in numbers if match)
    return (a, b) > (c, d)


def needs_newer_major(wanted: str | None, driver: str | None) -> bool | None:
    """Whether a CUDA version is of a newer major than the driver's; None when one is not known."""
    majors = (_major(wanted), _major(driver))
    return None if majors[0] is None or majors[1] is None else majors[0] > majors[1]


def read_gpu(host: Host) -> Gpu:
    """Start the driver and look at its first device; without it, what the SoC says."""
    soc = devicetree.read_device_tree(host).soc
    row = jetson_modules.read_table().socs.get(soc or "")
    capability = row.compute_capability if row else None
    if not host.executes:
        return Gpu(capability=capability, problem=host.not_executed)
    version: str | None = None
    try:
        driver = CudaDriver(cudadriver.load(host, soc))
        version = driver.version()  # answers before the driver is started
        driver.start()
        infos = driver.devices()
    except (OSError, SymbolMissing, CudaError) as error:
        return Gpu(version=_known(version), capability=capability, problem=str(error))
    return Gpu(driver=driver, info=infos[0], version=_known(version), capability=infos[0].capability)


def _known(version: str | None) -> str | None:
    return version if version and not version.startswith("0.") else None  # a stub says 0


def code_facts(host: Host, prefix: str, path: str | None, capability: str | None) -> dict[str, Fact]:
    """What device code a library holds, and whether this GPU has some of it: "<prefix>_cubins", "_ptx", "_has_code"."""
    code = fatbin.read(host, path) if path else None
    return {
        f"{prefix}_cubins": list(code.cubins) if code else None,
        f"{prefix}_ptx": list(code.ptx) if code else None,
        f"{prefix}_has_code": code.runs_on(capability) if code and capability else None,
    }


def loaded_path(host: Host, stem: str) -> str | None:
    """The file of a library that this process has loaded, from /proc/self/maps."""
    match = re.search(rf"(/\S*/{re.escape(stem)}\.so\S*)", host.text("/proc/self/maps") or "")
    return match[1] if match else None


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function that answers 0 when all is well.

    Raises:
        CudaError: another number.
        SymbolMissing: there is no such function.
    """
    function = symbol(library, name)
    number = function(*arguments)
    if number:
        raise CudaError(name, number, "")


def symbol(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    """A function of a library that answers a number.

    Raises:
        SymbolMissing: there is no such function: a placeholder, or another library of that name.
    """
    try:
        found: Callable[..., int] = getattr(library, name)
    except AttributeError as error:
        raise SymbolMissing(f"{library._name} has no {name}") from error
    return found


def evidence(
    executed: str, info: DeviceInfo, answer: bytes, expected: bytes, elapsed_s: float | None = None
) -> Evidence:
    """What the GPU answered beside what it should have, float32 both; and the seconds between two of its events."""
    return Evidence(
        executed=executed,
        device=info.name,
        device_kind=DeviceKind.GPU,
        value=describe(answer, expected),
        expected=describe(expected, expected),
        elapsed_s=elapsed_s,
        timer="" if elapsed_s is None else "device",
    )
