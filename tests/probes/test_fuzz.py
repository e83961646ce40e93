"""Fuzz: every text parser of the probes takes anything and answers, or raises what it documents, quickly and small.

Real samples from `tests/fixtures` are mutated (bytes flipped, parts cut, doubled, spliced with another sample, put
beside tokens that parsers stumble over), and random bytes are decoded as `Host.text` does. The seed is fixed: a failure
comes back with the same number of inputs.

The usual run takes a few thousand inputs. For the whole measure, with its figures printed:

    EDGE_AGENT_FUZZ=100000 python -m pytest -s tests/probes/test_fuzz.py
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import random
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from probes import (
    clinfo,
    container,
    cudnn,
    devicetree,
    dpkg,
    gpu_counters,
    hardware,
    icd,
    jetpack_parts,
    l4t,
    memory,
    nvidia_smi,
    nvpmodel,
    storage,
    tegrastats,
    tenants,
    video_codec,
    vulkaninfo,
)
from probes.host import PART_BYTES
from probes.listing import FOLDER
from tests.recorded import DEVICES, FIXTURES

INPUTS = int(os.environ.get("EDGE_AGENT_FUZZ", "4000"))
SEED = 20261207
LONGEST_S = 2.0
MOST_BYTES = 64 << 20
TEXT_BYTES = 1 << 20  # `Host.text` reads no more

CUDA_VERSION = '{"cuda": {"name": "CUDA SDK", "version": "12.6.11"}, "cuda_cudart": {"version": "12.6.68"}}'
FFMPEG = " V....D h264_nvenc           NVIDIA NVENC H.264 encoder (codec h264)\n V....D libx264   x264 (codec h264)\n"
GST = "nvvideo4linux2:  nvv4l2decoder: NVIDIA v4l2 video decoder\nx264:  x264enc: x264 H.264 Encoder\n"
LOCKS = "1: POSIX  ADVISORY  WRITE 812 fe:00:402116 0 EOF\n2: FLOCK  ADVISORY  WRITE -1 08:1f:9 0 EOF\n"
DPKG = (
    "Package: nvidia-l4t-core\nStatus: install ok installed\nArchitecture: arm64\nVersion: 36.4.3-20250107174145\n"
    "Description: NVIDIA Core Package\n .\n more\n\nPackage: bash\nEssential: yes\nStatus: install ok installed\n"
    "Version: 5.1-6\n\nPackage: libcudnn9-cuda-12\nStatus: hold reinstreq half-installed\nProvides: libcudnn9 (= 9)\n\n"
)
MANIFEST = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.204"}}'
MOUNTS = "36 35 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n40 36 0:5 / /a\\040b ro - tmpfs tmpfs ro\n"
NVMAP = (
    "CLIENT                        PROCESS      PID        SIZE\nuser                   python3     1234       5120K\n"
)
NVPMODEL = "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=1 NAME=25W >\n< PM_CONFIG DEFAULT=1 >\n"
NVPMODEL_QUERY = "NVPM ERROR: x\nNV Power Mode: MODE_15W_DESKTOP\n7\n"
STATUS = "Name:\tllama-server\nPid:\t12\nVmRSS:\t  3194880 kB\nVmSwap:\t       0 kB\n"
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 635136 1024 5\n"

STUMBLING = (
    "\0",
    "\n",
    "\r",
    "\x85",
    "\u2028",
    "\ufffd",
    "\u0663",  # a digit to `\d`
    "\u00b2",  # a digit to str.isdigit, and not to int
    "-",
    "+",
    "=",
    ":",
    "*",
    "&a ",
    '"',
    "'",
    "[",
    "{",
    '{"cuda":',
    "0x",
    "1e999",
    "NaN",
    "9" * 30,
    "9" * 5000,  # longer than int() takes
    "[" * 5000,  # deeper than the recursion limit
    "[N/A]",
    "kB",
    "\t",
    " " * 300,
)


class Parser(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        function: what is tried.
        sample: parts of the recorded paths, command lines or cases whose text it reads.
        texts: samples of our own, beside the recorded ones.
        raises: what its docstring says it raises.
        takes_number: it takes a number instead of a text.
        kind: tells rows of one function apart.
        longest: characters; above it the text is refused unread.
        taken_as: makes of a text what it takes, where that is something else.
    """

    function: Callable[[Any], object]
    sample: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    raises: tuple[type[Exception], ...] = ()
    takes_number: bool = False
    kind: str = ""
    longest: int = TEXT_BYTES
    taken_as: Callable[[str], Any] | None = None

    def parse(self, given: Any) -> None:
        """Give it one of the table's texts or numbers."""
        self.function(given if self.taken_as is None else self.taken_as(given))

    @property
    def function_name(self) -> str:
        """As in "l4t.parse_release"."""
        function = self.function.func if isinstance(self.function, functools.partial) else self.function
        return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @property
    def name(self) -> str:
        """The function's name, and the kind where there is more than one row of it."""
        return f"{self.function_name} {self.kind}".strip()


