"""GGUF files: what the reader says about right, odd, cut and contradictory ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from model_files import LLAMA, MODELS, ONE_TENSOR, Numbers, Texts, gguf

from runners.contract import ModelRejected
from runners.formats.ggml_types import TYPES
from runners.inspect import inspect
from runners.model import ModelInfo

GGML_TABLE = """
import ctypes, json
from llama_cpp import _ggml
library = _ggml.libggml
for name, result in (("blck_size", ctypes.c_int64), ("type_size", ctypes.c_size_t), ("type_name", ctypes.c_char_p)):
    function = getattr(library, "ggml_" + name)
    function.argtypes, function.restype = [ctypes.c_int], result
table = {}
for number in range(256):
    block = library.ggml_blck_size(number) if number < 43 else 0
    if block:
        table[number] = [library.ggml_type_name(number).decode(), block, library.ggml_type_size(number)]
print(json.dumps(table))
"""


def read(tmp_path: Path, data: bytes, name: str = "model.gguf") -> ModelInfo:
    path = tmp_path / name
    path.write_bytes(data)
    return inspect(str(path))


def rejection(path: Path) -> ModelRejected:
    with pytest.raises(ModelRejected) as caught:
        inspect(str(path))
    return caught.value


def test_a_real_chat_model_is_described(smollm2: Path) -> None:
    model = inspect(str(smollm2))
    assert (model.format, model.format_version, model.architecture, model.task) == ("gguf", 3, "llama", "chat")
    assert (model.layers, model.heads, model.embedding_length, model.context_tokens) == (30, 9, 576, 8192)
    assert model.kv_heads == (3,) * 30
    assert (model.key_length, model.value_length, model.vocabulary) == (64, 64, 49152)
    assert (model.parameters, model.quantisation, model.licence) == (134515008, "Q4_1", "apache-2.0")
    assert 0.97 * model.size_bytes < model.tensors_bytes < model.size_bytes
    assert "<|im_start|>" in model.chat_template
    assert model.warnings == ()


def test_the_type_table_is_that_of_the_installed_ggml() -> None:
    done = subprocess.run([sys.executable, "-c", GGML_TABLE], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"llama-cpp-python is not usable: {done.stderr.strip()[-100:]}")
    theirs = {
        int(number): (name.upper(), block, size) for number, (name, block, size) in json.loads(done.stdout).items()
    }
    assert theirs == {number: (known.name.upper(), known.block, known.size_bytes) for number, known in TYPES.items()}


def test_version_1_is_named_as_such() -> None:
    reason = rejection(MODELS / "MF-04" / "v1.gguf").reason
    assert "version 1" in reason
    assert "4294967" not in reason


def test_a_big_endian_file_is_refused_with_its_name() -> None:
    error = rejection(MODELS / "MF-06" / "big-endian-v3.gguf")
    assert "big-endian" in error.reason
    assert "version 3" in error.reason
    assert "tiny-case" in error.reason
    assert "50331648" not in error.reason
    assert "convert" in error.remedy


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("str-1gib", ("general.name", "1073741823")),
        ("key-2e62", ("key 1", "4611686018427387904")),
        ("arr-1gi-strings", ("tokenizer.ggml.tokens", "1073741823")),
        ("arr-u64-wrap", ("x.y", "2305843009213693952")),
    ],
)
def test_a_length_beyond_the_file_names_key_and_offset(name: str, told: tuple[str, ...]) -> None:
    reason = rejection(MODELS / "MF-08" / f"{name}.gguf").reason
    assert all(part in reason for part in (*told, "offset"))


@pytest.mark.parametrize(("name", "told"), [("align-0", "power of 2"), ("align-24", "24"), ("align-i32-32", "type 5")])
def test_an_impossible_alignment_is_refused(name: str, told: str) -> None:
    reason = rejection(MODELS / "MF-09" / f"{name}.gguf").reason
    assert "general.alignment" in reason
    assert told in reason


def test_a_huge_alignment_is_refused() -> None:
    assert "1073741824" in rejection(MODELS / "MF-09" / "align-2e30.gguf").reason


@pytest.mark.parametrize(("name", "count"), [("ndims-9", 9), ("ndims-1e6", 1000000), ("ndims-max", 4294967295)])
def test_too_many_dimensions_name_the_tensor(name: str, count: int) -> None:
    reason = rejection(MODELS / "MF-11" / f"{name}.gguf").reason
    assert "'a.weight'" in reason
    assert f"{count} > 4" in reason


@pytest.mark.parametrize(("name", "told"), [("nested-5000", "arrays"), ("type-13", "type 13"), ("elem-99", "type 99")])
def test_a_value_of_no_known_type_is_refused(name: str, told: str) -> None:
    assert told in rejection(MODELS / "MF-13" / f"{name}.gguf").reason


def test_a_boolean_of_0x7f_is_true() -> None:
    metadata = inspect(str(MODELS / "MF-13" / "bool-7f.gguf")).metadata
    assert [one for one in metadata.values() if one is True]


def test_a_name_that_is_not_utf8_is_shown_escaped() -> None:
    assert "\\xff\\xfe" in inspect(str(MODELS / "MF-13" / "name-not-utf8.gguf")).name


def test_a_name_with_terminal_escapes_is_shown_spelled_out(tmp_path: Path) -> None:
    assert read(tmp_path, gguf({**LLAMA, "general.name": "\x1b[31mred"})).name == "\\x1b[31mred"


@pytest.mark.parametrize(("name", "have"), [("cut-last-byte", 39775), ("cut-mid-data", 3498)])
def test_a_file_with_data_missing_says_how_much_there_is_and_should_be(name: str, have: int) -> None:
    reason = rejection(MODELS / "MF-14" / f"{name}.gguf").reason
    assert f"{have} of 39776 bytes" in reason


@pytest.mark.parametrize("name", ["cut-tensor-info", "cut-kv-string", "cut-magic", "zero"])
def test_a_file_cut_in_its_header_is_called_truncated(name: str) -> None:
    assert "truncated" in rejection(MODELS / "MF-14" / f"{name}.gguf").reason


def test_bytes_after_the_last_tensor_are_a_warning() -> None:
    assert inspect(str(MODELS / "MF-14" / "trailing-junk.gguf")).warnings == ("7 bytes follow the last tensor",)


def test_an_architecture_that_is_new_to_us_is_read_by_its_own_prefix() -> None:
    model = inspect(str(MODELS / "MF-20" / "qwen35moe.gguf"))
    assert (model.architecture, model.layers, model.context_tokens) == ("qwen35moe", 1, 128)


def test_a_file_without_kv_heads_has_as_many_as_heads() -> None:
    model = inspect(str(MODELS / "MF-20" / "future.gguf"))
    assert model.architecture == "zz_future9"
    assert model.kv_heads == (model.heads,) * (model.layers or 0) != ()


def test_mxfp4_tensors_are_measured_exactly() -> None:
    model = inspect(str(MODELS / "MF-21" / "mxfp4.gguf"))
    assert model.tensors_bytes - 544 == 1152  # the two others are F32
    assert model.warnings == ()


@pytest.mark.parametrize(("name", "told"), [("type42", "another fork"), ("type200", "type 200")])
def test_a_tensor_of_an_odd_type_is_measured_by_the_next_and_warned_of(name: str, told: str) -> None:
    model = inspect(str(MODELS / "MF-21" / f"{name}.gguf"))
    assert "blk.0.ffn_down_exps.weight" in model.warnings[0]
    assert told in model.warnings[0]
    assert "256 bytes" in model.warnings[0]
    assert (model.layers, model.context_tokens) == (1, 128)


def test_kv_heads_that_differ_per_block_are_kept() -> None:
    assert inspect(str(MODELS / "MF-22" / "lfm2-array.gguf")).kv_heads == (
        0,
        0,
        8,
        0,
        0,
        8,
        0,
        0,
        8,
        0,
        8,
        0,
        8,
        0,
        8,
        0,
    )


def test_kv_heads_for_another_number_of_blocks_are_refused() -> None:
    reason = rejection(MODELS / "MF-22" / "bad-array.gguf").reason
    assert "head_count_kv has 3 entries for 16 blocks" in reason


@pytest.mark.parametrize("blocks", [0xFFFFFFFF, 10000])
def test_a_number_of_blocks_that_can_not_be_is_refused(tmp_path: Path, blocks: int) -> None:
    with pytest.raises(ModelRejected, match="block_count"):
        read(tmp_path, gguf({**LLAMA, "llama.block_count": blocks}))


def test_a_missing_template_makes_it_a_completion_model(tmp_path: Path) -> None:
    assert read(tmp_path, gguf(LLAMA)).task == "completion"
    assert read(tmp_path, gguf({**LLAMA, "tokenizer.chat_template": "{{ messages }}"})).task == "chat"


def test_the_vocabulary_is_counted(tmp_path: Path) -> None:
    assert read(tmp_path, gguf({**LLAMA, "tokenizer.ggml.tokens": Texts(["a", "b" * 300, ""])})).vocabulary == 3


def test_keys_after_a_long_vocabulary_are_read(tmp_path: Path) -> None:
    words = Texts([f"word {number}" * (number % 40) for number in range(20000)])  # far more than a window
    model = read(tmp_path, gguf({"tokenizer.ggml.tokens": words, **LLAMA}, ONE_TENSOR, 256))
    assert (model.name, model.vocabulary, model.tensors_bytes) == ("little", 20000, 256)


@pytest.mark.parametrize(
    ("keys", "told"), [({"general.type": "adapter"}, "LoRA"), ({"general.architecture": "clip"}, "mmproj")]
)
def test_a_part_of_another_model_is_named_as_one(tmp_path: Path, keys: dict[str, object], told: str) -> None:
    model = read(tmp_path, gguf({**LLAMA, **keys}))
    assert model.task == ""
    assert told in model.warnings[0]


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = gguf({"general.nam1": "x", "general.nam2": "x"}).replace(b"nam2", b"nam1")
    with pytest.raises(ModelRejected, match="twice"):
        read(tmp_path, data)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    tensors = [("a", (32, 2), 0, 0, 0), ("b", (32,), 0, 128, 0)]
    with pytest.raises(ModelRejected, match="'b' overlaps"):
        read(tmp_path, gguf(LLAMA, tensors, 512))


def test_a_shape_whose_product_wraps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="more elements"):
        read(tmp_path, gguf(LLAMA, [("a", (1 << 40, 1 << 40), 0, 0, 0)], 256))


def test_a_part_of_a_split_model_names_the_missing_parts(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"missing beside it: m-00002-of-00003\.gguf, m-00003-of-00003\.gguf"):
        read(tmp_path, gguf({**LLAMA, "split.count": 3, "split.no": 0}), "m-00001-of-00003.gguf")


def test_the_parts_of_a_split_model_are_summed(tmp_path: Path) -> None:
    second = gguf({"split.count": 2, "split.no": 1}, [("b", (32,), 1, 0, 0)], 64)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(second)
    first = gguf({**LLAMA, "split.count": 2, "split.no": 0}, ONE_TENSOR, 256)
    model = read(tmp_path, first, "m-00001-of-00002.gguf")
    assert (model.tensors_bytes, model.parameters) == (256 + 64, 64 + 32)
    assert model.size_bytes == len(first) + len(second)


def test_a_later_part_of_a_split_model_points_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf({**LLAMA, "split.count": 2, "split.no": 0}))
    with pytest.raises(ModelRejected) as caught:
        read(tmp_path, gguf({"split.count": 2, "split.no": 1}), "m-00002-of-00002.gguf")
    assert "m-00001-of-00002.gguf" in caught.value.remedy


def test_a_number_array_in_place_of_heads_is_a_value_per_block(tmp_path: Path) -> None:
    model = read(tmp_path, gguf({**LLAMA, "llama.attention.head_count_kv": Numbers([2, 1])}))
    assert model.kv_heads == (2, 1)


def test_a_file_of_40_gb_is_read_as_quickly_as_a_small_one(tmp_path: Path) -> None:
    rows = 40 * (1 << 30) // (4 * 1024)
    words = Texts(["word"] * 262144)
    head = gguf({"tokenizer.ggml.tokens": words, **LLAMA}, [("a", (1024, rows), 0, 0, 0)])
    path = tmp_path / "large.gguf"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + 40 * (1 << 30))  # sparse
    inspect(str(path))
    start_s = time.perf_counter()
    model = inspect(str(path))
    elapsed_s = time.perf_counter() - start_s
    assert model.tensors_bytes == 40 * (1 << 30)
    assert elapsed_s < 0.3  # 25 ms when the machine is otherwise idle


def test_the_sha256_is_that_of_the_file(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(LLAMA, ONE_TENSOR, 256) + bytes(3 << 20))
    assert inspect(str(path), want_sha256=True).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert inspect(str(path)).sha256 == ""
