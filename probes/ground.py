"""What a finding rests on, hashed cheaply: kernel, L4T, drivers, manifests, libraries, packages, environment.

A finding whose ground has not changed is as true as on the day it was taken; one whose ground has changed is stale and
is executed again. Files are told apart by what stat(2) says, not by their content; it takes milliseconds.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from probes import gpu_nodes
from probes.host import Host

OWN_FOLDERS = ("probes", "runners")  # a new release of ours may ask better questions
LIBRARY_FOLDERS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu/tegra",
    "/usr/lib/*-linux-gnu/nvidia",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
)
FILES: Mapping[str, tuple[str, ...]] = {
    "l4t": ("/etc/nv_tegra_release", "/etc/nv_boot_control.conf"),
    "driver": (
        "/proc/driver/nvidia/version",
        "/sys/module/nvidia/version",
        "/sys/module/nvidia*/srcversion",
        "/sys/module/nvgpu*/srcversion",
        "/sys/module/amdgpu/srcversion",
        "/sys/module/i915/srcversion",
        "/sys/module/xe/srcversion",
        "/sys/module/nouveau/srcversion",
    ),
    "nodes": (
        *gpu_nodes.ALL,
        "/dev/nvidia*",  # and the other engines' nodes
        "/dev/nvhost-*",
        "/dev/v4l2-nv*",
        "/dev/nvgpu/*/*",
        "/dev/dri/*",
    ),
    "vulkan": (
        "/etc/vulkan/*.d/*",
        "/usr/share/vulkan/*.d/*",
        "/usr/local/share/vulkan/*.d/*",
    ),
    "opencl": ("/etc/OpenCL/vendors/*",),
    "egl": ("/etc/glvnd/egl_vendor.d/*", "/usr/share/glvnd/egl_vendor.d/*", "/usr/share/egl/egl_external_platform.d/*"),
    "packages": ("/var/lib/dpkg/status", "/var/lib/dpkg/updates/[0-9]*"),
    "cdi": ("/etc/cdi/*", "/run/cdi/*", "/etc/nvidia-container-runtime/*", "/etc/docker/daemon.json"),
}
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "cuda_libraries": ("libcuda.so*", "libcudart.so*", "libnvrtc.so*", "libcublas.so*", "libnvidia-ptxjitcompiler.so*"),
    "cudnn_libraries": ("libcudnn*.so*",),
    "tensorrt_libraries": ("libnvinfer*.so*", "libnvonnxparser*.so*", "libnvdla_compiler.so*"),
    "video_libraries": ("libnvidia-encode.so*", "libnvcuvid*.so*", "libtegrav4l2.so*", "libnvv4l2.so*"),
    "dla_libraries": ("libnvdla_compiler.so*", "libcudla.so*", "libnvcudla.so*"),
    "vulkan_libraries": ("libvulkan*.so*", "libLLVM*.so*", "libnvidia-vulkan*.so*", "libGLX_nvidia.so*"),
    "opencl_libraries": ("libOpenCL.so*", "libpocl*.so*", "libnvidia-opencl.so*", "libMesaOpenCL.so*"),
    "egl_libraries": ("libEGL*.so*", "libGLES*.so*", "libgallium*.so*", "libgbm.so*"),
}
VARIABLES = (
    "CUDA_",
    "EDGE_AGENT_PROBE_PATH",
    "EGL_",
    "GALLIUM_",
    "GGML_",
    "LD_",
    "LIBGL_",
    "MESA_",
    "NVIDIA_",
    "OCL_",
    "POCL_",
    "VK_",
    "WGPU_",
    "__EGL_",
    "__GL",
)
Reader = Callable[[Host], Iterable[str]]


def kernel(host: Host) -> Iterator[str]:
    """Its release and build: a module for one does not load into the other."""
    for path in ("/proc/sys/kernel/osrelease", "/proc/sys/kernel/version"):
        yield host.line(path) or ""


def environment(host: Host) -> Iterator[str]:
    """The variables that drivers and loaders listen to; also the user and groups, which decide about nodes."""
    yield from (f"{name}={value}" for name, value in sorted(host.environ.items()) if name.startswith(VARIABLES))
    yield f"{host.as_user or os.geteuid()} {sorted(os.getgroups())}"


def python(_host: Host) -> Iterator[str]:
    """The interpreter and each folder that packages are installed to: pip changes the folder's time."""
    yield sys.version
    for folder in sys.path:
        if folder.endswith("-packages"):
            yield identity(folder)


def own(_host: Host) -> Iterator[str]:
    """Our own checks' source files."""
    root = Path(__file__).resolve().parent.parent
    for folder in OWN_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".json", ".ptx", ".spv", ".cl", ".wgsl", ".comp", ".gguf", ".onnx"):
                yield identity(str(path))


READERS: Mapping[str, Reader] = {"kernel": kernel, "environment": environment, "python": python, "own": own}
PARTS = frozenset({*READERS, *FILES, *LIBRARIES})


def ground(host: Host, parts: Sequence[str]) -> str:
    """A hash of what these parts look like now.

    Args:
        host: the machine.
        parts: names from `PARTS`; a probe's `RESTS_ON`. "kernel", "environment" and "own" are always added.

    Returns: 16 hexadecimal digits; "" for no parts, which means that nothing is known to rest on anything.

    Raises:
        ValueError: there is no such part.
    """
    if not parts:
        return ""
    digest = hashlib.sha256()
    for part in sorted({*parts, "kernel", "environment", "own"}):
        for line in lines(host, part):
            digest.update(f"{part}\0{line}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def lines(host: Host, part: str) -> Iterator[str]:
    """What is known about one part, as text."""
    if part in READERS:
        yield from READERS[part](host)
    elif part in FILES:
        for pattern in FILES[part]:
            yield from (identity(str(host.path(path))) for path in host.glob(pattern))
    elif part in LIBRARIES:
        wanted = re.compile("|".join(map(fnmatch.translate, LIBRARIES[part])))
        for folder in (folder for pattern in LIBRARY_FOLDERS for folder in host.glob(pattern)):
            place = str(host.path(folder))
            with contextlib.suppress(OSError):
                yield from (identity(f"{place}/{name}") for name in sorted(os.listdir(place)) if wanted.match(name))
    else:
        raise ValueError(f"nothing can rest on {part!r}; there are {', '.join(sorted(PARTS))}")


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
