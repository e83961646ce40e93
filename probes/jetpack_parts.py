"""What a Jetson's system is made of, as found: Ubuntu, kernel, Python, CUDA, cuDNN, TensorRT, VPI and OpenCV.

Versions are read from files and from the numbers in libraries' names; nothing is loaded and no package manager asked,
so that it works on a recorded device, in a container and on an image without dpkg alike.

Source: folders per JetPack from NVIDIA's package lists, L4T 32 to 39.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from string import ascii_lowercase as LETTERS

import msgspec

from probes import tensorrt
from probes.cuda_libraries import TOOLKIT_FOLDERS
from probes.host import LINKS_LIMIT, Host

VPI_GLOBS = ("/opt/nvidia/vpi*/lib*/libnvvpi.so.*", "/opt/nvidia/vpi*/lib*/*/libnvvpi.so.*")
OPENCV_GLOBS = (
    "/usr/lib/*-linux-gnu/libopencv_core.so.*",
    "/usr/lib/libopencv_core.so.*",
    "/usr/local/lib/libopencv_core.so.*",
)
COMPAT_GLOB = "/usr/local/cuda*/compat*/libcuda.so*"
PYTHON = "/usr/bin/python3"


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; None and () where nothing was.

    Attributes:
        distribution: "Ubuntu 22.04.5 LTS".
        ubuntu: "22.04"; None on another distribution.
        kernel: "5.15.148-tegra".
        python: the distribution's own Python, "3.10": JetPack's bindings are built for this one only.
        cuda: the toolkit that /usr/local/cuda leads to, "12.6.11".
        cuda_compat: "12.8" for each toolkit that has a cuda-compat beside it.
        cudnn: versions, one for each that lies there; so `tensorrt`, `vpi` and `opencv`.
    """

    distribution: str | None = None
    ubuntu: str | None = None
    kernel: str | None = None
    python: str | None = None
    cuda: str | None = None
    cuda_compat: tuple[str, ...] = ()
    cudnn: tuple[str, ...] = ()
    tensorrt: tuple[str, ...] = ()
    vpi: tuple[str, ...] = ()
    opencv: tuple[str, ...] = ()


def parse_os_release(text: str) -> dict[str, str]:
    """Keys of an os-release file, quotes taken off."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, sign, value in pairs if sign}


def parse_kernel(text: str) -> str | None:
    """The release in /proc/version; some dumps put the host's name where "version" stands."""
    match = re.match(r"Linux (?:version )?(?:\S+ )?(\d+\.\S+)", text)
    return match[1] if match else None


def parse_cuda_version(text: str) -> str | None:
    """The toolkit in version.json (JetPack 5 and later) or version.txt (JetPack 4)."""
    try:
        found = json.loads(text)
        return str(found["cuda"]["version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        match = re.search(r"CUDA Version (\d+\.\d+(?:\.\d+)?)", text)
        return match[1] if match else None


def parse_ubuntu(text: str) -> str | None:
    """Ubuntu's release in an os-release file, "22.04"; None for another distribution, and where it does not say."""
    keys = parse_os_release(text)
    pretty = re.match(r"Ubuntu (\d{1,2}\.\d{2})\b", keys.get("PRETTY_NAME", ""), re.A)
    if keys.get("ID", "ubuntu") != "ubuntu" or not (keys.get("NAME") == "Ubuntu" or pretty):
        return None
    return keys.get("VERSION_ID") or (pretty[1] if pretty else None)


def versions(paths: Iterable[str]) -> tuple[str, ...]:
    """The versions in libraries' file names, oldest first; a soname's "9" beside "9.3.0" says nothing more.

    Ubuntu's OpenCV has a letter, "4.5.4d"; JetPack's soname "408" is no version.
    """
    found = {match[1] for path in paths if (match := re.search(r"\.so\.(\d{1,2}(?:\.\d{1,6}){0,4}[a-z]?)\Z", path))}
    longest = [one for one in found if not any(other.startswith(f"{one.rstrip(LETTERS)}.") for other in found)]
    return tuple(sorted(longest, key=lambda version: [int(number) for number in re.findall(r"\d+", version)]))


def _read_kernel(host: Host) -> str | None:
    """By procfs; a recorded device may have kept what a command said instead."""
    read = host.line("/proc/sys/kernel/osrelease") or parse_kernel(host.line("/proc/version") or "")
    return read or (parse_kernel(host.run(["uname", "-a"]).stdout) if host.recorded else None)


def _read_cuda(host: Host) -> str | None:
    """The installed toolkit; nvcc is not in PATH on a fresh JetPack, so its absence there says nothing."""
    folders = ["/usr/local/cuda", *reversed(host.glob("/usr/local/cuda-*"))]
    for folder in folders:
        for name in ("version.json", "version.txt"):
            version = parse_cuda_version(host.text(f"{folder}/{name}") or "")
            if version:
                return version
    found = [path for folder in folders for path in host.glob(f"{folder}/targets/*/lib/libcudart.so.*.*.*")]
    return found[0].rpartition("libcudart.so.")[2] if found else None


def _read_compat(host: Host, cuda: str | None) -> tuple[str, ...]:
    found = set()
    for path in host.glob(COMPAT_GLOB):
        folder = path.split("/")[3]  # "cuda-12.8", or "cuda", which leads to one
        number = re.match(r"(?:cuda-)?(\d+\.\d+)", folder if folder != "cuda" else cuda or "")
        found |= {number[1]} if number else set()
    return tuple(sorted(found))


def _read_python(host: Host) -> str | None:
    """Where /usr/bin/python3 leads to, by way of update-alternatives too."""
    path = PYTHON
    for _ in range(LINKS_LIMIT):
        target = host.link(path)
        if target is None:
            break
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    match = re.search(r"/python(3\.\d{1,3})\Z", path)
    return match[1] if match else None


def _read_vpi(host: Host) -> tuple[str, ...]:
    found = versions(path for pattern in VPI_GLOBS for path in host.glob(pattern))
    return found or versions(f".so.{path.rpartition('vpi')[2]}" for path in host.glob("/opt/nvidia/vpi*"))


def read_parts(host: Host) -> Parts:
    """Look for each; nothing is loaded."""
    release = host.text("/etc/os-release") or host.text("/usr/lib/os-release") or ""
    names, cuda = parse_os_release(release), _read_cuda(host)
    return Parts(
        distribution=names.get("PRETTY_NAME") or names.get("NAME"),
        ubuntu=parse_ubuntu(release),
        kernel=_read_kernel(host),
        python=_read_python(host),
        cuda=cuda,
        cuda_compat=_read_compat(host, cuda),
        cudnn=versions(path for folder in TOOLKIT_FOLDERS for path in host.glob(f"{folder}/libcudnn.so.*")),
        tensorrt=versions(path for pattern in tensorrt.LIBRARY_GLOBS for path in host.glob(pattern)),
        vpi=_read_vpi(host),
        opencv=versions(path for pattern in OPENCV_GLOBS for path in host.glob(pattern)),
    )
