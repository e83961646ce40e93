"""A check's process stays under 150 MB, or docs/footprint.md tells why its API needs more."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from probes.contract import Finding, Status, fingerprint
from probes.isolation import Check, execute, probe_check
from probes.listing import probe_files

LIMIT_BYTES = 150_000_000
FILES = probe_files({})
ROW = re.compile(r"^\| (\w+) \| (?:(\d+) MB|not seen) \| (.+) \|$", re.M)
STATED = {
    name: (megabytes, why)
    for name, megabytes, why in ROW.findall((Path(__file__).parents[2] / "docs/footprint.md").read_text("utf-8"))
}


@pytest.mark.parametrize("name", FILES)
def test_a_check_stays_under_its_limit(name: str) -> None:
    finding = execute(probe_check(name, file=FILES[name]))
    assert finding.memory_peak_bytes, finding
    assert finding.memory_peak_bytes > 10_000_000, "Python alone has that"
    megabytes = STATED.get(name, ("", ""))[0]
    if name in STATED and not megabytes and finding.status is Status.WORKS:
        pytest.skip(
            f"{name} works here, and took {finding.memory_peak_bytes / 1e6:.0f} MB: write it into docs/footprint.md"
        )
    assert finding.memory_peak_bytes <= (int(megabytes) * 1_000_000 if megabytes else LIMIT_BYTES)


def test_only_probes_are_named_each_with_a_reason() -> None:
    assert STATED
    assert set(STATED) <= set(FILES)
    assert all(len(why) > 10 for _, why in STATED.values())


def test_memory_is_a_reading_and_counts_a_command_too() -> None:
    code = (
        "import subprocess, sys; from probes.child import answer; from probes.contract import *\n"
        "def work():\n"
        "    subprocess.run([sys.executable, '-c', 'b\"x\" * 200_000_000'])\n"
        "    return Finding(subject='x/y', layer=4, status=Status.WORKS)\n"
        "answer('x/y', 4, work, int(sys.argv[2]))"
    )
    check = Check(subject="x/y", layer=4, argv=(sys.executable, "-c", code))
    finding: Finding = execute(check, {**os.environ})
    assert finding.memory_peak_bytes is not None, finding
    assert finding.memory_peak_bytes > 200_000_000
    assert fingerprint((finding,)) == fingerprint((msgspec.structs.replace(finding, memory_peak_bytes=1),))
