"""The known answer of the video codecs: frames that are each of one grey, coded and decoded with ffmpeg.

H.264 loses detail, and an even picture has none: each frame must come back within `TOLERANCE` of its own grey, in
order, and none may be missing. A decoder that repeats frames, or shows none, is seen.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from probes import witness
from probes.contract import DeviceKind, Evidence, Witness
from probes.host import Host

WIDTH, HEIGHT = 320, 240  # above the smallest that NVENC takes (145 x 49)
GREYS = (32, 64, 96, 128, 160, 192, 224, 48)
TOLERANCE = 4
FRAME_BYTES = WIDTH * HEIGHT * 3 // 2  # yuv420p
TIMEOUT_S = 12.0
DEVICES = {"nvenc": "NVENC", "cuvid": "NVDEC"}
SOFTWARE = ("libx264", "h264")
FAILED = "failed: "
RAW = ("-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{WIDTH}x{HEIGHT}", "-r", "10")


def frames() -> bytes:
    """The clip as yuv420p: luma even, no colour."""
    chroma = bytes((128,)) * (WIDTH * HEIGHT // 2)
    return b"".join(bytes((grey,)) * (WIDTH * HEIGHT) + chroma for grey in GREYS)


def describe(decoded: bytes) -> str:
    """How many frames came back right, and the first that did not."""
    count = len(decoded) // FRAME_BYTES
    if len(decoded) != FRAME_BYTES * len(GREYS):
        return f"{count} frames instead of {len(GREYS)}"
    wrong = []
    for index, grey in enumerate(GREYS):
        luma = decoded[index * FRAME_BYTES : index * FRAME_BYTES + WIDTH * HEIGHT]
        if max(abs(max(luma) - grey), abs(min(luma) - grey)) > TOLERANCE:
            wrong.append(f"frame {index} is {min(luma)} to {max(luma)}, not {grey}")
    return f"{len(GREYS) - len(wrong)} of {len(GREYS)} frames right" + (f", {wrong[0]}" if wrong else "")


def encode_command(encoder: str, raw: str, coded: str) -> list[str]:
    """The command line that codes the raw clip; bare H.264 without B-frames, as frames must keep their order."""
    options = ["-c:v", encoder, "-b:v", "2M", "-bf", "0", "-f", "h264", coded]
    return ["ffmpeg", "-nostdin", "-v", "error", "-y", *RAW, "-i", raw, *options]


def decode_command(decoder: str, coded: str, raw: str) -> list[str]:
    """The command line that decodes it again."""
    source = ["-c:v", decoder, "-f", "h264", "-i", coded]
    return ["ffmpeg", "-nostdin", "-v", "error", "-y", *source, "-f", "rawvideo", "-pix_fmt", "yuv420p", raw]


class Coded(msgspec.Struct, frozen=True, kw_only=True):
    """What came back, and the processes that did the work."""

    evidence: Evidence
    pids: tuple[int, ...]


def code(host: Host, encoder: str, decoder: str) -> Coded:
    """Code and decode the clip in a folder that is removed again.

    Args:
        host: the machine; ffmpeg is run on it.
        encoder: ffmpeg's name, "h264_nvenc".
        decoder: "h264_cuvid".

    Returns: evidence that is right when every frame came back; its value is ffmpeg's last words when it failed.
    """
    start_s = host.monotonic_s()
    value, pids = _coded(host, encoder, decoder)
    names = [DEVICES.get(name.rpartition("_")[2], name) for name in (encoder, decoder)]
    is_gpu = all(name in DEVICES.values() for name in names)
    evidence = Evidence(
        executed=f"H.264, {len(GREYS)} frames of {WIDTH}x{HEIGHT} through {encoder} and {decoder}",
        device=" and ".join(names),
        device_kind=DeviceKind.GPU if is_gpu else DeviceKind.CPU,
        value=value,
        expected=f"{len(GREYS)} of {len(GREYS)} frames right",
        elapsed_s=host.monotonic_s() - start_s,
        timer="host",
    )
    return Coded(evidence=evidence, pids=pids)


def on_cpu(host: Host, tried: Evidence) -> Witness:
    """The same clip through ffmpeg's own codecs; silent where this ffmpeg has none of them."""
    again = code(host, *SOFTWARE).evidence
    who = f"ffmpeg with {' and '.join(SOFTWARE)}"
    if again.value.startswith(FAILED):
        return witness.not_compared(f"{who} {again.value}")
    return witness.compared(who, again.is_right, again.elapsed_s, (tried,))


def _coded(host: Host, encoder: str, decoder: str) -> tuple[str, tuple[int, ...]]:
    pids: list[int] = []
    import tempfile

    with tempfile.TemporaryDirectory(prefix="edge-agent-") as folder:
        raw, coded, back = (str(Path(folder) / name) for name in ("raw.yuv", "clip.h264", "back.yuv"))
        Path(raw).write_bytes(frames())
        for command in (encode_command(encoder, raw, coded), decode_command(decoder, coded, back)):
            answer = host.run(command, timeout_s=TIMEOUT_S)
            pids += [] if answer.pid is None else [answer.pid]
            if answer.returncode != 0:
                said = answer.reason or answer.stderr or f"ended with {answer.returncode}"
                words = f"{FAILED}{said}".replace("\0", "").replace(folder, "…")[:600].strip()  # the cause comes first
                return words, tuple(pids)
        return describe(Path(back).read_bytes()), tuple(pids)
