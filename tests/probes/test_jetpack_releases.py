"""The table of releases against the facts it was made of, an independent copy with their notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probes import jetpack, jetpack_releases
from tests.probes.jetsons import COMPONENTS, differences
from tests.recorded import FIXTURES, build_files

FACTS: list[dict[str, Any]] = json.loads((FIXTURES / "facts/jetpack-matrix.json").read_text())["releases"]


def of_facts(release: str) -> dict[str, Any]:
    return next(row for row in FACTS if release in row["l4t"].split(" / "))


def test_the_table_has_every_release_of_the_facts_and_no_other() -> None:
    releases = [release for row in FACTS for release in row["l4t"].split(" / ")]
    assert [row.l4t for row in jetpack_releases.read_table().releases] == releases
    assert len(releases) == len(set(releases)) > 35


@pytest.mark.parametrize("row", jetpack_releases.read_table().releases, ids=lambda row: row.l4t)
def test_the_table_says_what_the_facts_say(row: jetpack_releases.Release) -> None:
    facts = of_facts(row.l4t)
    for component in COMPONENTS:
        # "12.6 (cudart 12.6.68)", "10.3.0.30 (+cuda12.5)": what stands in brackets is a note
        said = facts[component].split(" ")[0] if facts[component] else None
        assert getattr(row, component) == said, component
    if row.l4t != "36.5.2":  # one table alone says 6.2.3: it is told as unknown, as case DT-01 asks
        assert row.jetpack == facts["jetpack"]


def test_the_reach_of_cuda_compat_is_that_of_the_facts() -> None:
    said = json.loads((FIXTURES / "facts/jetpack-matrix.json").read_text())["cuda_compat"]
    assert jetpack_releases.read_table().cuda_compat == {"5": "12.2", "6": "12.9"}
    assert "JetPack 5 may run CUDA up to 12.2 with cuda-compat, JetPack 6 up to 12.9" in said


@pytest.mark.parametrize("row", [row for row in FACTS if row["nvidia_jetpack_apt"]], ids=lambda row: str(row["l4t"]))
def test_the_package_that_a_release_has_is_no_difference(row: dict[str, Any], tmp_path: Path) -> None:
    package = row["nvidia_jetpack_apt"].split(" ")[0]
    major, _, revision = row["l4t"].partition(".")
    line = {"/etc/nv_tegra_release": f"# R{major} (release), REVISION: {revision}, GCID: 1\n"}
    finding = jetpack.check(
        build_files(tmp_path, line, {"dpkg-query -W nvidia-jetpack": f"nvidia-jetpack\t{package}\n"})
    )
    assert differences(finding) == []
