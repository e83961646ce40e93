"""One model, run from its file to its figures: inspect, plan, load in a worker, answer, prove the placement.

Used by `edge-agent run` and by the daemon's `run` command alike.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from probes.contract import CapabilityReport, DeviceKind
from runners.contract import (
    FinishReason,
    GenerateRequest,
    ModelRejected,
    OpenOptions,
    Placement,
    RunnerError,
    RuntimeUnavailable,
)
from runners.inspect import inspect
from runners.messages import Classify, Done, Generate
from runners.model import ModelInfo
from runners.route import Plan, Route
from runners.route import plan as make_plan
from runners.timing import Timing
from runners.worker import Worker

CANCEL_POLL_S = 0.1
CANCEL_GRACE_S = 5.0  # from a cancel that the worker does not answer to the end of its process
DEFAULT_CONTEXT_TOKENS = 2048
LOAD_S = 1800.0  # where no deadline is set: a large model from an SD card takes minutes
LANGUAGE_TASKS = ("chat", "completion")


class NotOnAccelerator(RunnerError):
    """A GPU was demanded, and the model did not, or would not, run on one."""

    code = "not_on_gpu"


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is to be run.

    Attributes:
        require_gpu: fail rather than let any part run elsewhere.
        allow_software_devices: let llvmpipe, PoCL and the like stand in for a GPU; they never satisfy `require_gpu`.
        runtime: only this one; "" for the best.
        context_tokens: to reserve (LLM only); None lets the route decide.
        threads: CPU threads; 0 lets the runner choose.
        deadline_s: seconds for loading and answering together; None for no limit.
    """

    require_gpu: bool = False
    allow_software_devices: bool = False
    runtime: str = ""
    context_tokens: int | None = None
    threads: int = 0
    deadline_s: float | None = None


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        route: the road that was taken.
        placement: where each part really ran, from the runtime's evidence.
        text: the whole answer of a language model.
        results_count: images answered, of which `errors_count` with an error.
        on_gpu: whether every part is proven to have run on a GPU.
    """

    model: ModelInfo
    plan: Plan
    route: Route
    placement: Placement
    timing: Timing
    text: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    results_count: int = 0
    errors_count: int = 0
    on_gpu: bool = False


def run_language(
    model_path: str | Path,
    request: GenerateRequest,
    report: CapabilityReport,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_piece: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> RunOutcome:
    """Answer one request with a language model.

    Args:
        model_path: the file.
        request: what is asked.
        report: what this device can do.
        options: see `RunOptions`.
        on_piece: called with each new piece of text.
        cancelled: asked several times a second; true ends the run.

    Returns: also of a run that was cancelled: its finish reason says so, and the text is what there was.

    Raises:
        RunnerError: there is no road, it can't be loaded, or it failed on the way; `Cancelled` before any answer.
        NotOnAccelerator: `require_gpu`, and it is not wholly on one.
    """
    info, plan, route = choose(model_path, report, options)
    if info.task not in LANGUAGE_TASKS:
        raise ModelRejected(
            f"{Path(info.path).name} is a {info.task or info.format} model: it takes no prompt", "give it images"
        )
    with opened(route, info, options, cancelled) as (worker, until_s):
        done = ask(worker, Generate(request=request), cancelled, until_s, on_piece=on_piece)
    return outcome(info, plan, route, done, options, text=done.text)


def run_vision(
    model_path: str | Path,
    request: Classify,
    report: CapabilityReport,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_result: Callable[[Mapping[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> RunOutcome:
    """Put image files through a vision model.

    Args:
        model_path: the file.
        request: images and how to answer them.
        report: what this device can do.
        options: see `RunOptions`.
        on_result: called with each image's result, in order; an unreadable image has "error" in it.
        cancelled: asked several times a second; true ends the run.

    Raises:
        RunnerError, NotOnAccelerator: as `run_language`.
    """
    info, plan, route = choose(model_path, report, options)
    if info.task in LANGUAGE_TASKS:
        raise ModelRejected(f"{Path(info.path).name} is a language model: it takes no images", "give it a prompt")
    counts = {"results": 0, "errors": 0}

    def take(result: Mapping[str, Any]) -> None:
        counts["results"] += 1
        counts["errors"] += bool(result.get("error"))
        if on_result is not None:
            on_result(result)

    with opened(route, info, options, cancelled) as (worker, until_s):
        done = ask(worker, request, cancelled, until_s, on_result=take)
    return outcome(info, plan, route, done, options, results_count=counts["results"], errors_count=counts["errors"])


def choose(model_path: str | Path, report: CapabilityReport, options: RunOptions) -> tuple[ModelInfo, Plan, Route]:
    """What the file is, all roads for it, and the one to take.

    Raises:
        ModelRejected: the file is not a model that can be read.
        RuntimeUnavailable: every road is refused; the reasons are told.
        NotOnAccelerator: a GPU is demanded, and the best road is on none.
    """
    info = inspect(str(model_path))
    plan = make_plan(
        info,
        report,
        runtime=options.runtime,
        context_tokens=options.context_tokens,
        allow_software_devices=options.allow_software_devices,
    )
    best = plan.best
    if best is None:
        raise RuntimeUnavailable(f"no road for {plan.model}: {reasons(plan.refused)}", first_remedy(plan.refused))
    if options.require_gpu and best.device_kind is not DeviceKind.GPU:
        on_gpu = [route for route in plan.refused if route.backend != "cpu"] or list(plan.refused)
        raise NotOnAccelerator(
            f"a GPU was demanded, but the best road for {plan.model} is {best.runtime}/{best.backend} on "
            f"{best.device or best.device_kind.value}" + (f"; refused: {reasons(on_gpu)}" if on_gpu else ""),
            first_remedy(on_gpu),
        )
    return info, plan, best


def reasons(routes: tuple[Route, ...] | list[Route]) -> str:
    """Refused roads in one line."""
    return "; ".join(f"{'/'.join(x for x in (r.runtime, r.backend) if x)}: {r.reason}" for r in routes)


def first_remedy(routes: tuple[Route, ...] | list[Route]) -> str:
    """The first thing that could be done about refused roads; "" when nothing is known."""
    return next((route.remedy for route in routes if route.remedy), "")


@contextlib.contextmanager
def opened(
    route: Route, info: ModelInfo, options: RunOptions, cancelled: Callable[[], bool]
) -> Iterator[tuple[Worker, float | None]]:
    """The model, loaded in a worker; with the monotonic time by which all must be done."""
    until_s = None if options.deadline_s is None else time.monotonic() + options.deadline_s
    settings = OpenOptions(
        backend=route.backend,
        device_index=route.device_index,
        context_tokens=route.context_tokens or options.context_tokens or DEFAULT_CONTEXT_TOKENS,
        threads=options.threads,
        strict=options.require_gpu,
    )
    load_s = LOAD_S if options.deadline_s is None else options.deadline_s
    with Worker.start(route.runtime, info.path, settings, deadline_s=load_s, cancelled=cancelled) as worker:
        demand_gpu(worker.opened.placement, route, options)
        yield worker, until_s


def demand_gpu(placement: Placement, route: Route, options: RunOptions) -> None:
    """Refuse what did not land wholly on a GPU, when one was demanded."""
    if options.require_gpu and not placement.all_on(DeviceKind.GPU):
        parts = ", ".join(f"{part.device} ({part.device_kind.value})" for part in placement.parts) or "not proven"
        raise NotOnAccelerator(f"a GPU was demanded, but {route.runtime}/{route.backend} placed the model on: {parts}")


def ask(
    worker: Worker,
    message: Generate | Classify,
    cancelled: Callable[[], bool],
    until_s: float | None,
    **callbacks: Any,
) -> Done:
    """One request, which ends early when `cancelled` says so."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(CANCEL_POLL_S):
            if cancelled():
                worker.cancel()
                if not finished.wait(CANCEL_GRACE_S):
                    worker.kill()
                return

    watcher = threading.Thread(target=watch, name=f"cancel-{worker.pid}", daemon=True)
    watcher.start()
    try:
        left_s = None if until_s is None else max(0.1, until_s - time.monotonic())
        return worker.request(message, deadline_s=left_s, **callbacks)
    finally:
        finished.set()
        watcher.join()


