"""`python -m probes`: every finding, a line each; `python -m probes vulkan`: one finding as JSON."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from probes.child import answer, run_probe
from probes.command_line import run_command
from probes.contract import DeviceKind, Finding, Status
from probes.host import Host
from probes.listing import PROBE_PATH, ProbeFile, probe_files

EPILOG = f"""\
{PROBE_PATH}=FOLDER[:FOLDER...] adds probes of your own: every .py file in these folders that does not
start with "_". A probe is a docstring, LAYER = 0..7 and check(host) -> Finding; see probes/contract.py.

examples:
  python -m probes
  python -m probes vulkan
  python -m probes --root recorded/orin-nano
"""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m probes",
        description="Check the layers of the inference stack by executing something on each.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="one probe; its finding is printed as JSON")
    parser.add_argument("--list", action="store_true", help="the table of layers and probes")
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="the files of a recorded device; nothing is executed"
    )
    parser.add_argument("--as-user", default="", metavar="USER", help="whose permissions count; this user's otherwise")
    parser.add_argument("--deep", action="store_true", help="take long for more certainty")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, default=1, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Returns: 0, whatever was found; 2 for a wrong command line.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.root):
        parser.error(f"--root {options.root}: no such folder")
    files = probe_files()
    if options.list:
        sys.stdout.write(table(files))
        return 0
    if options.name is None:
        show_all(files, options.root)
        return 0
    file = files.get(options.name)
    if file is None:
        near = difflib.get_close_matches(options.name, files, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "see --list"
        parser.error(f"no probe is called {options.name!r}; {hint}")
    if options.child:
        host = Host(options.root, as_user=options.as_user, deep=options.deep)
        answer(file.name, file.layer, lambda: run_probe(file, host), options.fd)
    finding = explained(file, options.root)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(finding), indent=2).decode() + "\n")
    return 0


def table(files: Mapping[str, ProbeFile]) -> str:
    """Layer, name and first docstring line of every probe."""
    width = max(map(len, files), default=0)
    rows = [f"{file.layer}  {file.name:<{width}}  {file.problem or file.summary}\n" for file in files.values()]
    return "".join([f"L  {'probe':<{width}}  what it executes\n", *rows])


def show_all(files: Mapping[str, ProbeFile], root: str) -> None:
    """Survey, and print a line for each finding."""
    from probes.diagnose import diagnose_all
    from probes.isolation import probe_check
    from probes.survey import survey

    findings = diagnose_all(survey(probe_check(file.name, root, file) for file in files.values()))
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        text = f"{finding.layer}  {finding.subject:<{width}}  {finding.status.value:<7}  {in_short(finding)}"
        sys.stdout.write(text.rstrip() + "\n")


def in_short(finding: Finding) -> str:
    """What a line has room for: the reason and remedy, or version and device."""
    if finding.status is not Status.WORKS:
        return f"{finding.reason}; {finding.remedy}" if finding.remedy else finding.reason
    kind = "" if finding.device_kind is DeviceKind.UNKNOWN else f"on {finding.device_kind.value}"
    device = next((evidence.device for evidence in finding.evidence if evidence.device), "")
    return " ".join(filter(None, (finding.version, kind, device and f"({device})", finding.reason)))


def explained(file: ProbeFile, root: str) -> Finding:
    """One probe's finding. Where it fails, the device's facts are read as well: the diagnosis may depend on them."""
    from probes.diagnose import FACT_PROBES, diagnose, merged_facts
    from probes.isolation import execute, probe_check
    from probes.survey import survey

    finding = execute(probe_check(file.name, root, file))
    if finding.status is Status.WORKS:
        return finding
    files = probe_files()
    others = [name for name in FACT_PROBES if name in files and name != file.name]
    about = survey(probe_check(name, root, files[name]) for name in others)
    return diagnose(finding, merged_facts((*about, finding)))


if __name__ == "__main__":
    sys.exit(run_command(main))
