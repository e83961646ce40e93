"""Which road a model takes on a device, and why every other road is refused. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from probes.contract import CapabilityReport, Device, DeviceKind, Finding, Status
from runners.contract import Backend, RequestRejected, Verdict
from runners.fit import Fit, choose_context, fit, is_language, largest_context
from runners.model import ModelInfo
from runners.registry import runners as all_runners


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One road: model -> runtime -> backend -> API -> device; accepted, or refused with a reason.

    Attributes:
        api: the compute API below the backend; "" for the CPU.
        rests_on: subjects of the findings it rests on.
    """

    runtime: str
    backend: str
    accepted: bool
    api: str = ""
    device: str = ""
    device_index: int = 0
    device_kind: DeviceKind = DeviceKind.UNKNOWN
    context_tokens: int | None = None
    fit: Fit | None = None
    reason: str = ""
    remedy: str = ""
    rests_on: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All roads for one model on one device: accepted ones in order of preference, then refused ones."""

    model: str
    accepted: tuple[Route, ...] = ()
    refused: tuple[Route, ...] = ()

    @property
    def best(self) -> Route | None:
        """The road to take, or None when there is none."""
        return self.accepted[0] if self.accepted else None


class RunnerLike(Protocol):
    """What a plan asks of a runner: see `runners.contract.Runner`."""

    BACKENDS: Sequence[Backend]

    def accepts(self, model: ModelInfo) -> Verdict:
        """Whether this runtime takes the model, device apart."""
        ...


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever asks for a plan wants.

    Attributes:
        require_gpu: refuse roads that end on a CPU.
        allow_software_devices: admit backends for GPUs on devices that are a CPU in truth (lavapipe, PoCL).
        runtime: only this one; "" for all.
        context_tokens: context that is demanded; None takes a modest one, and a smaller one where memory is short.
    """

    require_gpu: bool = False
    allow_software_devices: bool = False
    runtime: str = ""
    context_tokens: int | None = None


def plan(
    model: ModelInfo,
    report: CapabilityReport,
    runners: Mapping[str, RunnerLike] | None = None,
    *,
    require_gpu: bool = False,
    allow_software_devices: bool = False,
    runtime: str = "",
    context_tokens: int | None = None,
) -> Plan:
    """Judge each backend of each runner for a model.

    Args:
        model: as read from its file.
        report: what the device can do.
        runners: name -> runner; None takes those in this folder.
        require_gpu: see `Choices`, as for the next three.
        allow_software_devices: likewise.
        runtime: likewise.
        context_tokens: likewise.

    Returns: each backend once, accepted or refused; a runner that can't take the model is refused as a whole, with
        the backend "". Accepted roads: on a GPU, on a GPU with a smaller context, then the same on a CPU; the runner's
        own order of backends decides among equals.

    Raises:
        RequestRejected: the context asked for is no number of tokens.
    """
    if context_tokens is not None and context_tokens < 1:
        raise RequestRejected(f"a context of {context_tokens} tokens was asked for; it is at least 1")
    choices = Choices(
        require_gpu=require_gpu,
        allow_software_devices=allow_software_devices,
        runtime=runtime,
        context_tokens=context_tokens,
    )
    routes: list[Route] = []
    for name, runner in (all_runners() if runners is None else runners).items():
        verdict = runner.accepts(model)
        if not verdict.accepted:
            routes.append(_refused(name, "", verdict.reason, verdict.remedy))
            continue
        routes += [_judge(name, backend, model, report, choices) for backend in runner.BACKENDS]
    accepted = sorted((route for route in routes if route.accepted), key=lambda route: _rank(route, model, choices))
    refused = tuple(route for route in routes if not route.accepted)
    return Plan(model=model.path, accepted=tuple(accepted), refused=refused)


def _rank(route: Route, model: ModelInfo, choices: Choices) -> tuple[int, bool]:
    """Smaller is better; equals stay in the order of the runners and of their backends."""
    order = (DeviceKind.GPU, DeviceKind.NPU, DeviceKind.CPU, DeviceKind.UNKNOWN)
    smaller = is_smaller(route, model, choices.context_tokens)
    return order.index(route.device_kind), smaller


def is_smaller(route: Route, model: ModelInfo, context_tokens: int | None) -> bool:
    """Whether a road has a smaller context than was wanted, for lack of memory."""
    return route.context_tokens is not None and route.context_tokens < choose_context(model, context_tokens)


def _refused(runtime: str, backend: str, reason: str, remedy: str = "", **fields: Any) -> Route:
    return Route(runtime=runtime, backend=backend, accepted=False, reason=reason, remedy=remedy, **fields)


def _judge(name: str, backend: Backend, model: ModelInfo, report: CapabilityReport, choices: Choices) -> Route:
    """One backend: the device below it, what was demanded, then memory."""
    if choices.runtime and choices.runtime != name:
        return _refused(name, backend.name, f"another runtime was asked for: {choices.runtime}", api=backend.api)
    finding = report.finding(f"{name}/{backend.name}")
    if finding is None or finding.status is not Status.WORKS:
        return _refused(name, backend.name, *_not_working(name, backend, finding, report), api=backend.api)
    base = Route(runtime=name, backend=backend.name, accepted=False, api=backend.api, device_kind=finding.device_kind)
    device = _device(finding, report.finding(backend.api))
    base = msgspec.structs.replace(
        base,
        device=device.name if device else _evidence_device(finding),
        device_index=device.index if device else 0,
        rests_on=_rests_on(finding, backend, report),
    )
    objection = _wrong_device(base, backend, choices)
    if objection:
        return msgspec.structs.replace(base, reason=objection[0], remedy=objection[1])
    return _with_memory(base, model, available_bytes(report, backend, device), choices)


