"""`python -m runners llama_cpp/cpu` executes one runner's check in a process of its own, and prints its finding."""

from __future__ import annotations

import argparse
import sys

import msgspec

from probes.child import answer
from probes.command_line import run_command
from probes.isolation import execute
from runners.checks import runner_checks, subjects
from runners.registry import runner


def main() -> int:
    """Execute one check, or list them; 2 for a subject that there is not."""
    parser = argparse.ArgumentParser(
        prog="python -m runners", description="Execute the check of one runtime and backend."
    )
    parser.add_argument("subject", nargs="?", help="runtime/backend, see --list")
    parser.add_argument("--list", action="store_true", help="print all subjects with their layers")
    parser.add_argument("--child", action="store_true", help="execute it in this very process")
    parser.add_argument("--fd", type=int, default=1, help="with --child: where the finding is written")
    arguments = parser.parse_args()
    known = {subject: (layer, backend) for subject, layer, backend in subjects()}
    if arguments.list:
        for subject, (layer, _) in known.items():
            print(f"{layer}  {subject}")
        return 0
    if arguments.subject not in known:
        parser.error(f"no check is called {arguments.subject!r}; there are: {', '.join(known)}")
    layer, backend = known[arguments.subject]
    if arguments.child:
        name = arguments.subject.rpartition("/")[0]
        answer(arguments.subject, layer, lambda: runner(name).check(backend), arguments.fd)
    check = next(check for check in runner_checks() if check.subject == arguments.subject)
    print(msgspec.json.format(msgspec.json.encode(execute(check)), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
