"""How much memory a model needs, which context fits, and that nothing is guessed as zero."""

from __future__ import annotations

import pytest
from model_files import MODELS

from probes.contract import DeviceKind
from runners.fit import RESERVE_BYTES, choose_context, fit, kv_cache_bytes, largest_context
from runners.inspect import inspect
from runners.model import ModelInfo, TensorInfo

GIB = 1 << 30
# Llama 3.1 8B in Q4_K: 4.6 GB of weights, trained with 131072 tokens.
LARGE = ModelInfo(
    path="large.gguf",
    format="gguf",
    size_bytes=4_900_000_000,
    task="chat",
    context_tokens=131072,
    layers=32,
    embedding_length=4096,
    heads=32,
    kv_heads=(8,) * 32,
    key_length=128,
    value_length=128,
    vocabulary=128256,
    tensors_bytes=4_900_000_000,
)


@pytest.mark.parametrize(
    ("name", "context_tokens", "expected"),
    [
        ("lfm2-array", 32768, 402653184),
        ("lfm2-array", 4096, 50331648),
        ("hybrid-88", 32768, 268435456),
        ("scalar", 32768, 1073741824),
    ],
)
def test_the_kv_cache_is_exact_for_blocks_that_differ(name: str, context_tokens: int, expected: int) -> None:
    assert kv_cache_bytes(inspect(str(MODELS / "MF-22" / f"{name}.gguf")), context_tokens) == expected


def test_a_kv_cache_that_the_file_does_not_describe_is_unknown_and_not_zero() -> None:
    model = ModelInfo(path="x", format="gguf", size_bytes=1, task="chat", tensors_bytes=1)
    assert kv_cache_bytes(model, 4096) is None
    assert fit(model, DeviceKind.CPU, 4096, 8 * GIB).fits is None
    assert fit(model, DeviceKind.CPU, 4096, 1000).fits is False  # what is known is too much already


def test_the_terms_add_up_and_include_a_reserve() -> None:
    needs = fit(LARGE, DeviceKind.GPU, 4096, 8 * GIB)
    assert needs.needed_bytes == sum(needs.terms.values())
    assert set(needs.terms) == {"weights", "kv_cache", "compute", "runtime", "reserve"}
    assert needs.terms["weights"] == LARGE.tensors_bytes
    assert needs.terms["kv_cache"] == 4096 * 32 * 8 * 256 * 2
    assert needs.terms["reserve"] >= 512 << 20


def test_a_model_fits_to_the_byte() -> None:
    needed = fit(LARGE, DeviceKind.CPU, 4096, None).needed_bytes
    assert fit(LARGE, DeviceKind.CPU, 4096, needed).fits is True
    assert fit(LARGE, DeviceKind.CPU, 4096, needed - 1).fits is False


def test_unknown_memory_is_no_answer() -> None:
    assert fit(LARGE, DeviceKind.CPU, 4096, None).fits is None


def test_nobody_asks_for_a_context_and_gets_a_modest_one() -> None:
    assert choose_context(LARGE, None) == 4096
    assert fit(LARGE, DeviceKind.CPU, None, None) == fit(LARGE, DeviceKind.CPU, 4096, None)


def test_a_context_is_lowered_to_that_of_the_training(smollm2_like: ModelInfo) -> None:
    assert choose_context(smollm2_like, 100_000) == 8192
    assert choose_context(smollm2_like, 8000) == 8000


@pytest.fixture
def smollm2_like() -> ModelInfo:
    return ModelInfo(
        path="small.gguf",
        format="gguf",
        size_bytes=98_362_432,
        task="chat",
        context_tokens=8192,
        layers=30,
        embedding_length=576,
        heads=9,
        kv_heads=(3,) * 30,
        key_length=64,
        value_length=64,
        vocabulary=49152,
        tensors_bytes=96_576_768,
    )


def test_the_compute_buffer_is_near_what_llama_cpp_takes(smollm2_like: ModelInfo) -> None:
    measured = 103_024_640  # 98.25 MiB: SmolLM2-135M, context 4096, batch 512, flash attention, llama.cpp (ggml 0.25)
    told = fit(smollm2_like, DeviceKind.CPU, 4096, None).terms["compute"]
    assert measured <= told <= 1.15 * measured


def test_the_largest_context_just_fits() -> None:
    available = fit(LARGE, DeviceKind.GPU, 0x2000, None).needed_bytes + 1000
    found = largest_context(LARGE, DeviceKind.GPU, 131072, available)
    assert found == 0x2000
    assert fit(LARGE, DeviceKind.GPU, found + 256, available).fits is False


def test_there_is_no_largest_context_where_the_weights_do_not_fit() -> None:
    assert largest_context(LARGE, DeviceKind.GPU, 4096, LARGE.tensors_bytes + RESERVE_BYTES) is None


def test_a_picture_model_has_no_kv_cache_and_some_activations() -> None:
    picture = TensorInfo(name="x", shape=("N", 3, 224, 224), dtype="float32")
    model = ModelInfo(path="x", format="onnx", size_bytes=1, tensors_bytes=6_750_388, inputs=(picture,))
    needs = fit(model, DeviceKind.CPU, None, 8 * GIB)
    assert "kv_cache" not in needs.terms
    assert needs.terms["compute"] >= 3 * 224 * 224 * 4
    assert needs.fits is True
