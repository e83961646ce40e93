"""`run`: a prompt through a language model, or image files through a vision model, with proof and figures.

Text goes out on `streams/<id>` as it comes, vision results on `events/<pipeline>`; the end state has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent.verb import Context, VerbFailed

if TYPE_CHECKING:
    from agent.running import RunOptions, RunOutcome

REPEATABLE = False  # it costs minutes, and its text was streamed already
CONCURRENCY = 1
IMAGES_LIMIT = 100_000


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a chat; role is "system", "user" or "assistant"."""

    role: str
    content: str


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked: `prompt` or `messages` of a language model, `images` of a vision model.

    Attributes:
        model: a file in the device's model folder.
        prompt: raw text, used as it is.
        messages: a chat, put through the model's own template.
        images: image files in the device's model folder, relative to it.
        pipeline: name in the topic of the results.
        annotate: write annotated pictures into the state folder; each result names its own.
        require_gpu: fail rather than let any part run elsewhere.
        deadline_s: seconds; at most the device's own limit.
    """

    model: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    images: tuple[str, ...] = ()
    pipeline: str = "run"
    labels: tuple[str, ...] = ()
    batch: int = 0
    top: int = 3
    annotate: bool = False
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    runtime: str = ""
    context_tokens: int | None = None
    threads: int = 0
    require_gpu: bool = False
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be asked at once."""
        from agent.topics import check_level

        asked = sum(map(bool, (self.prompt, self.messages, self.images)))
        if asked != 1:
            raise ValueError(f"exactly one of prompt, messages and images is needed, {asked} are there")
        if len(self.images) > IMAGES_LIMIT:
            raise ValueError(f"{len(self.images)} images, at most {IMAGES_LIMIT} are allowed")
        if self.max_tokens < 1 or self.top < 1 or self.batch < 0 or self.threads < 0 or self.temperature < 0:
            raise ValueError("max_tokens and top are at least 1; batch, threads and temperature at least 0")
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ValueError("deadline_s is more than 0")
        check_level(self.pipeline, "the pipeline")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the run did.

    Attributes:
        route: the road that was taken.
        placement: where each part really ran, from the runtime's evidence.
        timing: see `runners.timing.Timing`.
        on_gpu: whether every part is proven to have run on a GPU.
        text: the whole answer of a language model.
        finish_reason: "stop" or "length".
        results_count: images answered, `errors_count` of them with an error.
    """

    model: str
    route: Any
    placement: Any
    timing: Any
    on_gpu: bool
    text: str = ""
    finish_reason: str = ""
    results_count: int = 0
    errors_count: int = 0


def run(arguments: Arguments, context: Context) -> Result:
    """Carry it out.

    Raises:
        RunnerError: no road, not loadable, failed on the way; "not_on_gpu", "worker_died" and others.
        VerbFailed: cancelled, or a survey was needed first, and failed.
    """
    from agent.running import RunOptions, file_in_folder

    path = file_in_folder(context.config.agent.models_dir, arguments.model)
    report = context.survey.report(context.cancelled, context.seconds_left())
    limit_s = context.seconds_left()
    options = RunOptions(
        require_gpu=arguments.require_gpu,
        allow_software_devices=context.config.routes.allow_software_devices,
        runtime=arguments.runtime,
        context_tokens=arguments.context_tokens,
        threads=arguments.threads,
        deadline_s=limit_s if arguments.deadline_s is None else min(arguments.deadline_s, limit_s),
    )
    carry_out = see if arguments.images else say
    outcome = carry_out(arguments, context, path, report, options)
    if context.cancelled():
        raise VerbFailed("cancelled", "the run was cancelled")
    return Result(
        model=arguments.model,
        route=outcome.route,
        placement=outcome.placement,
        timing=outcome.timing,
        on_gpu=outcome.on_gpu,
        text=outcome.text,
        finish_reason=outcome.finish_reason.value,
        results_count=outcome.results_count,
        errors_count=outcome.errors_count,
    )


def say(arguments: Arguments, context: Context, path: Path, report: Any, options: RunOptions) -> RunOutcome:
    """Put a prompt or a chat through a language model."""
    from agent.running import run_language
    from runners.contract import ChatMessage, GenerateRequest

    request = GenerateRequest(
        messages=tuple(ChatMessage(role=one.role, content=one.content) for one in arguments.messages),
        prompt=arguments.prompt,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        stop=arguments.stop,
    )
    return run_language(path, request, report, options, on_piece=context.stream, cancelled=context.cancelled)


def see(arguments: Arguments, context: Context, path: Path, report: Any, options: RunOptions) -> RunOutcome:
    """Put images through a vision model."""
    from agent.running import file_in_folder, run_vision
    from runners.contract import RequestRejected
    from runners.messages import Classify

    folder = context.config.agent.models_dir
    images = tuple(str(file_in_folder(folder, name, "image", RequestRejected)) for name in arguments.images)
    annotate_dir = ""
    if arguments.annotate:
        annotated = Path(context.config.agent.state_dir) / "annotated" / context.command_id
        try:
            annotated.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VerbFailed("annotate_unavailable", f"no folder for annotated pictures: {error}") from error
        annotate_dir = str(annotated)
    request = Classify(
        images=images,
        labels=arguments.labels,
        batch=arguments.batch,
        top=arguments.top,
        annotate_dir=annotate_dir,
    )
    told = 0

    def take(result: Mapping[str, Any]) -> None:
        nonlocal told
        told += 1
        context.event(arguments.pipeline, result)
        context.progress("classifying", told / len(images))

    return run_vision(path, request, report, options, on_result=take, cancelled=context.cancelled)