def outcome(info: ModelInfo, plan: Plan, route: Route, done: Done, options: RunOptions, **fields: Any) -> RunOutcome:
    """Put a run together; where it ran is judged by the proof, not by the route."""
    demand_gpu(done.placement, route, options)
    return RunOutcome(
        model=info,
        plan=plan,
        route=route,
        placement=done.placement,
        timing=done.timing,
        finish_reason=done.finish_reason,
        on_gpu=done.placement.all_on(DeviceKind.GPU),
        **fields,
    )


def file_in_folder(folder: str, name: str, what: str = "model", error: type[RunnerError] = ModelRejected) -> Path:
    """A file that a command names, which must lie in `folder`.

    Args:
        folder: the only place allowed.
        name: relative to it; an absolute path is taken when it lies inside.
        what: the word for messages.
        error: what is raised.

    Raises:
        RunnerError: it lies elsewhere (links are followed), or is not there.
    """
    base = Path(folder).resolve()
    try:
        path = (base / name).resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError) as trouble:  # NUL in the name, a ring of links
        raise error(f"{what} {name[:200]!r}: {trouble}") from trouble
    if not path.is_relative_to(base):
        raise error(f"{what} {name[:200]!r} is outside of {folder}", f"put the file itself into {folder}")
    if not there:
        raise error(f"{what} {name[:200]!r}: no such file in {folder}")
    return path