def _not_working(name: str, backend: Backend, finding: Finding | None, report: CapabilityReport) -> tuple[str, str]:
    """Reason and remedy for a backend whose check is missing or did not end well."""
    below = report.finding(backend.api) if backend.api else None
    if finding is None:
        reason = f"{name}/{backend.name} was not checked"
        remedy = f"edge-agent probe {name}/{backend.name}"
    else:
        reason = f"{finding.status.value}: {finding.reason or 'its check gave no reason'}"
        remedy = finding.remedy
    if below is not None and below.status is not Status.WORKS:
        reason += f"; below it, {below.subject} is {below.status.value}: {below.reason}"
        remedy = remedy if finding is not None and remedy else below.remedy or remedy
    return reason, remedy


def _wrong_device(route: Route, backend: Backend, choices: Choices) -> tuple[str, str] | None:
    """Reason and remedy when the device that answered is not of the kind that is promised or demanded."""
    where = route.device or "a device without a name"
    if route.device_kind is DeviceKind.UNKNOWN:
        return "its check did not prove on which device it ran", ""
    software = backend.kind is DeviceKind.GPU and route.device_kind is not DeviceKind.GPU
    if software and not choices.allow_software_devices:
        return (
            f"{where} is a software device ({route.device_kind.value}), not a GPU",
            "install the driver of the GPU, or admit software devices for a test: --allow-software-devices",
        )
    if choices.require_gpu and route.device_kind is not DeviceKind.GPU:
        return f"a GPU was demanded, and {where} is a {route.device_kind.value.upper()}", ""
    return None


def _with_memory(route: Route, model: ModelInfo, available: int | None, choices: Choices) -> Route:
    """The road with its fit: accepted, accepted with a smaller context where that is free to choose, or refused."""
    language = is_language(model)
    context = choose_context(model, choices.context_tokens) if language else None
    needs = fit(model, route.device_kind, context, available)
    route = msgspec.structs.replace(route, context_tokens=context, fit=needs)
    if needs.fits is not False:
        notes = [] if needs.fits else ["whether it fits into memory could not be told"]
        if context and choices.context_tokens and context < choices.context_tokens:
            notes.append(
                f"context lowered from {choices.context_tokens} to the {context} tokens of the model's training"
            )
        return msgspec.structs.replace(route, accepted=True, reason="; ".join(notes))
    reason = f"it does not fit: it needs {_told(needs.needed_bytes)} ({_told_terms(needs)}) of {_told(available)}"
    smaller = largest_context(model, route.device_kind, context, available) if context else None
    if smaller is None:
        remedy = "free memory, or take a smaller or more strongly quantised model"
        return msgspec.structs.replace(route, reason=reason, remedy=remedy)
    if choices.context_tokens is not None:
        return msgspec.structs.replace(route, reason=reason, remedy=f"a context of {smaller} tokens fits")
    return msgspec.structs.replace(
        route,
        accepted=True,
        context_tokens=smaller,
        fit=fit(model, route.device_kind, smaller, available),
        reason=f"context lowered from {context} to {smaller} tokens, which is what fits into memory",
    )


def available_bytes(report: CapabilityReport, backend: Backend, device: Device | None) -> int | None:
    """Memory that a model may have there; None when the report does not tell.

    A Jetson's GPU shares the system's memory, so that what the system has available counts, and never more than the
    device has at all. Only where the API below says `integrated: false` does the device's own memory count alone: what
    CUDA found free of its device 0, and of others, of which nobody says what is free, all.
    """
    system = _bytes(report.finding("memory"), "memory_available_bytes")
    if backend.kind is DeviceKind.CPU or device is None or device.memory_bytes is None:
        return system
    below = report.finding(backend.api)
    if below is not None and below.facts.get("integrated") is False:
        by_cuda = backend.api in ("cuda", "tensorrt") and device.index == 0
        free = _bytes(report.finding("cuda"), "cuda_memory_free_bytes") if by_cuda else None
        return device.memory_bytes if free is None else min(free, device.memory_bytes)
    return device.memory_bytes if system is None else min(system, device.memory_bytes)


def _bytes(finding: Finding | None, name: str) -> int | None:
    fact = finding.facts.get(name) if finding else None
    return fact if isinstance(fact, int) else None


def _device(finding: Finding, below: Finding | None) -> Device | None:
    """The listed device on which the check was executed; else the first of the proven kind.

    A runtime that lists none (ONNX Runtime) was checked on number 0 of the API below.
    """
    if not finding.devices:
        same_kind = (one for one in (below.devices if below else ()) if one.kind is finding.device_kind)
        return next((one for one in same_kind if one.index == 0), None)
    name = _evidence_device(finding)
    listed = [device for device in finding.devices if device.kind is finding.device_kind]
    return next((device for device in listed if device.name == name), listed[0] if listed else None)


def _evidence_device(finding: Finding) -> str:
    proven = (one for one in finding.evidence if one.is_right)
    return next((one.device for one in proven if one.device_kind is finding.device_kind), "")


def _rests_on(finding: Finding, backend: Backend, report: CapabilityReport) -> tuple[str, ...]:
    below = [subject for subject in (backend.api, "memory") if subject and report.finding(subject)]
    return (finding.subject, *below)


def _told(count: int | None) -> str:
    if count is None:
        return "an unknown amount"
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def _told_terms(needs: Fit) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_told(count)}" for name, count in needs.terms.items())
