"""Checks that are never tried on some devices: the table, who is refused what, and that recorded devices are safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes import dla, refused, tensorrt_rtx, video_codec
from probes.contract import Status
from probes.listing import probe_files
from tests.recorded import build_device, build_files, device_names

NANO, ORIN_NX, THOR = "orin-nano-super-r36.4.3", "orin-nx-16gb-r36.3.0", "agx-thor-r38.4.0"


def test_every_row_names_a_probe_and_says_why_what_instead_and_where_it_is_from() -> None:
    rows = refused.read_table()
    assert {row.check.partition("/")[0] for row in rows} <= set(probe_files({}))
    for row in rows:
        assert row.reason
        assert row.remedy
        assert row.source
        assert row.boards or row.socs or row.any_jetson or row.capabilities


@pytest.mark.parametrize(
    ("device", "check", "is_refused"),
    [
        (NANO, "video_codec/encode", True),  # asking it for one has hung the system
        (NANO, "video_codec/decode", False),
        (ORIN_NX, "video_codec/encode", False),
        (NANO, "dla", True),
        (ORIN_NX, "dla", False),
        (THOR, "dla", True),
        ("jetson-nano-r32.7.1", "dla", True),
        (NANO, "tensorrt_rtx", True),
        ("desktop-rtx-3090", "tensorrt_rtx", False),
    ],
)
def test_who_is_refused_what(tmp_path: Path, device: str, check: str, is_refused: bool) -> None:
    assert (refused.find(build_device(tmp_path, device), check) is not None) is is_refused


@pytest.mark.parametrize(("capability", "is_refused"), [("8.7", True), ("9.0", True), ("12.0", False), (None, False)])
def test_tensorrt_rtx_has_no_target_for_servers(tmp_path: Path, capability: str | None, is_refused: bool) -> None:
    assert (refused.find(build_files(tmp_path, {}), "tensorrt_rtx", capability) is not None) is is_refused


@pytest.mark.parametrize("name", device_names())
@pytest.mark.parametrize("probe", [dla, tensorrt_rtx, video_codec])
def test_a_recorded_device_never_works_nor_breaks(tmp_path: Path, probe, name: str) -> None:  # type: ignore[no-untyped-def]
    assert probe.check(build_device(tmp_path, name)).status in (Status.ABSENT, Status.UNKNOWN)
