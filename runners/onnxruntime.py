"""ONNX Runtime: runs .onnx models on the CPU, by CUDA or by TensorRT, and proves node by node where.

Asked for a provider that it can't create, ONNX Runtime goes on with the CPU and says so on stderr at most. Here each
session tells its nodes' providers (see `runners/ort_profile.py`), and a provider that did not come up is an error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes import l4t
from probes.contract import DeviceKind, Evidence, Finding, Status
from probes.host import Host
from runners.contract import (
    Backend,
    OpenOptions,
    Placement,
    RunnerError,
    RuntimeUnavailable,
    Verdict,
)
from runners.model import ModelInfo
from runners.ort_accepts import verdict
from runners.ort_errors import cause, is_no_device, missing_provider_remedy, provider_cause, remedy
from runners.ort_session import OrtSession, library_errors, translated
from runners.tiny.make_onnx import ANSWER, INPUT

NAME = "onnxruntime"
LAYER = 4
BACKENDS = (
    Backend(name="tensorrt", api="tensorrt", kind=DeviceKind.GPU),
    Backend(name="cuda", api="cuda", kind=DeviceKind.GPU),
    Backend(name="cpu", kind=DeviceKind.CPU),
)
PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

TINY = Path(__file__).parent / "tiny" / "tiny.onnx"
TINY_EXECUTED = "tiny.onnx: convolution, ReLU and matrix product of 16 numbers"

# The official Linux builds from 1.29 on report sessions and models to their maker, unless this is set
NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"

KEY_STRICT = "session.disable_cpu_ep_fallback"
KEY_RECORD = "session.record_ep_graph_assignment_info"
STRICT_MESSAGE = "fallback to CPU EP has been explicitly disabled"


def accepts(model: ModelInfo) -> Verdict:
    """Whether ONNX Runtime takes the model, device apart, by format, IR version and operator sets."""
    return verdict(model)


# --- the library ---


def _load_library() -> Any:
    """The `onnxruntime` package.

    Raises:
        RuntimeUnavailable: not installed, or there but not importable.
    """
    os.environ.setdefault(NO_TELEMETRY, "1")  # before the import: it starts then
    try:
        library = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise _Absent(f"Python package {error.name} is not installed", "pip install 'edge-agent[onnx]'") from error
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


class _Absent(RuntimeUnavailable):
    """Not installed, not built in, or no such hardware: nothing is broken."""


def _require_provider(library: Any, backend: str) -> str:
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
    packages = _installed_packages()
    reason = f"{' and '.join(packages) or 'this build of ONNX Runtime'} {library.__version__} has no {provider}"
    if len(packages) > 1:
        raise _Absent(
            f"{reason}: the packages overwrite each other",
            f"pip uninstall {' '.join(packages)}, then install onnxruntime-gpu alone",
        )
    l4t_major = l4t.major(l4t.read_release(Host()))
    advice = missing_provider_remedy(backend, platform.machine(), sys.version_info[:2], l4t_major)
    raise _Absent(reason, advice)


def _installed_packages() -> list[str]:
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
def _captured_stderr() -> Iterator[list[str]]:
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


# --- the check ---


def check(backend: str) -> Finding:
    """Execute the bundled tiny model on `backend` and compare with the known answer; in a child process.

    Returns: WORKS only when every node is proven to have run on the backend's own provider;
        ABSENT when the library, the provider in it, or an NVIDIA GPU is not there; BROKEN for anything else.
    """
    version = ""
    try:
        version = str(_load_library().__version__)
        answer, elapsed_s, placement = _execute_tiny(backend)
    except RunnerError as error:
        return Finding(
            subject=f"{NAME}/{backend}",
            layer=LAYER,
            status=Status.ABSENT if isinstance(error, _Absent) else Status.BROKEN,
            reason=error.reason,
            remedy=error.remedy,
            version=version,
        )
    return _judged(backend, version, answer, elapsed_s, placement)


def _execute_tiny(backend: str) -> tuple[tuple[float, ...], float, Placement]:
    """The tiny model's answer, the seconds of one warm run, and where its nodes ran."""
    import numpy as np

    picture: Any = np.asarray(INPUT, np.float32).reshape(1, 1, 4, 4)
    model = ModelInfo(path=str(TINY), format="onnx", size_bytes=TINY.stat().st_size)
    session = open(model, OpenOptions(backend=backend, strict=True))
    try:
        session.run({"x": picture})  # the first run loads kernels
        start_s = time.perf_counter()
        answer = session.run({"x": picture})["y"]
        elapsed_s = time.perf_counter() - start_s
        return tuple(round(float(number), 3) for number in answer.ravel()), elapsed_s, session.placement()
    finally:
        session.close()