def cdi(name: str) -> Callable[[Any], object]:
    """Reads a CDI file of that name."""
    return functools.partial(container.parse_spec, name)


def in_parts(text: str) -> Iterator[bytes]:
    """A file's bytes in parts, up to the limit of what is read of it."""
    left = dpkg.STATUS_LIMIT_BYTES
    for at in range(0, len(text), PART_BYTES):
        part = text[at : at + PART_BYTES].encode()[:left]
        left -= len(part)
        yield part


PARSERS = (
    Parser(function=clinfo.parse_devices, sample=("DT-15/",)),
    Parser(function=clinfo.parse_platform_count, sample=("DT-15/",)),
    Parser(function=cdi("x.json"), kind="JSON", sample=("DT-19/json",)),
    Parser(
        function=cdi("x.yaml"),
        kind="YAML",
        longest=container.YAML_LIMIT,
        sample=("DT-19/csv", "DT-19/pva", "DT-19/broken"),
    ),
    Parser(function=cudnn.parse_cudart, takes_number=True),
    Parser(function=cudnn.parse_version, takes_number=True),
    Parser(function=cudnn.soname_major, texts=("libcudnn.so.8: cannot open shared object file",)),
    Parser(function=devicetree.parse_board_ids, texts=("3489:0000:A0 3448-0000-402",)),
    Parser(function=devicetree.parse_strings, sample=("device-tree",)),
    Parser(function=dpkg.parse_locks, texts=(LOCKS,)),
    Parser(function=dpkg.parse_stanza, texts=tuple(DPKG.split("\n\n")), taken_as=str.encode),
    Parser(function=dpkg.parse_status, texts=(DPKG,), taken_as=in_parts, longest=dpkg.STATUS_LIMIT_BYTES),
    Parser(function=hardware.count_cpus, texts=("0-3,6", "0-11")),
    Parser(function=hardware.parse_cpu, sample=("cpuinfo",)),
    Parser(function=icd.parse_icd, texts=("libnvidia-opencl.so.1\n",), raises=(ValueError,)),
    Parser(function=icd.parse_json_manifest, texts=(MANIFEST,), raises=(ValueError,)),
    Parser(function=jetpack_parts.parse_cuda_version, texts=(CUDA_VERSION, "CUDA Version 10.2.300\n")),
    Parser(function=jetpack_parts.parse_kernel, sample=("/proc/version", "uname")),
    Parser(function=jetpack_parts.parse_os_release, sample=("os-release",)),
    Parser(function=jetpack_parts.parse_ubuntu, sample=("os-release",)),
    Parser(function=l4t.parse_packages, sample=("dpkg-query",)),
    Parser(function=l4t.parse_release, sample=("nv_tegra_release",)),
    Parser(function=memory.parse_meminfo, sample=("meminfo",)),
    Parser(function=memory.parse_zram, texts=(SWAPS,)),
    Parser(function=nvidia_smi.parse_gpus, sample=("DT-12/",)),
    Parser(function=nvidia_smi.parse_number, texts=("24576 MiB", "12 %", "[N/A]")),
    Parser(function=nvpmodel.parse_configuration, texts=(NVPMODEL,)),
    Parser(function=nvpmodel.parse_query, texts=(NVPMODEL_QUERY,)),
    Parser(function=nvpmodel.parse_state, texts=("pmode:0002 fmode:fan_mode_quiet",)),
    Parser(function=storage.parse_mounts, texts=(MOUNTS,)),
    Parser(function=tegrastats.parse_line, sample=("DT-06/", "DT-09/", "tegrastats")),
    Parser(function=tenants.parse_status, texts=(STATUS,)),
    Parser(function=video_codec.parse_ffmpeg_codecs, texts=(FFMPEG,)),
    Parser(function=video_codec.parse_gst_elements, texts=(GST,)),
    Parser(function=vulkaninfo.parse_failure, sample=("DT-14/",)),
    Parser(function=vulkaninfo.parse_summary, sample=("DT-14/",)),
    Parser(function=gpu_counters.parse_nvmap_clients, texts=(NVMAP,)),
)
NAMES = [parser.name for parser in PARSERS]
OF_TEXT = [parser for parser in PARSERS if not parser.takes_number]


