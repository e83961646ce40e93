"""The onnxruntime package: importing it, which providers are in it, and what its native code says on stderr."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from probes import l4t
from probes.host import Host
from runners.contract import RuntimeUnavailable
from runners.ort_errors import cause, missing_provider_remedy

PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

# The official Linux builds from 1.29 on report sessions and models to their maker, unless this is set
NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


def load_library() -> Any:
    """The `onnxruntime` package.

    Raises:
        RuntimeUnavailable: not installed, or there but not importable.
    """
    os.environ.setdefault(NO_TELEMETRY, "1")  # before the import: it starts then
    try:
        library = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise Absent(f"Python package {error.name} is not installed", "pip install 'edge-agent[onnx]'") from error
    except ImportError as error:
        raise RuntimeUnavailable(
            f"onnxruntime is installed but can't be imported: {cause(str(error))}",
            "reinstall onnxruntime for this Python and machine",
        ) from error
    if not hasattr(library, "InferenceSession"):
        # uninstalling one of two packages that share the folder leaves it empty
        raise RuntimeUnavailable(
            "onnxruntime is only a folder without the library",
            "pip uninstall onnxruntime onnxruntime-gpu, then install one of them",
        )
    return library


class Absent(RuntimeUnavailable):
    """Not installed, not built in, or no such hardware: nothing is broken."""


def require_provider(library: Any, backend: str) -> str:
    """The provider's name for `backend`.

    `get_available_providers()` is what was compiled in, so it is good for one thing: to tell what is *not* there.
    """
    if backend not in PROVIDERS:
        raise RuntimeUnavailable(
            f"ONNX Runtime has no backend {backend!r} here", f"choose one of {', '.join(PROVIDERS)}"
        )
    provider = PROVIDERS[backend]
    if provider in library.get_available_providers():
        return provider
    packages = installed_packages()
    reason = f"{' and '.join(packages) or 'this build of ONNX Runtime'} {library.__version__} has no {provider}"
    if len(packages) > 1:
        raise Absent(
            f"{reason}: the packages overwrite each other",
            f"pip uninstall {' '.join(packages)}, then install onnxruntime-gpu alone",
        )
    l4t_major = l4t.major(l4t.read_release(Host()))
    advice = missing_provider_remedy(backend, platform.machine(), sys.version_info[:2], l4t_major)
    raise Absent(reason, advice)


def installed_packages() -> list[str]:
    """The distributions installed here that bring the module `onnxruntime`."""
    known = (
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-webgpu",
        "onnxruntime-directml",
        "onnxruntime-openvino",
    )
    from importlib import metadata

    found = []
    for name in known:
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            found.append(name)
    return found


@contextlib.contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collects what native code writes to stderr: the only place where it says why a provider is missing.

    For the short time of a load, in a worker or check child: all threads of the process write into it meanwhile. The
    dump of a crash still goes where somebody reads it.
    """
    told: list[str] = []
    dumps = faulthandler.is_enabled()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        try:
            if dumps:
                faulthandler.enable(saved)
            os.dup2(file.fileno(), 2)
            yield told
        finally:
            os.dup2(saved, 2)
            if dumps:
                faulthandler.enable(2)
            os.close(saved)
            file.seek(0)
            told.append(file.read(1 << 16).decode("utf-8", "replace"))
