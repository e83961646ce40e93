"""The daemon as it is, with the verbs of `verbs_for_tests` beside its own; the argument is its configuration."""

import sys
from pathlib import Path

import agent.verbs
from agent.config import load
from agent.daemon import run_daemon

if __name__ == "__main__":
    agent.verbs.__path__.append(str(Path(__file__).parent / "verbs_for_tests"))
    sys.exit(run_daemon(load(sys.argv[1])))