def _judged(backend: str, version: str, answer: tuple[float, ...], elapsed_s: float, placement: Placement) -> Finding:
    kind = next(known.kind for known in BACKENDS if known.name == backend)
    proven = bool(placement.parts) and all(part.device == PROVIDERS[backend] for part in placement.parts)
    evidence = Evidence(
        executed=TINY_EXECUTED,
        device="CPU" if kind is DeviceKind.CPU else f"{PROVIDERS[backend]}, device 0",
        device_kind=kind if proven else DeviceKind.UNKNOWN,
        value=_numbers(answer),
        expected=_numbers(ANSWER),
        elapsed_s=elapsed_s,
        timer="host",
    )
    reason = ""
    if answer != ANSWER:
        reason = f"{TINY_EXECUTED} gave {evidence.value}, not {evidence.expected}"
    elif not proven:
        reason = f"the answer is right, but {_off_target(placement, PROVIDERS[backend])}"
    return Finding(
        subject=f"{NAME}/{backend}",
        layer=LAYER,
        status=Status.BROKEN if reason else Status.WORKS,
        reason=reason,
        version=version,
        facts={
            "packages": _installed_packages(),
            "nodes": sum(part.nodes or 0 for part in placement.parts),
            "placement_source": placement.source,
        },
        evidence=(evidence,),
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# --- loading ---


def open(model: ModelInfo, options: OpenOptions) -> OrtSession:
    """Load the model on one backend.

    Args:
        model: a file that `accepts` took.
        options: `device_index` is CUDA's number; `threads` are those within one operator; `strict` lets no node
            run on the CPU.

    Raises:
        ModelRejected: the file is damaged, or not for this release.
        RuntimeUnavailable: the library or the backend is not usable, or a strict load finds nodes for the CPU.
        OutOfDeviceMemory: there is not enough memory for it.
    """
    library = _load_library()
    provider = _require_provider(library, options.backend)
    strict = options.strict and provider != PROVIDERS["cpu"]
    session, stderr = _create(library, model, options, strict)
    refused = session is None
    if session is None:  # a strict load found nodes for the CPU: load again, to tell which and why
        session, stderr = _create(library, model, options, strict=False)
    if session is None or provider not in session.get_providers():
        why = provider_cause(stderr) or "it does not say why"
        kind = _Absent if is_no_device(why) else RuntimeUnavailable
        raise kind(f"ONNX Runtime {library.__version__} could not start {provider}: {why}", remedy(stderr))
    opened = OrtSession(session, model, profiling=not _can_record(library))
    if not refused:
        return opened
    placement = opened.placement()
    opened.close()
    raise RuntimeUnavailable(
        f"a strict run was asked for, and {_off_target(placement, provider)}: {Path(model.path).name}",
        "run it without demanding the GPU, or export the model without these operators",
    )


def _off_target(placement: Placement, provider: str) -> str:
    elsewhere = [f"{part.device} {part.nodes}" for part in placement.parts if part.device != provider]
    total = sum(part.nodes or 0 for part in placement.parts)
    return f"not all of {total} nodes would run on {provider} ({', '.join(elsewhere) or 'it does not say which'})"


def _create(library: Any, model: ModelInfo, options: OpenOptions, strict: bool) -> tuple[Any, str]:
    """A session and what was said on stderr meanwhile; None for it when a strict load found nodes for the CPU."""
    settings = _settings(library, options, strict)
    failure: Exception | None = None
    session = None
    with _captured_stderr() as told, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about providers that are not built in: those were refused by name
        try:
            session = library.InferenceSession(
                model.path, settings, providers=_providers(options, strict), enable_fallback=0
            )
        except library_errors() as error:
            failure = error
    if failure is None:
        return session, told[0]
    if settings.enable_profiling:
        shutil.rmtree(Path(settings.profile_file_prefix).parent, ignore_errors=True)
    if strict and STRICT_MESSAGE in str(failure):
        return None, told[0]
    raise translated(failure, model, "load", told[0]) from failure


def _can_record(library: Any) -> bool:
    return hasattr(library.InferenceSession, "get_provider_graph_assignment_info")


def _settings(library: Any, options: OpenOptions, strict: bool) -> Any:
    settings = library.SessionOptions()
    settings.log_severity_level = 3  # errors; warnings of ORT are many and about its own optimiser
    settings.intra_op_num_threads = options.threads
    # Idle threads of the pool would spin and take the cores that decode the next picture: 8.3 against 11.8 ms a
    # picture on 2 busy cores (benchmarks/vision_pipeline.py), although one run alone is quicker with spinning.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if strict:
        settings.add_session_config_entry(KEY_STRICT, "1")
    if _can_record(library):
        settings.add_session_config_entry(KEY_RECORD, "1")
    else:  # before 1.27, which is all that Python 3.10 gets: profile the first run instead
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(tempfile.mkdtemp(prefix="edge-agent-ort-")) / "profile")
    return settings


def _providers(options: OpenOptions, strict: bool) -> list[Any]:
    own = PROVIDERS[options.backend]
    if options.backend == "cpu":
        return [own]
    device = {"device_id": str(options.device_index)}
    chosen: list[Any] = [(own, device)]
    if options.backend == "tensorrt":  # what TensorRT can't build stays on the same GPU
        chosen.append((PROVIDERS["cuda"], device))
    return chosen if strict else [*chosen, PROVIDERS["cpu"]]
