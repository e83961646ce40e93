"""The command line. Only click is imported up front; each command imports what it needs when it is called."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from agent.version import VERSION
from probes.command_line import drop_output, output_trouble, prepare_streams

EXIT_FAILED = 1  # the thing asked for failed
EXIT_USAGE = 2  # wrong usage or configuration
EXIT_NOT_ON_ACCELERATOR = 3  # it works, but not on the accelerator that was demanded

COUNT_LIMIT = 1 << 30  # what a C int of any runtime holds
SEED_LIMIT = (1 << 32) - 1  # a uint32_t in llama.cpp
THREADS_LIMIT = 512  # GGML_MAX_N_THREADS; ggml crashes above

EXIT_CODES = """\b
Exit codes: 0 fine; 1 the thing asked for failed; 2 wrong usage or configuration;
3 it works, but not on the accelerator that was demanded."""


def number(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    """A value that is a number: "nan" passes every comparison with bounds."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a number", param=parameter)
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
quick_option = click.option("--quick", is_flag=True, help="Only read facts; execute nothing.")
now_option = click.option("--now", is_flag=True, help="Execute checks while a pipeline runs, too.")
saved_option = click.option(
    "--report", "report_path", type=click.Path(exists=True, dir_okay=False), help="A saved `probe --json`."
)
root_option = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False),
    default="/",
    help="Read a recorded device: a folder with its files. Nothing is executed then.",
)
require_gpu_option = click.option(
    "--require-gpu", is_flag=True, help="End with 3 rather than run any part of the model on the CPU."
)
software_option = click.option(
    "--allow-software-devices",
    is_flag=True,
    help="Let llvmpipe, PoCL and the like stand in for a GPU (for tests; still reported as cpu).",
)
runtime_option = click.option("--runtime", default="", metavar="NAME", help="Only this runtime, e.g. llama_cpp.")
context_option = click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(16, COUNT_LIMIT),
    metavar="TOKENS",
    help="Context to reserve for an LLM.",
)


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="edge-agent")
def cli() -> None:
    """Make the AI inference stack on this device true: execute it, prove it, run models on it."""


@cli.command(
    epilog="""\b
Examples:
  edge-agent probe
  edge-agent probe --only vulkan,opencl
  edge-agent probe --quick --json
  edge-agent probe --save report.json --html report.html
  edge-agent probe --diff report.json"""
)
@click.argument("subjects", nargs=-1)
@click.option("--only", multiple=True, metavar="CHECK[,CHECK...]", help="Only these checks; the same as naming them.")
@json_option
@root_option
@quick_option
@click.option("--deep", is_flag=True, help="Take long for more certainty.")
@click.option("--as-user", default="", metavar="USER", help="Whose permissions count, e.g. the service's user.")
@now_option
@click.option("--watch", "watch_s", type=click.FloatRange(1, 86400), metavar="SECONDS", help="Show each change.")
@click.option("--report", "report_path", type=click.Path(exists=True, dir_okay=False), help="Show a saved report.")
@click.option(
    "--diff", "diff_path", type=click.Path(exists=True, dir_okay=False), help="What changed since this report."
)
@click.option("--html", "html_path", type=click.Path(dir_okay=False), help="Write a self-contained page.")
@click.option("--save", "save_path", type=click.Path(dir_okay=False), help="Write the report as JSON.")
@click.option("--sign", "sign_path", type=click.Path(dir_okay=False), help="Ed25519 private key: write FILE.sig, too.")
@click.option("--verify", "verify_path", type=click.Path(dir_okay=False), help="Public key: check the saved report.")
def probe(subjects: tuple[str, ...], only: tuple[str, ...], **options: Any) -> None:
    """Execute a check on every layer; tell what works, what is broken, why, and what to do."""
    from agent.commands_probe import ProbeOptions, run_probe

    named = [name.strip() for text in only for name in text.split(",") if name.strip()]
    sys.exit(run_probe(list(dict.fromkeys([*subjects, *named])), ProbeOptions(**options)))


@cli.command()
@json_option
@saved_option
@root_option
@quick_option
@now_option
def stack(**options: Any) -> None:
    """Show the map of the inference stack, layer by layer, with the state of each term on this device."""
    from agent.commands_map import run_stack

    sys.exit(run_stack(**options))


@cli.command(epilog="Examples: edge-agent explain; edge-agent explain WebGPU; edge-agent explain 'Is PoCL OpenCL?'")
@click.argument("words", nargs=-1, metavar="[TERM_OR_QUESTION]")
@json_option
@saved_option
@root_option
@quick_option
@now_option
def explain(words: tuple[str, ...], **options: Any) -> None:
    """Explain a term: layer, kind, what it is confused with, its state here, what to do. Alone: list all terms."""
    from agent.commands_map import run_explain

    sys.exit(run_explain(words, **options))


