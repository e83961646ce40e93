"""What `edge-agent plan | run | config` do when somebody types them: no daemon is needed for it.

Each function returns the exit status; see `agent.cli`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from agent.cli import EXIT_FAILED, EXIT_NOT_ON_ACCELERATOR, EXIT_USAGE, fail
from agent.report import survey_report
from probes.contract import SCHEMA_VERSION, CapabilityReport, DeviceKind, Finding
from probes.host import Host
from runners.contract import RunnerError

if TYPE_CHECKING:
    from agent.running import RunOptions, RunOutcome
    from runners.model import ModelInfo

REPORT_LIMIT_BYTES = 16 << 20


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")


def print_line(value: Any) -> None:
    """One JSON document on one line of stdout, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def fail_with(error: RunnerError, as_json: bool) -> int:
    """Say an expected trouble with its remedy; returns the exit status."""
    code = EXIT_NOT_ON_ACCELERATOR if error.code == "not_on_gpu" else EXIT_FAILED
    if as_json:
        print_line({"error": {"code": error.code, "reason": error.reason, "remedy": error.remedy}})
    from runners.formats.gguf import printable

    told = error.reason + (f"\n  → {error.remedy}" if error.remedy else "")
    click.echo(f"edge-agent: {printable(told)}", err=True)
    return code


