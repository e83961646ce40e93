"""NVENC and NVDEC: what lists and nodes mean, what is refused, and a clip coded for real where ffmpeg is."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import video_clip, video_codec
from probes.contract import DeviceKind, Status, WitnessKind
from probes.host import Host
from probes.video_codec import Engine
from tests.probes.test_cuda import compile_c
from tests.recorded import build_device, build_files

ORIN_NANO = {"/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0"}
ORIN_NX = {"/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0000\0nvidia,p3767-0000\0nvidia,tegra234\0"}
BOTH = ("h264_nvenc", "h264_cuvid")
GST = """\
nvvideo4linux2:  nvv4l2decoder: NVIDIA v4l2 video decoder
nvvideo4linux2:  nvv4l2h264enc: V4L2 H.264 Encoder
nvvideoconvert:  nvvidconv: NVIDIA video converter
coreelements:  identity: Identity
x264:  x264enc: x264 H.264 Encoder
nvcodec:  nvh264dec: NVDEC h264 Video Decoder
omx:  omxh265enc: OpenMAX H.265 Video Encoder
"""
FFMPEG = """\
 V..... = Video
 ------
 V....D libx264              libx264 H.264 / AVC / MPEG-4 AVC / MPEG-4 part 10 (codec h264)
 V....D h264_nvenc           NVIDIA NVENC H.264 encoder (codec h264)
 V..... h264_cuvid           Nvidia CUVID H264 decoder (codec h264)
 V..... h264_v4l2m2m         V4L2 mem2mem H.264 encoder wrapper (codec h264)
 V..... h264_nvmpi           h264 (nvmpi) (codec h264)
