"""Video codec: NVENC and NVDEC, whether their nodes, libraries and tools are there; with --deep ffmpeg codes a clip.

A node is no proof: on L4T 35 and later /dev/v4l2-nvdec is another name of /dev/null, which a library interprets. Only
what was coded and came back is called working. Some modules have no encoder and must not be asked for one: see
`refused_checks.toml`.

Coding has not been seen working yet on NVIDIA's engines: none was at hand. The same commands were tried with libx264.

Source: node names of L4T 32 to 39; OE4T/meta-tegra devices.csv; libraries of NVIDIA's Video Codec SDK.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re

import msgspec

from probes import devicetree, l4t, pci, refused, saxpy, video_clip, witness
from probes.contract import Fact, Finding, Status
from probes.host import Host
from probes.refused import Refusal

LAYER = 2
RESTS_ON = ("driver", "pci", "l4t", "nodes", "libcuda", "video_libraries", "video_commands")
USES_GPU = True
COST_S = 2.0
DEADLINE_S = 60.0
MEMORY_MIB = 1024

ENCODE_NODES = ("/dev/v4l2-nvenc", "/dev/nvhost-msenc*", "/dev/nvhost-nvenc*")
DECODE_NODES = ("/dev/v4l2-nvdec", "/dev/nvhost-nvdec*")
ENCODE_LIBRARY, DECODE_LIBRARY = "libnvidia-encode.so.1", "libnvcuvid.so.1"
ENCODER, DECODER = "h264_nvenc", "h264_cuvid"  # ffmpeg's; neither falls back to the CPU
MAYBE = "that nodes, libraries and elements are listed is no proof"
PLUGIN_GLOB = "/usr/lib/*-linux-gnu/gstreamer-1.0/libgst{}.so"
PLUGINS = ("nvvideo4linux2", "nvcodec", "omx")
GST_LINE = re.compile(r"^[\w-]{1,64}:[ \t]{1,8}((?:nv|omx)\w{1,64}):", re.M | re.A)
FFMPEG_LINE = re.compile(r"^ ?V[A-Z.]{5} {1,8}(\w{1,64}_(?:nvenc|cuvid|nvmpi|nvv4l2enc|nvv4l2dec))\b", re.M | re.A)
IS_ENCODER, IS_DECODER = re.compile(r"(?:enc|_nvmpi)\Z"), re.compile(r"(?:dec|decoder|_cuvid|_nvmpi)\Z")
_finding = functools.partial(saxpy.finding, "video_codec", LAYER)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two directions.

    Attributes:
        name: "NVENC" or "NVDEC".
        there: what speaks for it: nodes, and libraries that load.
        tools: elements and codecs that would use it; alone they say nothing, they are installed everywhere.
        refusal: why it must not be tried; None when it may.
    """

    name: str
    there: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    refusal: Refusal | None = None


def parse_gst_elements(text: str) -> tuple[str, ...]:
    """NVIDIA's encoders and decoders in what `gst-inspect-1.0` lists, sorted; () for none."""
    names = {name for name in GST_LINE.findall(text) if IS_ENCODER.search(name) or IS_DECODER.search(name)}
    return tuple(sorted(names))


def parse_ffmpeg_codecs(text: str) -> tuple[str, ...]:
    """NVIDIA's codecs in what `ffmpeg -encoders` or `-decoders` lists, sorted; () for none."""
    return tuple(sorted(set(FFMPEG_LINE.findall(text))))


def is_null(host: Host, node: str) -> bool | None:
    """Whether a node is /dev/null by another name; None for a recorded device, whose nodes have lost their number."""
    if host.link(node) == "/dev/null":
        return True
    if host.recorded:
        return None
    try:
        return os.stat(host.path(node)).st_rdev == os.makedev(1, 3)
    except OSError:
        return None


def nvenc_version(library: ctypes.CDLL) -> str | None:
    """The newest encoder interface that the driver takes, "12.2"; None when it does not say. No GPU is touched.

    Source: nvEncodeAPI.h: NvEncodeAPIGetMaxSupportedVersion, major in the upper 28 bits.
    """
    number = ctypes.c_uint32()
    try:
        failed = library.NvEncodeAPIGetMaxSupportedVersion(ctypes.byref(number))
    except AttributeError:
        return None
    return None if failed or not number.value else f"{number.value >> 4}.{number.value & 15}"


def _read_library(host: Host, name: str, facts: dict[str, Fact]) -> tuple[str, ...]:
    """The library's name when it loads; the fact tells the loader's words otherwise."""
    key = name.partition(".")[0].replace("-", "_")
    if not host.executes:
        return ()
    try:
        library = host.load_library(name, local=True)
    except OSError as error:
        facts[key] = str(error)
        return ()
    facts[key] = "loads"
    if name == ENCODE_LIBRARY:
        facts["nvenc_api_version"] = nvenc_version(library)
    return (name,)


