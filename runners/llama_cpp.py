"""llama.cpp, through llama-cpp-python: a tiny Llama says its sentence, greedily, on the backend asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from probes import witness
from probes.contract import Device, DeviceKind, Evidence, Finding, Status, Witness
from probes.host import Host
from runners import testimony
from runners.contract import (
    Backend,
    GenerateRequest,
    Generation,
    LanguageSession,
    OpenOptions,
    Placement,
    RunnerError,
    RuntimeUnavailable,
    Verdict,
)
from runners.llama_api import PACKAGE, GgmlDevice, LlamaApi
from runners.llama_session import LlamaSession
from runners.model import ModelInfo
from runners.tiny.make_gguf import ANSWER, BLOCKS

NAME = "llama_cpp"
LAYER = 5
BACKENDS = (
    Backend(name="cuda", api="cuda"),
    Backend(name="vulkan", api="vulkan"),
    Backend(name="cpu", api="", kind=DeviceKind.CPU),
)
REGISTERED = {"cuda": "CUDA", "vulkan": "Vulkan", "cpu": "CPU"}  # names in ggml's registry
TINY = Path(__file__).with_name("tiny") / "tiny.gguf"
# A build for the very machine that builds it (the default) dies with SIGILL on some processors, see docs.
BUILD = 'CMAKE_ARGS="-DGGML_NATIVE=OFF{}" pip install --force-reinstall --no-cache-dir llama-cpp-python'
REMEDIES = {
    "cuda": "build llama-cpp-python with CUDA: "
    + BUILD.format(" -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=87")
    + " (87 is Orin's architecture; 110 on Thor)",
    "vulkan": "build llama-cpp-python with Vulkan: " + BUILD.format(" -DGGML_VULKAN=ON"),
    "cpu": "build llama-cpp-python: " + BUILD.format(""),
}
PARTS = {  # of `general.type`
    "adapter": "an adapter",
    "mmproj": "a multimodal projector",
    "vocab": "a vocabulary",
    "imatrix": "an importance matrix",
}
NO_TEXT_ARCHITECTURES = {"clip", "bert", "nomic-bert", "jina-bert-v2", "t5", "t5encoder", "wavtokenizer-dec"}
VISIBLE_VULKAN = "GGML_VK_VISIBLE_DEVICES"
# What importing llama_cpp raises when a library is missing, or lacks a function as that of another release does
NO_RUNTIME = (ImportError, OSError, RuntimeError, AttributeError)


def accepts(model: ModelInfo) -> Verdict:
    """GGUF files of version 2 and up with a text-generating model; an architecture new to us is not refused."""
    if model.format != "gguf":
        return Verdict(accepted=False, reason=f"llama.cpp reads GGUF, and this is {model.format or 'something else'}")
    if 0 < model.format_version < 2:
        return Verdict(
            accepted=False,
            reason=f"GGUF version {model.format_version} is no longer read by llama.cpp",
            remedy="convert the original model again with a current llama.cpp",
        )
    kind = str(model.metadata.get("general.type", ""))
    if kind in PARTS or model.architecture in NO_TEXT_ARCHITECTURES:
        what = PARTS.get(kind) or f"of architecture '{model.architecture}'"
        return Verdict(
            accepted=False,
            reason=f"the file is {what}: it does not generate text by itself",
            remedy="name the language model's own file",
        )
    return Verdict(accepted=True)


def check(backend: str) -> Finding:
    """Load the bundled model on the first device of `backend`, and compare its answer and where it lay.

    The devices that it lists have the numbers that `open` takes: of Vulkan see `_position`.

    Returns: WORKS with what it answered; ABSENT when llama-cpp-python or this backend is not in it; UNKNOWN when the
        backend lists no device; BROKEN when it can't be loaded, answers wrongly, or ran elsewhere.
    """
    try:
        api = LlamaApi()
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            return _finding(backend, Status.ABSENT, "llama-cpp-python is not installed", REMEDIES[backend])
        return _finding(backend, Status.BROKEN, f"llama-cpp-python can't be imported: {error}")
    except NO_RUNTIME as error:
        return _finding(backend, Status.BROKEN, f"llama-cpp-python can't be imported: {error}", REMEDIES[backend])
    devices = [device for device in api.devices() if device.backend == REGISTERED[backend]]
    finding = _missing(api, backend) if not devices else _execute(api, backend, devices[0])
    ggml = api.ggml_version()
    numbers = _numbers(backend, len(devices))
    listed = tuple(
        Device(index=number, name=d.description or d.name, kind=d.kind, memory_bytes=d.memory_bytes)
        for number, d in zip(numbers, devices, strict=True)
    )
    facts = {
        **finding.facts,
        "ggml_backends": api.backends(),
        "system_info": api.functions.llama_print_system_info().decode("utf-8", "replace").strip(),
    }
    version = f"{api.version} (ggml {ggml})" if ggml else api.version
    return msgspec.structs.replace(finding, version=version, devices=listed, facts=facts)


def open(model: ModelInfo, options: OpenOptions) -> LanguageSession:
    """Load `model`: all layers on the one device asked for, or none on any GPU.

    Raises:
        RuntimeUnavailable: llama-cpp-python, its backend, or the device is not there.
        RunnerError: as `LlamaSession`.
    """
    if options.backend not in REGISTERED:
        raise RuntimeUnavailable(f"llama.cpp has no backend '{options.backend}' here; it has {', '.join(REGISTERED)}")
    position = _position(options.backend, options.device_index)
    try:
        api = LlamaApi()
    except NO_RUNTIME as error:
        raise RuntimeUnavailable(f"llama-cpp-python can't be imported: {error}", REMEDIES[options.backend]) from error
    if options.backend == "cpu":
        return LlamaSession(api, model.path, None, options)
    devices = [device for device in api.devices() if device.backend == REGISTERED[options.backend]]
    if not devices:
        missing = _missing(api, options.backend)
        raise RuntimeUnavailable(missing.reason, missing.remedy)
    if position >= len(devices):
        raise RuntimeUnavailable(
            f"{options.backend} device {options.device_index} was asked for; llama.cpp lists {len(devices)}"
        )
    return LlamaSession(api, model.path, devices[position], options)


def _numbers(backend: str, count: int) -> list[int]:
    """What the devices in ggml's list are called: their place, or Vulkan's own numbers where its variable names them.

    Left alone, ggml lists only Vulkan's GPUs, each once, and does not tell their numbers: these differ from the places
    as soon as a software device comes first. So the variable is never set for a number that came from the list.
    """
    named = os.environ.get(VISIBLE_VULKAN, "") if backend == "vulkan" else ""
    numbers = [int(part) for part in named.split(",") if part.strip().isascii() and part.strip().isdigit()]
    return numbers if len(numbers) == count else list(range(count))


def _position(backend: str, number: int) -> int:
    """The place in ggml's list of the device that `check` listed with this number.

    Raises:
        RuntimeUnavailable: the environment hides it.
    """
    visible = os.environ.get(VISIBLE_VULKAN, "")
    if backend != "vulkan" or not visible:
        return number
    numbers = [part.strip() for part in visible.split(",")]
    if str(number) not in numbers:
        raise RuntimeUnavailable(
            f"Vulkan device {number} is hidden by {VISIBLE_VULKAN}={visible}", f"unset {VISIBLE_VULKAN}"
        )
    return numbers.index(str(number))


def _missing(api: LlamaApi, backend: str) -> Finding:
    """Why there is no device of `backend`."""
    name = REGISTERED[backend]
    if name in api.backends():
        reason = f"this llama.cpp build has the {name} backend, which lists no device"
        if backend == "vulkan":
            reason += f" (it skips software devices unless {VISIBLE_VULKAN} names them)"
        return _finding(backend, Status.UNKNOWN, reason, f"see the finding on {backend}, on which this rests")
    library = api.library_folder() / f"libggml-{backend}.so"
    if library.exists():
        reason = f"{library.name} is there, but could not be loaded: a library below it is missing or too old"
        return _finding(backend, Status.BROKEN, reason, f"see the finding on {backend}, on which this rests")
    reason = f"this llama.cpp build has no {name} backend; it has {', '.join(api.backends())}"
    return _finding(backend, Status.ABSENT, reason, REMEDIES[backend])


def _execute(api: LlamaApi, backend: str, device: GgmlDevice) -> Finding:
    where = f"{device.name}, {device.description}"
    try:
        with witness.Watch(Host()) as watch:
            tokens, done, placement, splits = _count(api, None if backend == "cpu" else device)
    except RunnerError as error:
        return _finding(backend, Status.BROKEN, f"the bundled model did not run on {where}: {error.reason}")
    parts = placement.parts
    elsewhere = [part for part in parts if part.layers and part.device != device.name]
    proven = bool(parts) and not elsewhere
    evidence = Evidence(
        executed=f"Llama of {BLOCKS} blocks, {done.timing.output_tokens} tokens, greedy",
        device=device.description or device.name,
        device_kind=device.kind if proven else DeviceKind.UNKNOWN,
        value=done.text,
        expected=ANSWER,
        elapsed_s=done.timing.end_to_end_s,
        timer="host",
    )
    api_said = testimony.by_placement(placement, proven)
    said = watch.witnesses((evidence,), (os.getpid(),), _on_cpu(api, backend, evidence, tokens), api=api_said)
    facts = {"graph_splits": splits, "layers": {part.device: part.layers for part in parts}}
    status, reason = Status.WORKS, ""
    if done.text != ANSWER:
        status, reason = Status.BROKEN, f"the bundled model answered {done.text!r} on {where}, not {ANSWER!r}"
    elif not proven:
        found = ", ".join(f"{part.layers} on {part.device}" for part in elsewhere) or "nowhere that it tells"
        status, reason = Status.BROKEN, f"layers were asked for on {where}, and llama.cpp put {found}"
    return _finding(backend, status, reason, evidence=(evidence,), facts=facts, witnesses=said)


def _count(api: LlamaApi, device: GgmlDevice | None) -> tuple[list[int], Generation, Placement, int | None]:
    """The bundled model's answer on `device`, None for the CPU: ids of tokens, answer, placement, graph splits.

    Raises:
        RunnerError: it could not be loaded or run.
    """
    options = OpenOptions(backend="", context_tokens=256, threads=1)
    session = LlamaSession(api, str(TINY), device, options)
    try:
        done = session.generate(GenerateRequest(prompt="Count:", max_tokens=32), lambda piece: None, lambda: False)
        return session.tokens, done, session.placement(), session.log.graph_splits
    finally:
        session.close()


def _on_cpu(api: LlamaApi, backend: str, evidence: Evidence, tokens: list[int]) -> Witness:
    """The same answer from the CPU, token by token."""

    def work() -> tuple[bool, float | None]:
        others, done, _, _ = _count(api, None)
        return others == tokens, done.timing.end_to_end_s

    return testimony.by_cpu(backend, evidence, work)


def _finding(
    backend: str,
    status: Status,
    reason: str,
    remedy: str = "",
    evidence: tuple[Evidence, ...] = (),
    facts: Mapping[str, object] | None = None,
    witnesses: tuple[Witness, ...] = (),
) -> Finding:
    return Finding(
        subject=f"{NAME}/{backend}",
        layer=LAYER,
        status=status,
        reason=reason,
        remedy=remedy,
        evidence=evidence,
        witnesses=witnesses,
        facts=facts or {},  # type: ignore[arg-type]
    )