def recorded_texts() -> dict[str, str]:
    """Every recorded text, by a name that says what it is of."""
    found = {}
    for path in sorted(DEVICES.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        for kind in ("files", "commands"):
            found |= {f"{path.stem} {name}": entry["content"] for name, entry in document[kind].items()}
    for path in sorted((FIXTURES / "cases").rglob("*")):
        if path.is_file():
            found[path.relative_to(FIXTURES / "cases").as_posix()] = path.read_bytes().decode("utf-8", "replace")
    return found


TEXTS = recorded_texts()


def samples(parser: Parser) -> list[str]:
    """The real texts that a parser reads."""
    return [*(text for name, text in TEXTS.items() if any(part in name for part in parser.sample)), *parser.texts]


def mutate(text: str, other: str, chance: random.Random) -> str:
    """A text near `text`, at most `TEXT_BYTES` long."""
    for _ in range(chance.randint(1, 6)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.choice((1, 1, 2, 8, 40, 400)))
        way = chance.randrange(7)
        if way == 0:
            text = text[:start] + text[end:]
        elif way == 1:
            text = text[:start] + chr(chance.randrange(256)) + text[end:]
        elif way == 2:
            text = text[:end] + text[start:end] * chance.choice((1, 3, 60)) + text[end:]
        elif way == 3:
            text = text[:start] + chance.choice(STUMBLING) + text[end:]
        elif way == 4:
            at = chance.randint(0, len(other))
            text = text[:start] + other[at : at + 200] + text[end:]
        elif way == 5:
            text = text[:start] + chance.randbytes(12).decode("utf-8", "replace") + text[start:]
        else:
            text = text[:start] if chance.random() < 0.2 else text[:start] + text[start:end].swapcase() + text[end:]
    return text[:TEXT_BYTES]


def inputs(parser: Parser, count: int) -> Iterator[Any]:
    """`count` things to try, the same ones each time."""
    chance = random.Random(f"{SEED} {parser.name}")
    every, own = list(TEXTS.values()), samples(parser)
    for number in range(count):
        if parser.takes_number:
            yield int.from_bytes(chance.randbytes(chance.choice((1, 2, 4, 8))), "little", signed=True)
        elif number % 10 == 0:
            yield chance.randbytes(chance.randint(0, 600)).decode("utf-8", "replace")
        else:
            yield mutate(chance.choice(own), chance.choice(every), chance)


class Measured(msgspec.Struct, kw_only=True):
    """What was seen while parsing: the slowest call, and the most that one held at once."""

    count: int = 0
    longest_s: float = 0.0
    most_bytes: int = 0

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.count} inputs, slowest {self.longest_s * 1e3:.1f} ms, most {self.most_bytes / 2**20:.2f} MiB"