@cli.command(epilog="Examples: edge-agent plan model.gguf; edge-agent plan --require-gpu --json model.onnx")
@click.argument("model", type=click.Path(readable=False))
@json_option
@root_option
@saved_option
@require_gpu_option
@software_option
@runtime_option
@context_option
def plan(model: str, **options: Any) -> None:
    """Tell which road MODEL should take on this device, and why every other road is refused."""
    from agent.commands_local import run_plan

    sys.exit(run_plan(model, **options))


@cli.command(epilog="Examples: edge-agent run model.gguf 'Why is the sky blue?'; edge-agent run model.onnx pictures/")
@click.argument("model", type=click.Path(readable=False))
@click.argument("inputs", nargs=-1, metavar="PROMPT | IMAGES...")
@json_option
@saved_option
@require_gpu_option
@software_option
@runtime_option
@context_option
@click.option("--max-tokens", type=click.IntRange(1, COUNT_LIMIT), default=128, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 100), callback=number, default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(-1, SEED_LIMIT), default=0, show_default=True)
@click.option("--system", "system_prompt", default="", metavar="TEXT", help="System message for a chat model.")
@click.option("--raw", is_flag=True, help="Send the prompt as it is, without the chat template.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends the answer; can be repeated.")
@click.option(
    "--threads", type=click.IntRange(0, THREADS_LIMIT), default=0, help="CPU threads; 0 lets the runner choose."
)
@click.option(
    "--batch", type=click.IntRange(0, COUNT_LIMIT), default=0, help="Images per run; 0 lets the pipeline choose."
)
@click.option(
    "--top", type=click.IntRange(1, COUNT_LIMIT), default=3, show_default=True, help="Classes told per image."
)
@click.option("--annotate", type=click.Path(file_okay=False), default="", help="Folder for annotated pictures.")
def run(model: str, inputs: tuple[str, ...], **options: Any) -> None:
    """Run MODEL on the best road: a prompt through an LLM, or image files through a vision model."""
    from agent.commands_local import run_model

    sys.exit(run_model(model, inputs, **options))


@cli.command()
@click.option("--config", "config_path", type=click.Path(dir_okay=False), help="TOML file.")
def daemon(config_path: str | None) -> None:
    """Publish this device's capabilities over MQTT and obey a control plane's commands."""
    from agent.config import ConfigError, load_or_last_good
    from agent.daemon import run_daemon

    try:
        config = load_or_last_good(config_path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    sys.exit(run_daemon(config))


@cli.command()
@click.option("--config", "config_path", type=click.Path(dir_okay=False), help="TOML file.")
@json_option
def config(config_path: str | None, as_json: bool) -> None:
    """Check the configuration and show it as it is in force, with where each value is from."""
    from agent.commands_local import run_config

    sys.exit(run_config(config_path, as_json))


@cli.command()
@click.option("--stay", is_flag=True, help="Keep broker and daemon up at the end, until Ctrl-C.")
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default="edge-agent-demo",
    show_default=True,
    help="Folder for results.",
)
@json_option
def demo(stay: bool, out: str, as_json: bool) -> None:
    """Show everything on this device: broker, daemon, probe, plan, an LLM and a vision model, with proof."""
    from agent.demo import run_demo

    sys.exit(run_demo(out, stay=stay, as_json=as_json))


def fail(message: str, code: int = EXIT_FAILED) -> Any:
    """Say what went wrong on stderr and end."""
    from runners.formats.gguf import printable

    click.echo(f"edge-agent: {printable(message)}", err=True)
    sys.exit(code)


def require_text(arguments: Sequence[str]) -> None:
    """End with 2 for an argument that is no text: neither JSON nor a model's process could be told about it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            encoding = sys.getfilesystemencoding()
            fail(f"{os.fsencode(argument)!r} is no text in {encoding}: give the file another name", EXIT_USAGE)


class Ended(BaseException):
    """A signal asks for the end; on its way out it closes all that was opened. Its argument is the signal's number."""


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end processes and remove folders of ours, as Ctrl-C does."""

    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    if callable(signal.getsignal(signal.SIGINT)):  # until here `agent.start` has answered it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and means it
            signal.signal(number, end)


def main() -> None:
    """Run the command line; whatever happens, a person reads a sentence and not a traceback."""
    try:
        prepare_streams()
        end_in_order()
        require_text(sys.argv[1:])
        try:
            cli.main(prog_name="edge-agent", standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where its errors have names
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", 130)
    except Ended as ended:
        signal.signal(ended.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), ended.args[0])  # whoever waits for us is told how we ended
    except BrokenPipeError:
        drop_output()  # its reader has gone: nothing is left to say to it
        sys.exit(EXIT_FAILED)
    except Exception as error:  # the outermost boundary
        if os.environ.get("EDGE_AGENT_DEBUG"):
            raise
        if isinstance(error, OSError) and (trouble := output_trouble(error)):
            drop_output()
            fail(trouble)
        fail(f"internal error: {type(error).__name__}: {error} (set EDGE_AGENT_DEBUG=1 for the traceback)")
