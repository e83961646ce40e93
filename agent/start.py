"""Where `edge-agent` starts: Ctrl-C during the imports, the first tenth of a second, is no traceback either."""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Nothing has been opened or started yet: say it and end."""
    os.write(2, b"\nedge-agent: interrupted\n")  # after the terminal's ^C
    os._exit(130)


def main() -> None:
    """Import the command line and run it."""
    # A script has it ignored in what it starts by `&`.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    from agent.cli import main as run

    run()