def attempt(parser: Parser, given: Any, measured: Measured) -> None:
    """Parse twice: for the time, and with every allocation traced, which takes longer.

    Raises:
        Exception: one that the parser does not document.
    """
    start_s = time.perf_counter()
    with contextlib.suppress(*parser.raises):
        parser.parse(given)
    measured.longest_s = max(measured.longest_s, time.perf_counter() - start_s)
    tracemalloc.start()
    try:
        with contextlib.suppress(*parser.raises):
            parser.parse(given)
        measured.most_bytes = max(measured.most_bytes, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    measured.count += 1


def judge(parser: Parser, measured: Measured) -> None:
    assert measured.longest_s < LONGEST_S, f"{parser.name} took {measured.longest_s:.2f} s"
    assert measured.most_bytes < MOST_BYTES, f"{parser.name} took {measured.most_bytes >> 20} MiB"


def test_every_parser_of_the_probes_is_in_the_table() -> None:
    found = set()
    for path in sorted(FOLDER.glob("*.py")):
        functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
        found |= {f"{path.stem}.{node.name}" for node in functions if node.name.startswith("parse_")}
    assert len(found) > 20
    assert found <= {parser.function_name for parser in PARSERS}
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("parser", OF_TEXT, ids=lambda parser: parser.name)
def test_a_parser_has_real_samples_and_takes_them(parser: Parser) -> None:
    assert samples(parser)
    for text in samples(parser):
        attempt(parser, text, Measured())


@pytest.mark.parametrize("parser", PARSERS, ids=NAMES)
@pytest.mark.timeout(1800)
def test_a_parser_survives_what_is_near_its_samples_and_what_is_not(parser: Parser) -> None:
    count = -(-INPUTS // len(PARSERS))
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    measured = Measured()
    for given in inputs(parser, count):
        attempt(parser, given, measured)
    grown_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes
    print(f"\nfuzz {parser.name}: {measured.text}, process grew {grown_bytes / 2**20:.1f} MiB")
    assert measured.count == count
    judge(parser, measured)
    assert grown_bytes < MOST_BYTES


@pytest.mark.parametrize("parser", OF_TEXT, ids=lambda parser: parser.name)
def test_a_parser_survives_the_longest_texts_that_a_host_reads(parser: Parser) -> None:
    parts = [*STUMBLING, "a", "9", "a: ", "1-", "a=", "nv", "libcudnn", *(text[:200] for text in samples(parser)[:3])]
    measured = Measured()
    for part in filter(None, parts):
        attempt(parser, (part * (parser.longest // len(part) + 1))[: parser.longest], measured)
        assert measured.longest_s < LONGEST_S, f"{part[:20]!r} again and again took {measured.longest_s:.2f} s"
    print(f"\ngiants {parser.name}: {measured.text}")
    judge(parser, measured)


def test_the_inputs_are_the_same_each_time_and_far_from_their_samples() -> None:
    parser = PARSERS[NAMES.index("memory.parse_meminfo")]
    first = list(inputs(parser, 200))
    assert first == list(inputs(parser, 200))
    assert len(set(first)) > 190
    assert not set(first) & set(samples(parser))


def test_a_parser_with_an_error_is_found_by_these_inputs() -> None:
    def parse_badly(text: str) -> int:
        return int(text.partition("MemTotal:")[2].split()[0])

    parser = Parser(function=parse_badly, sample=("meminfo",))
    failed = 0
    for given in inputs(parser, 200):
        try:
            attempt(parser, given, Measured())
        except (ValueError, IndexError):
            failed += 1
    assert failed > 10
