"""`edge-agent probe`: survey this device or read a saved report, and show it: tree, JSON, page, or what has changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from agent.cli import EXIT_FAILED, EXIT_USAGE, fail
from agent.commands_local import fail_with, load_report, print_json, print_line, survey_progress
from agent.report import known_subjects, survey_report
from probes.contract import CapabilityReport, Status
from probes.host import Host
from runners.contract import RunnerError


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, see `edge-agent probe --help`."""

    as_json: bool = False
    root: str = "/"
    quick: bool = False
    deep: bool = False
    now: bool = False
    as_user: str = ""
    report_path: str | None = None
    diff_path: str | None = None
    html_path: str | None = None
    save_path: str | None = None
    sign_path: str | None = None
    verify_path: str | None = None
    watch_s: float | None = None


def run_probe(subjects: Sequence[str], options: ProbeOptions) -> int:
    """Survey and show.

    Returns: 0; with subjects named, 1 when one of them does not work.
    """
    check_usage(subjects, options)
    try:
        old = load_report(options.diff_path) if options.diff_path else None
        report = take(subjects, options)
        write_files(report, options)
    except RunnerError as error:
        return fail_with(error, as_json=False)
    except OSError as error:
        return trouble(f"{error.filename}: {error.strerror}")
    if options.watch_s is not None:
        return watch(report, subjects, options)
    show(report, options, old)
    failed = [finding for finding in report.findings if finding.status is not Status.WORKS]
    return EXIT_FAILED if subjects and failed and not options.quick else 0


def trouble(sentence: str) -> int:
    """Say what failed."""
    from runners.formats.gguf import printable

    click.echo(f"edge-agent: {printable(sentence)}", err=True)
    return EXIT_FAILED


def check_usage(subjects: Sequence[str], options: ProbeOptions) -> None:
    """End with 2 for what can't be meant."""
    known = known_subjects() if subjects else []
    unknown = [subject for subject in subjects if subject not in known]
    if unknown:
        fail(f"no check is called {unknown[0]!r}; there are: {', '.join(known)}", EXIT_USAGE)
    if options.sign_path and not options.save_path:
        fail("--sign signs a file: add --save FILE", EXIT_USAGE)
    if options.verify_path and not options.report_path:
        fail("--verify checks a saved report: add --report FILE", EXIT_USAGE)
    if options.watch_s is not None and (options.report_path or options.root != "/"):
        fail("--watch needs this device: a saved report and a recorded device do not change", EXIT_USAGE)
    if options.report_path and (subjects or options.quick or options.deep):
        fail("--report shows what was found then: nothing can be executed or left out", EXIT_USAGE)
    if options.quick and options.deep:
        fail("--quick executes nothing and --deep takes long: only one of them", EXIT_USAGE)


def take(subjects: Sequence[str], options: ProbeOptions, kept: CapabilityReport | None = None) -> CapabilityReport:
    """The report that was asked for: a saved one, a quick one, or a survey.

    Raises:
        RunnerError: the saved report can't be read, or is not signed by that key.
    """
    if options.report_path:
        if options.verify_path:
            verify_file(options.report_path, options.verify_path)
        return load_report(options.report_path)
    host = Host(options.root, quick=options.quick, as_user=options.as_user, deep=options.deep)
    if options.quick:
        from agent.quick import quick_report

        return quick_report(host, subjects)
    from agent.guest import pipelines, wait_for_idle

    wait = None
    if not options.now and not host.recorded and pipelines():

        def wait() -> None:
            wait_for_idle(lambda text: click.echo(f"edge-agent: {text}", err=True))

    with survey_progress(options.as_json) as tell:
        return survey_report(host, subjects=tuple(subjects), on_finding=tell, kept=kept, wait=wait)


def verify_file(path: str, key_path: str) -> None:
    """Return when the report's signature beside it fits.

    Raises:
        RunnerError: it does not.
        OSError: a file can't be read.
    """
    from agent.sign import SUFFIX, SignatureTrouble, verify

    try:
        verify(Path(path).read_bytes(), Path(path + SUFFIX).read_bytes(), Path(key_path).read_bytes())
    except SignatureTrouble as error:
        raise RunnerError(f"{path}: {error}") from error


def write_files(report: CapabilityReport, options: ProbeOptions) -> None:
    """The page, the saved report and its signature: each whole, or as it was.

    Raises:
        OSError: one can't be written.
        RunnerError: the key is none.
    """
    from agent.durable import write_durably

    if options.html_path:
        from agent.page import write_report_page

        write_report_page(Path(options.html_path), report)
    if not options.save_path:
        return
    data = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    if options.sign_path:
        from agent.sign import SUFFIX, SignatureTrouble, sign

        try:
            signature = sign(data, Path(options.sign_path).read_bytes())
        except SignatureTrouble as error:
            raise RunnerError(f"{options.sign_path}: {error}") from error
        write_durably(Path(options.save_path + SUFFIX), signature)
    write_durably(Path(options.save_path), data)


def show(report: CapabilityReport, options: ProbeOptions, old: CapabilityReport | None) -> None:
    """On stdout: what has changed, the JSON, or the tree."""
    if old is not None:
        show_changes(old, report, options.as_json)
    elif options.as_json:
        print_json(report)
    else:
        from agent.show import make_console
        from agent.tree import report_tree

        make_console().print(report_tree(report))


def show_changes(old: CapabilityReport, new: CapabilityReport, as_json: bool) -> int:
    """What has changed, in words; returns how many changes there are."""
    from agent.diff import changes
    from runners.formats.gguf import printable

    found = changes(old, new)
    if as_json:
        print_json(found)
    else:
        for change in found:
            click.secho(printable(f"{change.subject}: {change.text}"), fg="red" if change.worse else None)
        if not found:
            click.echo(f"nothing has changed since {old.taken_at}")
    return len(found)


def watch(report: CapabilityReport, subjects: Sequence[str], options: ProbeOptions) -> int:
    """Show the report, then each change as it is seen, until Ctrl-C; only what may have changed is executed again."""
    from agent.diff import changes
    from runners.formats.gguf import printable

    assert options.watch_s is not None
    if options.as_json:
        print_line(report)
    else:
        show(report, options, None)
    while True:
        time.sleep(options.watch_s)
        newer = take(subjects, options, kept=report)
        for change in changes(report, newer):
            if options.as_json:
                print_line({"taken_at": newer.taken_at, **msgspec.to_builtins(change)})
            else:
                click.echo(printable(f"{newer.taken_at} {change.subject}: {change.text}"))
        write_files(newer, options)
        sys.stdout.flush()
        report = newer
