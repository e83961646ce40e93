"""What the commands have in common: the streams they write to, and how they end."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a write to what stdout leads to


def prepare_streams() -> None:
    """Give the process three standard streams that take every text.

    One that the caller closed (`>&-`) becomes /dev/null: the next file or pipe of ours would get its number, and
    whoever prints would print into that. What the terminal's encoding has not is spelled out, and is no error.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - these stay open to the end
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Send what is still buffered for stdout nowhere: the interpreter would try again at its end, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def output_trouble(error: OSError) -> str:
    """What to say of an error of a write to stdout; "" for any other error."""
    if error.errno not in OUTPUT_ERRORS or error.filename is not None:
        return ""
    return f"the output could not be written: {os.strerror(error.errno)}"


def run_command(main: Callable[[], int]) -> int:
    """`main` for a shell: Ctrl-C, and a reader that has gone away (`| head`), are no reason for a traceback.

    Returns: its exit status; 130 after Ctrl-C, 1 when what it printed could not be written.
    """
    prepare_streams()
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        drop_output()
        return 1
    except OSError as error:
        trouble = output_trouble(error)
        if not trouble:
            raise
        drop_output()
        sys.stderr.write(f"{trouble}\n")
        return 1
    return status
