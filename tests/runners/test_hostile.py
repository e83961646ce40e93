"""Files made to cost time or memory, and thousands of damaged ones: a sentence comes out, soon, and nothing else."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from model_files import LLAMA, MODELS, ONE_TENSOR, Numbers, Texts, classifier, field, gguf, onnx, tensor, text, varint

from runners.contract import ModelRejected
from runners.inspect import inspect

SECONDS = 2.0
GROWTH_BYTES = 64 << 20
PROJECT = Path(__file__).parent.parent.parent
# Seconds are those of the processor, so that a busy machine fails no test: nothing here waits for anything.
# Peak memory is that of a fresh process: VmHWM is set back (proc(5), clear_refs) after the imports.
CHILD = """
import json, sys, time
from runners.contract import ModelRejected
from runners.inspect import inspect

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

open("/proc/self/clear_refs", "w").write("5")
before, start_s = peak(), time.process_time()
try:
    model = inspect(sys.argv[1])
    said = "read"
except ModelRejected as error:
    said = error.reason
print(json.dumps([said, time.process_time() - start_s, peak() - before]))
"""


def cost(path: Path) -> tuple[str, float, int]:
    """What is said of a file, seconds, and growth of the process in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said, seconds, growth = json.loads(done.stdout)
    return said, seconds, growth


def counts(tensors: int, keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


def many_strings() -> bytes:
    head = counts(0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 8 << 20)
    return head + bytes(64 << 20)


def many_large_strings() -> bytes:
    one = struct.pack("<Q", 1 << 15) + bytes(1 << 15)
    return counts(0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 2048) + one * 2048


def many_tensors() -> bytes:
    names = (struct.pack("<Q", 120) + b"%0120d" % number for number in range(1 << 16))
    return counts(1 << 16, 0) + b"".join(name + struct.pack("<IQIQ", 1, 0, 200, 0) for name in names)


def many_keys() -> bytes:
    names = (struct.pack("<Q", 1000) + b"%01000d" % number for number in range(8192))
    return counts(0, 8192) + b"".join(name + struct.pack("<I", 8) + text("v" * 512) for name in names)


def many_numbers() -> bytes:
    return gguf({f"x{number}": Numbers(range(4096)) for number in range(2000)})


def many_fields() -> bytes:
    return onnx(field(1, b"") * 3_000_000)


def many_initializers() -> bytes:
    return onnx(b"".join(field(5, tensor(f"{number:0250d}", [], 1)) for number in range(1 << 17)))


def many_numbers_of_an_initializer() -> bytes:
    packed = field(7, b"".join(varint(-1) for _ in range(6000)))
    return onnx(b"".join(field(5, tensor("w", [6000], 7, more=packed)) for _ in range(200)))


def many_operators() -> bytes:
    return onnx(b"".join(field(1, field(4, f"Op{number:0400d}")) for number in range(60_000)))


def many_labels() -> bytes:
    return onnx(classifier(), {"names": "{" + "'" * (4 << 20)})


def many_quotes() -> bytes:
    return onnx(classifier(), {"names": "[" + '"\\\\' * (1 << 19)})


FLOODS: dict[str, Callable[[], bytes]] = {
    "8 million empty strings": many_strings,
    "64 MB of strings": many_large_strings,
    "65536 tensors with long names": many_tensors,
    "8192 keys of 1000 bytes": many_keys,
    "8 million numbers in arrays": many_numbers,
    "3 million nodes": many_fields,
    "131072 initializers": many_initializers,
    "packed numbers": many_numbers_of_an_initializer,
    "60000 operators": many_operators,
    "a label without end": many_labels,
    "labels of quotes": many_quotes,
}


@pytest.mark.parametrize("build", FLOODS.values(), ids=list(FLOODS))
def test_a_flood_costs_little_time_and_memory(tmp_path: Path, build: Callable[[], bytes]) -> None:
    path = tmp_path / "model"
    path.write_bytes(build())
    said, seconds, growth = cost(path)
    assert said
    assert seconds < SECONDS
    assert growth < GROWTH_BYTES


@pytest.mark.parametrize("case", ["MF-08", "MF-09", "MF-11", "MF-13", "MF-14"])
def test_a_hostile_case_costs_next_to_nothing(case: str) -> None:
    for path in sorted((MODELS / case).iterdir()):
        said, seconds, growth = cost(path)
        assert said
        assert seconds < 0.5, path.name
        assert growth < 8 << 20, path.name


def test_a_file_that_is_a_terabyte_of_nothing_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with open(path, "wb") as file:
        file.write(counts(0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 4 << 20))
        file.truncate(1 << 40)
    _, seconds, growth = cost(path)
    assert seconds < SECONDS
    assert growth < GROWTH_BYTES


SEEDS = {
    "gguf": gguf(
        {
            **LLAMA,
            "tokenizer.ggml.tokens": Texts(["a", "bc", ""]),
            "tokenizer.chat_template": "{{ x }}",
            "llama.attention.head_count_kv": Numbers([2, 0]),
            "general.flag": True,
            "llama.rope.freq_base": 1e6,
        },
        (*ONE_TENSOR, ("b.weight", (32, 2), 2, 256, 36)),
        320,
    ),
    "onnx": onnx(
        classifier()
        + field(5, tensor("w", [2, 3], 7, bytes(48)))
        + field(1, field(4, "If") + field(5, field(6, classifier()))),
        {"names": "{0: 'a', 1: 'b'}"},
    ),
}


def test_no_more_than_a_limit_is_read_of_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({"x": Texts(["w" * 100] * 20_000)}))
    assert inspect(str(path)).format == "gguf"
    monkeypatch.setattr("runners.formats.source.HEADER_LIMIT_BYTES", 1 << 20)
    with pytest.raises(ModelRejected, match="1 MiB were read"):
        inspect(str(path))


MUTATIONS = 1500
EDGES = (0, 1, 7, 8, 9, 0x7F, 0x80, 0xFF)


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """One to four changes: a byte, a number of 4 or 8 bytes, a cut, a piece doubled or taken out."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data)) if data else 0
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes([chance.choice(EDGES)])
        elif kind == 1:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 2:
            size = chance.choice((4, 8))
            data[at : at + size] = chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(size, "little")
        elif kind == 3:
            data[at : at + 8] = chance.choice((2**62, 2**63 - 1, 2**64 - 1, len(data))).to_bytes(8, "little")
        elif kind == 4:
            del data[at : at + chance.randint(1, 32)]
        else:
            data[at:at] = data[at : at + chance.randint(1, 32)]
    return bytes(data)


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_files_are_read_or_rejected_and_nothing_else(tmp_path: Path, name: str) -> None:
    chance = random.Random(f"damaged {name}")
    path = tmp_path / f"model.{name}"
    read, slowest_s = 0, 0.0
    for number in range(MUTATIONS):
        path.write_bytes(mutated(SEEDS[name], chance))
        start_s = time.process_time()
        try:
            model = inspect(str(path))
        except ModelRejected as error:
            said = error.reason
        else:
            said = model.format
            read += 1
        assert said, number
        slowest_s = max(slowest_s, time.process_time() - start_s)
    assert slowest_s < SECONDS
    assert 0 < read < MUTATIONS  # else the damage was none, or too much to get anywhere


def test_every_cut_of_a_file_is_rejected(tmp_path: Path) -> None:
    whole = SEEDS["gguf"]
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    needed = len(whole) - 28  # the last tensor's 36 bytes are padded to 64
    assert inspect(str(path)).tensors_bytes == 256 + 36
    for length in range(needed):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelRejected):
            inspect(str(path))