"""


def test_gstreamers_list_gives_nvidias_coders_alone() -> None:
    assert video_codec.parse_gst_elements(GST) == ("nvh264dec", "nvv4l2decoder", "nvv4l2h264enc", "omxh265enc")
    assert video_codec.parse_gst_elements("no such thing") == ()


def test_ffmpegs_list_gives_nvidias_codecs_alone() -> None:
    assert video_codec.parse_ffmpeg_codecs(FFMPEG) == ("h264_cuvid", "h264_nvenc", "h264_nvmpi")


def test_without_an_nvidia_gpu_it_is_absent() -> None:
    finding = video_codec.check(Host(deep=True))
    if finding.facts["libnvcuvid"] == "loads":
        pytest.skip("this machine has NVIDIA's codec library: the absent path was not taken")
    assert finding.status is Status.ABSENT
    assert "no device node and no library" in finding.reason


def test_the_orin_nano_is_never_asked_for_its_encoder(tmp_path: Path) -> None:
    finding = video_codec.check(build_files(tmp_path, ORIN_NANO | {"/dev/v4l2-nvenc": "", "/dev/v4l2-nvdec": ""}))
    assert finding.status is Status.UNKNOWN
    assert "NVENC refused: the Orin Nano has no NVENC" in finding.reason
    assert "Savant#497" in finding.reason
    assert "NVDEC is there (/dev/v4l2-nvdec)" in finding.reason
    assert "on the CPU" in finding.remedy
    assert "libx264" in finding.remedy
    assert "libnvidia_encode" not in finding.facts


def test_nodes_alone_are_unknown(tmp_path: Path) -> None:
    finding = video_codec.check(build_files(tmp_path, {"/dev/v4l2-nvdec": "", "/dev/v4l2-nvenc": ""}))
    assert finding.status is Status.UNKNOWN
    assert "not tried" in finding.reason


def test_a_refused_encoder_is_not_coded_with_whatever_ffmpeg_has() -> None:
    refusal = video_codec.refused.read_table()[0]
    encode = Engine(name="NVENC", there=("x",), tools=BOTH, refusal=refusal)
    assert not video_codec.can_code(encode, Engine(name="NVDEC", there=("y",), tools=BOTH))
    assert video_codec.can_code(
        Engine(name="NVENC", there=("x",), tools=BOTH), Engine(name="", there=("y",), tools=BOTH)
    )


def test_its_bigger_brother_is_not_refused(tmp_path: Path) -> None:
    finding = video_codec.check(build_files(tmp_path, ORIN_NX | {"/dev/v4l2-nvenc": ""}))
    assert finding.facts["encode_refused"] is None
    assert "NVENC is there (/dev/v4l2-nvenc), not tried" in finding.reason


@pytest.mark.parametrize("name", ["orin-nano-super-r36.4.3", "container-on-orin-csv-r36", "orin-nano-super-r39.2.1"])
def test_each_recorded_orin_nano_is_refused(tmp_path: Path, name: str) -> None:
    finding = video_codec.check(build_device(tmp_path, name))
    assert finding.facts["encode_refused"]
    assert "NVENC refused: the Orin Nano has no NVENC" in finding.reason
    assert "libx264" in finding.remedy
    assert "libnvidia_encode" not in finding.facts


def test_a_library_is_no_proof_and_the_way_to_one_is_named() -> None:
    there = Engine(name="NVENC", there=("libnvidia-encode.so.1",), tools=BOTH)
    status, reason, remedy = video_codec.judge(there, Engine(name="NVDEC", there=("n",), tools=BOTH), False, "")
    assert status is Status.UNKNOWN
    assert "not tried: needs --deep" in reason
    assert "--deep" in remedy
    status, reason, _ = video_codec.judge(there, Engine(name="NVDEC"), False, "")
    assert status is Status.UNKNOWN
    assert "it takes an ffmpeg with h264_nvenc and h264_cuvid" in reason


def test_a_node_that_is_dev_null_by_another_name_is_seen(tmp_path: Path) -> None:
    (tmp_path / "v4l2-nvdec").symlink_to("/dev/null")
    assert video_codec.is_null(Host(), str(tmp_path / "v4l2-nvdec")) is True
    assert video_codec.is_null(Host(), "/dev/null") is True
    assert video_codec.is_null(Host(), "/dev/zero") is False
    assert video_codec.is_null(Host(), str(tmp_path / "missing")) is None
    assert video_codec.is_null(build_files(tmp_path / "r", {"/dev/v4l2-nvdec": ""}), "/dev/v4l2-nvdec") is None


def test_the_encoder_s_interface_tells_its_version(tmp_path: Path) -> None:
    source = "int NvEncodeAPIGetMaxSupportedVersion(unsigned *v) { *v = 12 << 4 | 2; return 0; }"
    library = ctypes.CDLL(str(compile_c(source, tmp_path / "libnvidia-encode.so.1")))
    assert video_codec.nvenc_version(library) == "12.2"
    none = ctypes.CDLL(str(compile_c("int nothing;", tmp_path / "libnone.so")))
    assert video_codec.nvenc_version(none) is None


def test_the_clip_is_right_only_with_all_its_frames_in_their_order() -> None:
    clip, size = video_clip.frames(), video_clip.FRAME_BYTES
    assert video_clip.describe(clip) == "8 of 8 frames right"
    assert video_clip.describe(clip[size:]) == video_clip.describe(clip[:-size]) == "7 frames instead of 8"
    assert video_clip.describe(clip[size:] + clip[:size]).startswith("0 of 8 frames right, frame 0 is 64 to 64, not 32")
    assert video_clip.describe(clip[: 3 * size] + b"\0" + clip[3 * size + 1 :]).startswith(
        "7 of 8 frames right, frame 3"
    )
    assert video_clip.describe(clip[:-1]) == "7 frames instead of 8"


def test_a_clip_is_really_coded_and_comes_back_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("ffmpeg"):
        pytest.skip("no ffmpeg: no clip was coded")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = video_clip.code(Host(), *video_clip.SOFTWARE).evidence
    assert done.is_right, done.value
    assert done.device_kind is DeviceKind.CPU  # a software codec is never taken for NVIDIA's
    assert os.listdir(tmp_path) == []


def test_an_engine_that_does_not_open_is_told_in_ffmpegs_first_words() -> None:
    if not shutil.which("ffmpeg"):
        pytest.skip("no ffmpeg: it could not refuse")
    done = video_clip.code(Host(), *BOTH).evidence
    if done.is_right:
        pytest.skip("this machine has an NVENC: nothing was refused")
    assert done.value.startswith("failed: ")


# A FAKE ffmpeg: its "codecs" copy the clip, so that what is asked of witnesses is seen without NVIDIA's engines.
FAKE_FFMPEG = """#!/bin/sh
case "$*" in *WITHOUT*) echo "Unknown encoder" >&2; exit 1;; esac
while [ $# -gt 1 ]; do [ "$1" = -i ] && from=$2; shift; done
exec cp "$from" "$1"
"""


def fake_ffmpeg(folder: Path, without: str = "nosuchcodec") -> Host:
    path = folder / "ffmpeg"
    path.write_text(FAKE_FFMPEG.replace("WITHOUT", without))
    path.chmod(0o755)
    return Host(environ={"PATH": f"{folder}:{os.environ['PATH']}"})


def test_a_coded_clip_names_its_witnesses_by_ffmpegs_processes(tmp_path: Path) -> None:
    coded = video_clip.code(fake_ffmpeg(tmp_path), *BOTH)
    assert len(set(coded.pids)) == 2
    assert os.getpid() not in coded.pids
    finding = video_codec._code(fake_ffmpeg(tmp_path), {})
    assert (finding.status, finding.device_kind) == (Status.WORKS, DeviceKind.GPU)
    said = [(witness.kind, witness.spoke) for witness in finding.witnesses]
    assert said[0] == (WitnessKind.API, False)
    assert [kind for kind, _ in said[1:-1]] == [WitnessKind.COUNTERS] * 4
    assert said[-1] == (WitnessKind.COMPARISON, True)
    assert "NVENC and NVDEC took" in finding.witnesses[-1].text


def test_an_ffmpeg_without_codecs_of_its_own_can_not_compare(tmp_path: Path) -> None:
    finding = video_codec._code(fake_ffmpeg(tmp_path, "libx264"), {})
    assert finding.status is Status.WORKS
    assert not finding.witnesses[-1].spoke
    assert finding.witnesses[-1].text == "ffmpeg with libx264 and h264 failed: Unknown encoder"


def test_a_clip_that_did_not_come_back_has_no_witnesses(tmp_path: Path) -> None:
    finding = video_codec._code(fake_ffmpeg(tmp_path, "h264_nvenc"), {})
    assert (finding.status, finding.witnesses) == (Status.BROKEN, ())


def test_no_ffmpeg_is_told(tmp_path: Path) -> None:
    done = video_clip.code(Host(environ={"PATH": str(tmp_path)}), *BOTH).evidence
    assert done.value == "failed: ffmpeg: not found" or done.value.startswith("failed: ")
    assert not done.is_right


@given(st.text())
def test_any_text_is_a_list_of_codecs(text: str) -> None:
    video_codec.parse_gst_elements(text)
    video_codec.parse_ffmpeg_codecs(text)