def _read_tools(host: Host, facts: dict[str, Fact]) -> tuple[str, ...]:
    """What the tools list; a list is no use of a codec, and leaves no cache behind."""
    facts["gstreamer_plugins"] = [path for name in PLUGINS for path in host.glob(PLUGIN_GLOB.format(name))]
    gst = host.run(["gst-inspect-1.0", "--gst-disable-registry-update"], timeout_s=15.0)
    lists = [host.run(["ffmpeg", "-hide_banner", option]) for option in ("-encoders", "-decoders")]
    elements = parse_gst_elements(gst.stdout)
    codecs = parse_ffmpeg_codecs("\n".join(answer.stdout for answer in lists))
    facts["gstreamer_elements"] = None if gst.returncode is None else list(elements)
    facts["ffmpeg_codecs"] = None if lists[0].returncode is None else list(codecs)
    return (*elements, *codecs)


def _read_nodes(host: Host, patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for pattern in patterns for path in host.glob(pattern))


def can_code(encode: Engine, decode: Engine) -> bool:
    """Whether the clip can be coded: both engines seem to be there, may be tried, and ffmpeg has their codecs."""
    return all(
        engine.there and not engine.refusal and codec in engine.tools
        for engine, codec in ((encode, ENCODER), (decode, DECODER))
    )


def judge(encode: Engine, decode: Engine, is_jetson: bool, not_executed: str) -> tuple[Status, str, str]:
    """What is known without coding anything: (status, reason, remedy).

    Args:
        encode: NVENC.
        decode: NVDEC.
        is_jetson: whether this is one.
        not_executed: why nothing could be executed; "" when it could.
    """
    remedy = next((engine.refusal.remedy for engine in (encode, decode) if engine.refusal), "")
    why = "needs --deep" if can_code(encode, decode) else f"it takes an ffmpeg with {ENCODER} and {DECODER}"
    said = [_words(engine, why) for engine in (encode, decode) if engine.refusal or engine.there]
    if not_executed:
        return Status.UNKNOWN, "; ".join([*said, not_executed]), remedy
    if not any(engine.there for engine in (encode, decode)):
        said.append("no device node and no library of NVENC or NVDEC is here")
        missing = "start a container with --runtime nvidia; install nvidia-l4t-multimedia" if is_jetson else ""
        return Status.ABSENT, "; ".join(said), remedy or missing or "without an NVIDIA GPU there is nothing to do"
    if can_code(encode, decode):
        remedy = "code a clip: edge-agent probe --only video_codec --deep"
    return Status.UNKNOWN, "; ".join(said), remedy or f"code some frames with it; {MAYBE}"


def _words(engine: Engine, why_not_tried: str) -> str:
    if engine.refusal:
        return f"{engine.name} {engine.refusal.text}"
    return f"{engine.name} is there ({', '.join(engine.there)}), not tried: {why_not_tried}"


def _code(host: Host, facts: dict[str, Fact]) -> Finding:
    """Code the clip with ffmpeg's codecs for NVIDIA, and ask the witnesses."""
    with witness.Watch(host) as watch:
        coded = video_clip.code(host, ENCODER, DECODER)
    tried = coded.evidence
    said = watch.witnesses((tried,), coded.pids, video_clip.on_cpu(host, tried)) if tried.is_right else ()
    status = Status.WORKS if tried.is_right else Status.BROKEN
    reason = "" if tried.is_right else f"ffmpeg with {ENCODER} and {DECODER}: {tried.value}"
    return _finding(status, reason, "", facts, evidence=(tried,), witnesses=said)


def check(host: Host) -> Finding:
    """See what is there; with `host.deep` code a clip through both engines and compare it.

    Returns: WORKS only for a clip that came back right; BROKEN for one that did not; UNKNOWN for engines that are
        there and were not tried, or must not be; ABSENT without any.
    """
    facts: dict[str, Fact] = {}
    tools = _read_tools(host, facts)
    is_jetson = l4t.is_jetson(host)
    refusals = [refused.find(host, f"video_codec/{part}") for part in ("encode", "decode")]
    encode_nodes, decode_nodes = _read_nodes(host, ENCODE_NODES), _read_nodes(host, DECODE_NODES)
    encode = Engine(
        name="NVENC",
        there=() if refusals[0] else (*encode_nodes, *_read_library(host, ENCODE_LIBRARY, facts)),
        tools=tuple(name for name in tools if IS_ENCODER.search(name)),
        refusal=refusals[0],
    )
    decode = Engine(
        name="NVDEC",
        there=() if refusals[1] else (*decode_nodes, *_read_library(host, DECODE_LIBRARY, facts)),
        tools=tuple(name for name in tools if IS_DECODER.search(name)),
        refusal=refusals[1],
    )
    facts["encode_nodes"], facts["decode_nodes"] = list(encode_nodes), list(decode_nodes)
    facts["null_nodes"] = [node for node in (*encode_nodes, *decode_nodes) if is_null(host, node)]
    facts["encode_refused"] = encode.refusal.text if encode.refusal else None
    facts["soc"] = devicetree.read_device_tree(host).soc
    facts["nvidia_gpus"] = [gpu.text for gpu in pci.read_gpus(host) if gpu.vendor == pci.NVIDIA]
    if host.deep and host.executes and can_code(encode, decode):
        return _code(host, facts)
    return _finding(*judge(encode, decode, is_jetson, host.not_executed), facts)
