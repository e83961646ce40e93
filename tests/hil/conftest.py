"""One survey and the promised runs on one device, then a verdict for each promise.

Options, each also as a variable for runs that begin above this folder: --hil-expect (HIL_EXPECT), --hil-target
(HIL_TARGET), --hil-python (HIL_PYTHON), --hil-out (HIL_OUT).
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from hil import expectation as expectations
from hil.expectation import Expectation, ExpectedRun
from hil.results import kcidb, source_commit, table
from hil.target import PROJECT, LocalTarget, Recorded, Target, TargetUnreachable, find_file, read_machine
from hil.verdicts import DEVICE, Completed, Verdict, judge_run, verdicts
from probes.contract import CapabilityReport, DeviceKind

SURVEY_S = 600.0
RUN_S = 600.0
OPTIONS = {
    "expect": "name of the expectation file; the machine's own is found otherwise",
    "target": "where the device is: local (the default) is this machine",
    "python": "Python of the virtual environment with the release under test; this one otherwise",
    "out": "folder for verdicts and evidence; build/hil otherwise",
}
tables = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hil", "hardware in the loop")
    for name, text in OPTIONS.items():
        group.addoption(f"--hil-{name}", default=None, help=text)


def option(config: pytest.Config, name: str) -> str:
    """An option; pytest knows those of this file only when it was started in this folder, hence the variables."""
    return config.getoption(f"--hil-{name}", default=None) or os.environ.get(f"HIL_{name.upper()}", "")


def make_target(config: pytest.Config) -> Target:
    kind = option(config, "target") or "local"
    if kind != "local":
        raise pytest.UsageError(f"--hil-target {kind}: only local is there yet")
    return LocalTarget(option(config, "python"))


def chosen(config: pytest.Config) -> Expectation:
    """The named file, or the machine's own.

    Raises:
        LookupError: no file is for this machine; nothing was promised then.
    """
    name = option(config, "expect")
    if name:
        try:
            return expectations.load(name)
        except (LookupError, ValueError) as error:
            raise pytest.UsageError(f"--hil-expect: {error}") from None
    return expectations.choose(read_machine(make_target(config)), [expectations.load(b) for b in expectations.boards()])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per promise: it is seen before anything runs."""
    if metafunc.function.__name__ != "test_promise":
        return
    try:
        subjects = subjects_of(chosen(metafunc.config))
        metafunc.parametrize("promise", subjects, ids=subjects)
    except LookupError as error:
        metafunc.parametrize("promise", [pytest.param("", marks=pytest.mark.skip(reason=str(error)), id="none")])


def subjects_of(expectation: Expectation) -> list[str]:
    board = [DEVICE] if expectation.device else []
    return [*board, *expectation.backends, *(f"run:{run.name}" for run in expectation.runs)]


@pytest.fixture(scope="session")
def expectation(pytestconfig: pytest.Config) -> Expectation:
    return chosen(pytestconfig)


@pytest.fixture(scope="session")
def out(pytestconfig: pytest.Config, expectation: Expectation) -> Path:
    folder = Path(option(pytestconfig, "out") or PROJECT / "build" / "hil") / expectation.board
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def target(pytestconfig: pytest.Config, out: Path) -> Target:
    return Recorded(make_target(pytestconfig), out)


@pytest.fixture(scope="session")
def survey(target: Target, out: Path) -> tuple[CapabilityReport | None, str]:
    """The report of one `edge-agent probe --json`, or None and why there is none."""
    try:
        done = target.run((*target.python, "-m", "agent", "probe", "--json"), SURVEY_S)
    except TargetUnreachable as error:
        return None, str(error)
    (out / "report.json").write_text(done.stdout)
    if done.timed_out or done.status:
        ended = f"killed after {SURVEY_S:g} s" if done.timed_out else f"exit status {done.status}"
        return None, f"edge-agent probe: {ended}: {done.stderr.strip()[-300:]}"
    try:
        return msgspec.json.decode(done.stdout, type=CapabilityReport), ""
    except msgspec.MsgspecError as error:
        return None, f"edge-agent probe printed no report: {error}"


def run_model(target: Target, expected: ExpectedRun, report: str) -> tuple[Completed | None, str]:
    """A promised run, or None and why it could not be started."""
    try:
        names = [expected.model, *(expected.inputs if expected.input_files else ())]
        places = [find_file(target, name) for name in names]
        missing = [name for name, place in zip(names, places, strict=True) if not place]
        if missing:
            return None, f"not on the device: {', '.join(missing)}"
        inputs = places[1:] if expected.input_files else expected.inputs
        demand = ("--require-gpu",) if expected.device_kind is DeviceKind.GPU else ()
        command = (*target.python, "-m", "agent", "run", "--json", "--report", report, *demand, *expected.arguments)
        return target.run((*command, places[0], *inputs), RUN_S), ""
    except TargetUnreachable as error:
        return None, str(error)


@pytest.fixture(scope="session")
def judged(
    pytestconfig: pytest.Config,
    expectation: Expectation,
    target: Target,
    survey: tuple[CapabilityReport | None, str],
    out: Path,
) -> Mapping[str, Verdict]:
    """Every verdict by its subject; written down before the first test looks at one."""
    report, trouble = survey
    found = verdicts(expectation, report, trouble)
    for expected in expectation.runs:
        done, why = run_model(target, expected, str(out / "report.json")) if report else (None, f"no survey: {trouble}")
        found.append(judge_run(expected, done, why))
    text = table(expectation, found)
    (out / "verdicts.txt").write_text(text + "\n")
    files = [path for path in (out / "report.json", out / "commands.jsonl") if path.exists()]
    at = datetime.datetime.now(datetime.timezone.utc)
    document = kcidb(expectation, found, report, files, at, source_commit(PROJECT))
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    pytestconfig.stash.setdefault(tables, []).append(f"{text}\nevidence: {out}")
    return {verdict.subject: verdict for verdict in found}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of verdicts."""
    for text in config.stash.get(tables, []):
        terminalreporter.section("hardware in the loop")
        terminalreporter.write_line(text)
