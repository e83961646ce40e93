"""The device's report as the daemon keeps it. The survey itself runs in a child: `python -m agent.survey`.

The daemon never imports what a survey needs; it keeps the report as the JSON that it publishes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent.durable import write_durably
from agent.verb import VerbFailed

if TYPE_CHECKING:
    from probes.contract import CapabilityReport

FILE_NAME = "report.json"
REPORT_LIMIT_BYTES = 4 << 20
TURN_S = 0.2
UNKNOWN_SUBJECT = 64  # exit status; EX_USAGE of sysexits.h
PACKAGE_ROOT = Path(__file__).resolve().parent.parent  # where `agent` can be imported from
GOODBYE_S = 5.0  # for a survey that is told to end, to take its probes with it
log = logging.getLogger("agent.survey")


class _Identity(msgspec.Struct):
    fingerprint: str


class Survey:
    """The last report of this device, and the way to a new one. Methods may be called from any thread.

    Attributes:
        unwritten: why the report could not be kept on disk; "" when it is there.
    """

    def __init__(self, state_dir: str, device_id: str, publish: Callable[[bytes], None]) -> None:
        """Prepare.

        Args:
            state_dir: where the last report is kept.
            device_id: the device's name in the report.
            publish: sends a report, retained.
        """
        self.unwritten = ""
        self._path = Path(state_dir) / FILE_NAME
        self._device_id = device_id
        self._publish = publish
        self._one_at_a_time = threading.Lock()
        self._last = self._kept()

    @property
    def last(self) -> bytes | None:
        """The last report as JSON; None before there was one."""
        return self._last

    def fingerprint(self) -> str:
        """Of the last report; "" without one."""
        try:
            return msgspec.json.decode(self._last or b"", type=_Identity).fingerprint
        except msgspec.MsgspecError:
            return ""

    def report(self, cancelled: Callable[[], bool], timeout_s: float) -> Any:
        """The last report, read back; a new one is taken when there is none.

        Returns: a `probes.contract.CapabilityReport`.

        Raises:
            VerbFailed: a survey was needed and failed.
        """
        from probes.contract import CapabilityReport

        if self._last is not None:
            with contextlib.suppress(msgspec.MsgspecError):  # of another version: a new one is taken
                return msgspec.json.decode(self._last, type=CapabilityReport)
        self.take((), cancelled, timeout_s, now=True)
        return msgspec.json.decode(self._last or b"", type=CapabilityReport)

    def take(
        self,
        subjects: tuple[str, ...],
        cancelled: Callable[[], bool],
        timeout_s: float,
        *,
        publish: bool = False,
        now: bool = False,
        renew: bool = True,
    ) -> bytes:
        """Survey the device.

        Args:
            subjects: only these checks; such a report is not kept and not published. Empty for all.
            cancelled: asked several times a second.
            timeout_s: seconds, > 0.
            publish: publish the report even if nothing has changed.
            now: execute checks while a pipeline runs, too.
            renew: execute all checks; False keeps the findings of the last report whose ground is what it was.

        Returns: the report as JSON.

        Raises:
            VerbFailed: the survey failed, took too long or was cancelled.
        """
        with self._one_at_a_time:
            options: tuple[str, ...] = ("--now",) if now else ()
            if not renew and self._path.exists():
                options += ("--kept", str(self._path))
            data = self._run_child((*options, "--", self._device_id, *subjects), cancelled, timeout_s)
            if subjects:
                return data
            before = self.fingerprint()
            self._last = data
            changed = self.fingerprint() != before
            self._keep(data)
        if changed or publish:
            log.info("capabilities %s (fingerprint %s)", "changed" if changed else "published", self.fingerprint())
            self._publish(data)
        return data

    def publish_again(self) -> None:
        """Publish the last report: the broker has forgotten it."""
        if self._last is not None:
            self._publish(self._last)

    def _kept(self) -> bytes | None:
        """The report of an earlier life; None when there is none, or only what a power cut or a bad disk has left."""
        try:
            with open(self._path, "rb") as file:
                data = file.read(REPORT_LIMIT_BYTES + 1)
            msgspec.json.decode(data, type=_Identity)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s can't be used (%s); a new one is taken", self._path, error)
            return None
        return data

    def _keep(self, data: bytes) -> None:
        try:
            write_durably(self._path, data)
            self.unwritten = ""
        except OSError as error:
            self.unwritten = f"{self._path}: {error.strerror}"
            log.error("the report could not be kept: %s", self.unwritten)

    def _run_child(self, arguments: tuple[str, ...], cancelled: Callable[[], bool], timeout_s: float) -> bytes:
        import subprocess
        import tempfile

        until_s = time.monotonic() + timeout_s
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(
                [sys.executable, "-m", "agent.survey", *arguments],
                stdin=subprocess.PIPE,  # closes when the daemon is gone, however it went
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=PACKAGE_ROOT,
            )
            ended = ""
            while child.poll() is None and not ended:
                if cancelled():
                    ended = "cancelled"
                elif time.monotonic() > until_s:
                    ended = "deadline_exceeded"
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(TURN_S)
            self._end_child(child)
            if ended == "cancelled":
                raise VerbFailed("cancelled", "the survey was cancelled")
            if ended:
                raise VerbFailed(ended, f"the survey did not end in {timeout_s:g} s{self._why_it_waited()}")
            return self._read_child(child.returncode, out, err)

    @staticmethod
    def _why_it_waited() -> str:
        from agent.guest import pipelines

        return ": a pipeline was running all the while; ask with now=true" if pipelines() else ""

    @staticmethod
    def _end_child(child: Any) -> None:
        """Close its stdin, by which it ends its probes and itself; then less politely."""
        import subprocess

        child.stdin.close()
        try:
            child.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _read_child(self, returncode: int, out: Any, err: Any) -> bytes:
        out.seek(0)
        data: bytes = out.read(REPORT_LIMIT_BYTES)
        with contextlib.suppress(msgspec.MsgspecError):
            if returncode == 0:
                msgspec.json.decode(data, type=_Identity)
                return data
        err.seek(max(0, err.seek(0, os.SEEK_END) - 2000))
        tail = err.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        if returncode == UNKNOWN_SUBJECT:
            raise VerbFailed("unknown_subject", tail)
        how = f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
        raise VerbFailed("survey_failed", f"the survey ended with {how}: {tail or 'it printed nothing'}")


def _end_with_parent() -> None:
    """Ends the survey when the daemon closes our stdin or is gone; its probes are ended on the way out."""
    import _thread

    while os.read(0, 1):
        pass
    _thread.interrupt_main()


def main(arguments: list[str]) -> int:
    """Survey this device and print the report as JSON: what the daemon's child does."""
    import argparse

    from agent.guest import pipelines, wait_for_idle
    from agent.report import known_subjects, survey_report

    parser = argparse.ArgumentParser(prog="python -m agent.survey", description="Survey this device for the daemon.")
    parser.add_argument("--now", action="store_true", help="while a pipeline runs, too")
    parser.add_argument("--kept", default="", metavar="FILE", help="the last report: what still is true is kept")
    parser.add_argument("device_id")
    parser.add_argument("subjects", nargs="*")
    options = parser.parse_args(arguments)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    known = known_subjects()
    unknown = [subject for subject in options.subjects if subject not in known]
    if unknown:
        sys.stderr.write(f"no check is called {unknown[0]!r}; there are {', '.join(known)}\n")
        return UNKNOWN_SUBJECT
    try:
        report = survey_report(
            subjects=options.subjects,
            device_id=options.device_id,
            kept=_read_kept(options.kept),
            wait=None if options.now or not pipelines() else lambda: wait_for_idle(log.info),
        )
    except KeyboardInterrupt:
        return 130
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


def _read_kept(path: str) -> CapabilityReport | None:
    """The last report; None when there is none that this version can read."""
    from probes.contract import CapabilityReport

    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(Path(path).read_bytes(), type=CapabilityReport) if path else None
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