@contextlib.contextmanager
def survey_progress(quiet: bool) -> Iterator[Callable[[Finding], None] | None]:
    """A line on a terminal's stderr that tells which checks have ended; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("executing checks …") as status:
        ended: list[str] = []

        def tell(finding: Finding) -> None:
            ended.append(finding.subject)
            status.update(f"executing checks … {len(ended)} ended, last {finding.subject}")

        yield tell


def read_report(path: str) -> bytes:
    """The bytes of a saved report; a pipe is welcome: `--report <(ssh DEVICE edge-agent probe --json)`.

    Raises:
        OSError: it can't be read, or has no end.
    """
    with open(path, "rb") as file:
        data = file.read(REPORT_LIMIT_BYTES + 1)
    if len(data) > REPORT_LIMIT_BYTES:
        raise OSError(f"it is longer than {REPORT_LIMIT_BYTES >> 20} MiB")
    return data


def load_report(path: str) -> CapabilityReport:
    """A saved report.

    Raises:
        RunnerError: it can't be read, or is none of this version.
    """
    try:
        report = msgspec.json.decode(read_report(path), type=CapabilityReport)
    except (OSError, RecursionError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunnerError(f"{path}: not a report: {error}", "make one: edge-agent probe --json > FILE") from error
    if report.schema_version != SCHEMA_VERSION:
        raise RunnerError(
            f"{path}: a report of schema version {report.schema_version}; this edge-agent reads {SCHEMA_VERSION}",
            "make a new one: edge-agent probe --json > FILE",
        )
    return report


def report_for(model: ModelInfo, quiet: bool, root: str = "/", saved: str | None = None) -> CapabilityReport:
    """What a plan for this model rests on: a saved report, or the checks that concern it, executed now.

    Raises:
        RunnerError: the saved report can't be read.
    """
    if saved is not None:
        return load_report(saved)
    from runners.registry import runners

    subjects = ["hardware", "jetpack", "memory"]
    for name, runner in runners().items():
        if runner.accepts(model).accepted:
            subjects += [f"{name}/{backend.name}" for backend in runner.BACKENDS]
    with survey_progress(quiet) as tell:
        return survey_report(Host(root), subjects=tuple(subjects), on_finding=tell)


# ---- plan ----------------------------------------------------------------------------------------------------------


def run_plan(
    model: str,
    *,
    as_json: bool,
    root: str,
    report_path: str | None,
    require_gpu: bool,
    allow_software_devices: bool,
    runtime: str,
    context_tokens: int | None,
) -> int:
    """Show every road; 1 when none is open, 3 when none is open on the GPU that was demanded."""
    from runners.inspect import inspect
    from runners.route import plan as make_plan

    check_runtime(runtime)
    try:
        info = inspect(model)
        report = report_for(info, as_json, root, report_path)
        choices: dict[str, Any] = {"runtime": runtime, "context_tokens": context_tokens}
        choices["allow_software_devices"] = allow_software_devices
        plan = make_plan(info, report, require_gpu=require_gpu, **choices)
        on_cpu = require_gpu and not plan.best and make_plan(info, report, **choices).best
    except RunnerError as error:
        return fail_with(error, as_json)
    if as_json:
        print_json({"model": info, "plan": plan})
    else:
        from agent import show

        show.print_plan(show.make_console(), plan, info)
    if plan.best and (not require_gpu or plan.best.device_kind is DeviceKind.GPU):
        return 0
    return EXIT_NOT_ON_ACCELERATOR if on_cpu or plan.best else EXIT_FAILED


def check_runtime(runtime: str) -> None:
    """End with 2 for a runtime that no runner is for."""
    from runners.registry import runners

    if runtime and runtime not in runners():
        fail(f"no runtime is called {runtime!r}; there are: {', '.join(runners())}", EXIT_USAGE)


# ---- run -----------------------------------------------------------------------------------------------------------


def run_model(model: str, inputs: Sequence[str], *, as_json: bool, report_path: str | None, **options: Any) -> int:
    """Run a prompt or images through a model; show the answer, the proof and the figures."""
    from agent.running import LANGUAGE_TASKS, RunOptions
    from runners.inspect import inspect

    check_runtime(options["runtime"])
    run_options = RunOptions(
        require_gpu=options["require_gpu"],
        allow_software_devices=options["allow_software_devices"],
        runtime=options["runtime"],
        context_tokens=options["context_tokens"],
        threads=options["threads"],
    )
    try:
        info = inspect(model)
        run = run_prompt if info.task in LANGUAGE_TASKS else run_images
        if not inputs:
            wanted = "a prompt" if run is run_prompt else "image files or a folder"
            fail(f"{model} needs {wanted}: edge-agent run {model} ...", EXIT_USAGE)
        report = report_for(info, as_json, saved=report_path)
        outcome = run(info, inputs, report, run_options, as_json, options)
    except RunnerError as error:
        return fail_with(error, as_json)
    if as_json and run is run_images:
        print_line({"outcome": outcome})
    elif as_json:
        print_json(outcome)
    else:
        from agent import show

        label = show.model_label(outcome.model)
        show.print_run(show.make_console(), label, outcome.route, outcome.placement, outcome.timing)
    return EXIT_FAILED if outcome.errors_count else 0


def run_prompt(
    info: ModelInfo,
    inputs: Sequence[str],
    report: CapabilityReport,
    run_options: RunOptions,
    as_json: bool,
    options: Mapping[str, Any],
) -> RunOutcome:
    """Stream an answer to stdout."""
    from agent.running import run_language
    from runners.contract import ChatMessage, GenerateRequest

    prompt = " ".join(inputs)
    chat = info.task == "chat" and not options["raw"]
    system = (ChatMessage(role="system", content=options["system_prompt"]),) if options["system_prompt"] else ()
    request = GenerateRequest(
        messages=(*system, ChatMessage(role="user", content=prompt)) if chat else (),
        prompt="" if chat else prompt,
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        seed=options["seed"],
        stop=options["stop"],
    )

    def show_piece(text: str) -> None:
        if not as_json:
            sys.stdout.write(text)
            sys.stdout.flush()

    outcome = run_language(info.path, request, report, run_options, on_piece=show_piece)
    show_piece("\n\n")
    return outcome


def run_images(
    info: ModelInfo,
    inputs: Sequence[str],
    report: CapabilityReport,
    run_options: RunOptions,
    as_json: bool,
    options: Mapping[str, Any],
) -> RunOutcome:
    """Print one line per image as it is answered; with --json as JSON lines, the last of which is the outcome."""
    from agent import show
    from agent.running import run_vision
    from runners.formats.gguf import printable
    from runners.messages import Classify
    from runners.vision.inputs import expand

    request = Classify(
        images=tuple(expand(inputs)),
        batch=options["batch"],
        top=options["top"],
        annotate_dir=str(Path(options["annotate"]).absolute()) if options["annotate"] else "",
    )

    def show_result(result: Mapping[str, Any]) -> None:
        if as_json:
            print_line(result)
        else:
            click.echo(printable(show.classes_text(dict(result))))

    return run_vision(info.path, request, report, run_options, on_result=show_result)


# ---- config --------------------------------------------------------------------------------------------------------


def run_config(path: str | None, as_json: bool) -> int:
    """Show every setting in force and where it is from; 2 when the configuration is wrong."""
    from agent.config import ConfigError, describe, load

    try:
        config = load(path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    rows = describe(config)
    if as_json:
        print_json({"path": config.path, "settings": {key: {"value": v, "source": s} for key, v, s in rows}})
        return 0
    from rich.table import Table

    from agent import show

    table = Table("setting", "value", "from", title=config.path, title_justify="left")
    for key, value, source in rows:
        table.add_row(key, str(value), source)
    show.make_console().print(table)
    return 0
