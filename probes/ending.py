"""What the end of a check's process means: its own finding, or BROKEN with how it ended. Bytes in, finding out."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import msgspec

from probes.contract import Evidence, Finding, Status, cut

ANSWER_BYTES = 1 << 20  # longest finding that is taken
TRACE = "Fatal Python error: "
CURRENT_FRAME = re.compile(r'Current thread 0x\w+[^\n]*\n\s+File "([^"\n]+)", line (\d+) in (\S+)')
LIBRARY = re.compile(r"\b(lib[\w.+-]+?\.so(?:\.\d+)*)")
EVERYBODYS_LIBRARY = re.compile(r"lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|ffi|python[\d.]+)\.so")


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a check's process ended.

    Attributes:
        returncode: exit status, negative for a signal; None when not even SIGKILL ended it.
        killed: why it was killed by us, "no answer in 30 s"; "" when it ended itself.
        answer: what it wrote to the descriptor for its finding.
        output: the end of its stdout; a check has nothing to say there.
        errors: the end of its stderr.
    """

    returncode: int | None
    killed: str = ""
    answer: bytes = b""
    output: bytes = b""
    errors: bytes = b""


def judge(subject: str, layer: int, ending: Ending) -> Finding:
    """The finding of a check that has ended: its own, or BROKEN with how it ended. Pure."""
    reason = how_it_failed(ending)
    if not reason:
        try:
            finding = msgspec.json.decode(ending.answer, type=Finding)
        except msgspec.MsgspecError as error:
            reason = f"its answer is no finding: {error}"
        else:
            if (finding.subject, finding.layer) == (subject, layer):
                return finding
            other = f"{cut(finding.subject, 80)!r} in layer {finding.layer}"
            reason = f"it answered for {other}, not for {subject!r} in layer {layer}"
    streams = (("stderr", ending.errors), ("stdout", ending.output))
    texts = [(name, readable_tail(data)) for name, data in streams]
    return Finding(
        subject=subject,
        layer=layer,
        status=Status.BROKEN,
        reason=reason,
        evidence=tuple(Evidence(executed=f"the check's {name}", value=text) for name, text in texts if text),
    )


def how_it_failed(ending: Ending) -> str:
    """One clause on why there is no answer to read; "" when there is one."""
    if ending.killed:
        stuck = ending.returncode is None and ending.killed.endswith("killed")
        return ending.killed + (", but it lives on: stuck inside the kernel, in a driver" if stuck else "")
    errors = ending.errors.decode("utf-8", "replace")
    if ending.returncode is None or ending.returncode < 0:
        return died_by(-(ending.returncode or 0), errors)
    if len(ending.answer) > ANSWER_BYTES:
        return f"its answer is longer than {ANSWER_BYTES >> 20} MiB"
    if ending.answer:
        return ""
    words = last_line(errors)
    how = f"ended with exit status {ending.returncode} and no answer"
    return f"{how}: {words}" if words else how


def died_by(number: int, errors: str) -> str:
    """The signal by name and, where the crash dump on stderr tells, in which library or at which line."""
    name = signal_name(number)
    before, _, dump = errors.partition(TRACE)
    place = crash_place(dump)
    words = last_line(before)
    if number == signal.SIGKILL:
        words = words or "the kernel's out-of-memory killer sends it, or somebody's kill -9"
    return f"died by {name}" + (f" in {place}" if place else "") + (f": {words}" if words else "")


def signal_name(number: int) -> str:
    """The signal's name; real-time signals between the first and the last have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crash_place(dump: str) -> str:
    """Where faulthandler's dump says it happened: a library (Python 3.14 prints C frames), else the Python line."""
    for library in LIBRARY.findall(dump.partition("Current thread's C stack trace")[2]):
        if not EVERYBODYS_LIBRARY.match(library):
            return str(library)
    frame = CURRENT_FRAME.search(dump)
    if frame is None:
        return ""
    path, line, function = frame.groups()
    return f"{function} ({'/'.join(Path(path).parts[-2:])}:{line})"


def last_line(text: str) -> str:
    """The last line with something on it, cut to what fits into a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return cut(lines[-1], 200) if lines else ""


def readable_tail(data: bytes) -> str:
    """The end of what a process printed, without faulthandler's list of extension modules."""
    lines = data.decode("utf-8", "replace").splitlines()
    return cut("\n".join(line for line in lines if not line.startswith("Extension modules: ")))
