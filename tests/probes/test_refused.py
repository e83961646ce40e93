"""Checks that are never tried on some devices, and the probes that keep to it: video codecs, DLA, TensorRT-RTX."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import dla, refused, tensorrt_rtx, video_clip, video_codec
from probes.contract import DeviceKind, Status
from probes.host import Host
from probes.listing import probe_files
from tests.recorded import build_device, build_files, device_names

NANO, ORIN_NX, THOR = "orin-nano-super-r36.4.3", "orin-nx-16gb-r36.3.0", "agx-thor-r38.4.0"
GST = (
    "nvvideo4linux2:  nvv4l2decoder: NVIDIA v4l2 video decoder\n"
    "nvvideo4linux2:  nvv4l2h264enc: V4L2 H.264 Encoder\n"
    "x264:  x264enc: x264 H.264 Encoder\nnvvidconv:  nvvidconv: NvVidConv Plugin\n"
)
FFMPEG = " V....D h264_nvenc           NVIDIA NVENC H.264 encoder\n V....D libx264 libx264 H.264\n"


# The table


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


# DLA


def test_a_module_without_a_dla_is_told_so_with_its_source(tmp_path: Path) -> None:
    finding = dla.check(build_device(tmp_path, NANO))
    assert finding.status is Status.ABSENT
    assert finding.reason.startswith("refused: the Orin Nano has no DLA")
    assert "DS-11105-001" in finding.reason


def test_a_missing_compiler_is_named_with_its_package_of_that_l4t() -> None:
    nodes = ("/dev/nvhost-ctrl-nvdla0",)
    words = "libnvdla_compiler.so: cannot open shared object file"
    status, reason, remedy = dla.judge_parts(dla.Parts(count=2, nodes=nodes, compiler=words, l4t_major=36)) or ("",) * 3
    assert status is Status.BROKEN
    assert words in reason
    assert "nvidia-l4t-dla-compiler" in remedy
    *_, older = dla.judge_parts(dla.Parts(count=2, nodes=nodes, compiler=words, l4t_major=35)) or ("",)
    assert "nvidia-l4t-dla-compiler" not in older


def test_nodes_and_compiler_leave_the_word_to_tensorrt() -> None:
    parts = dla.Parts(count=2, nodes=("/dev/nvhost-ctrl-nvdla0",), compiler="loads", l4t_major=36)
    assert dla.judge_parts(parts) is None
    assert dla.judge_cores(2, "10.3") is None
    status, reason, _ = dla.judge_cores(0, "11.0") or ("",) * 3
    assert status is Status.UNKNOWN
    assert "counts no core" in reason


# TensorRT-RTX


def test_not_installed_is_told_from_a_binding_that_does_not_load() -> None:
    assert tensorrt_rtx.judge_not_importable("No module", True, True)[0] is Status.ABSENT
    assert tensorrt_rtx.judge_not_importable("libx.so: no", False, True)[0] is Status.BROKEN


# Video codecs


def test_only_nvidias_encoders_and_decoders_are_taken_from_the_lists() -> None:
    assert video_codec.parse_gst_elements(GST) == ("nvv4l2decoder", "nvv4l2h264enc")
    assert video_codec.parse_ffmpeg_codecs(FFMPEG) == ("h264_nvenc",)


def test_an_orin_nano_is_never_asked_for_its_encoder(tmp_path: Path) -> None:
    finding = video_codec.check(build_device(tmp_path, NANO))
    assert "NVENC refused: the Orin Nano has no NVENC" in finding.reason
    assert "libx264" in finding.remedy
    assert "libnvidia_encode" not in finding.facts


def test_nodes_alone_are_unknown(tmp_path: Path) -> None:
    finding = video_codec.check(build_files(tmp_path, {"/dev/v4l2-nvdec": "", "/dev/v4l2-nvenc": ""}))
    assert finding.status is Status.UNKNOWN
    assert "not tried" in finding.reason


def test_a_clip_that_lost_a_frame_or_a_grey_is_wrong() -> None:
    whole = video_clip.frames()
    assert video_clip.describe(whole) == "8 of 8 frames right"
    assert video_clip.describe(whole[: -video_clip.FRAME_BYTES]) == "7 frames instead of 8"
    swapped = whole[video_clip.FRAME_BYTES :] + whole[: video_clip.FRAME_BYTES]
    assert "frame 0 is 64 to 64, not 32" in video_clip.describe(swapped)


def test_the_commands_work_with_an_encoder_of_the_cpu() -> None:
    if not shutil.which("ffmpeg"):
        pytest.skip("ffmpeg is not installed: no clip was coded")
    tried = video_clip.code(Host(), "libx264", "h264")
    assert tried.is_right, tried.value
    assert tried.device_kind is DeviceKind.CPU


@given(st.text())
def test_any_text_is_a_list_of_codecs(text: str) -> None:
    video_codec.parse_gst_elements(text)
    video_codec.parse_ffmpeg_codecs(text)
