"""How much memory a model needs on a backend, and which context fits. Pure: numbers in, numbers out."""

from __future__ import annotations

import math

import msgspec

from probes.contract import DeviceKind
from runners.model import ModelInfo, TensorInfo

MIB = 1 << 20
CONTEXT_TOKENS = 4096  # when nobody asks for one: what models were trained with (131072) would take all memory
LEAST_CONTEXT_TOKENS = 512
CONTEXT_STEP = 256  # llama.cpp rounds up to this
RESERVE_BYTES = 512 * MIB  # for the system: what is available now may be wanted by others a minute later
# The process beside its buffers. CPU: llama.cpp 0.25 and ONNX Runtime 1.32 took 50 to 70 MiB on x86-64 (measured).
# GPU: context, modules and work space of CUDA; an estimate, not measured on a Jetson.
RUNTIME_BYTES = {DeviceKind.CPU: 96 * MIB, DeviceKind.GPU: 384 * MIB}
BATCH_TOKENS = 512  # prompt tokens computed at once
KV_ELEMENT_BYTES = 2  # float16
LANGUAGE_TASKS = ("chat", "completion")
OPEN_AXIS = 1  # batch, and other axes that a file leaves open
OPEN_SIDE_PX = 640  # picture sides that a file leaves open
ACTIVATIONS = 64  # times the inputs' bytes. Estimate: MobileNet-like nets need about 40, detectors 60
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "bool": 1, "int64": 8, "float64": 8}


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes needed against bytes available.

    Attributes:
        needed_bytes: the sum of `terms`.
        available_bytes: None when the report does not say.
        terms: what it is made of, e.g. {"weights": ..., "kv_cache": ..., "compute": ...}.
        fits: None when it can't be told.
    """

    needed_bytes: int
    available_bytes: int | None
    terms: dict[str, int]
    fits: bool | None


def is_language(model: ModelInfo) -> bool:
    """Whether the model has a context and a KV cache."""
    return model.task in LANGUAGE_TASKS


def kv_cache_bytes(model: ModelInfo, context_tokens: int, bytes_per_element: int = KV_ELEMENT_BYTES) -> int | None:
    """Bytes of the KV cache: exact for full attention, an upper limit where blocks only see a window.

    Args:
        model: with KV heads per block; blocks without a KV cache have 0.
        context_tokens: >= 0.
        bytes_per_element: 2 for float16.

    Returns: None when the file does not say enough.
    """
    if not model.kv_heads or model.key_length is None or model.value_length is None:
        return None
    per_token = sum(model.kv_heads) * (model.key_length + model.value_length)
    return context_tokens * per_token * bytes_per_element


def choose_context(model: ModelInfo, wanted_tokens: int | None) -> int:
    """The context to plan with: what is wanted, or a modest default; never more than the model was trained for."""
    wanted = CONTEXT_TOKENS if wanted_tokens is None else wanted_tokens
    return min(wanted, model.context_tokens) if model.context_tokens else wanted


def fit(model: ModelInfo, backend_kind: DeviceKind, context_tokens: int | None, available_bytes: int | None) -> Fit:
    """Bytes needed against bytes available, part by part.

    Args:
        model: as read from its file.
        backend_kind: CPU, or GPU for everything else.
        context_tokens: > 0; lowered to what the model was trained for. None takes `CONTEXT_TOKENS`.
        available_bytes: what the system could give now; None when unknown.

    Returns: `fits` is None when either side is not fully known, and what is known does not settle it.
    """
    context = choose_context(model, context_tokens)
    terms = {"weights": model.tensors_bytes}
    cache = kv_cache_bytes(model, context) if is_language(model) else 0
    if is_language(model):
        terms["kv_cache"] = cache or 0
    terms["compute"] = _language_compute_bytes(model, context) if is_language(model) else _tensor_compute_bytes(model)
    terms["runtime"] = RUNTIME_BYTES.get(backend_kind, RUNTIME_BYTES[DeviceKind.GPU])
    terms["reserve"] = RESERVE_BYTES
    needed = sum(terms.values())
    fits: bool | None = None
    if available_bytes is not None:
        fits = needed <= available_bytes
        if fits and cache is None:
            fits = None
    return Fit(needed_bytes=needed, available_bytes=available_bytes, terms=terms, fits=fits)


def largest_context(
    model: ModelInfo, backend_kind: DeviceKind, limit_tokens: int, available_bytes: int | None
) -> int | None:
    """The largest context up to `limit_tokens` with which the model fits, in steps of `CONTEXT_STEP`.

    Returns: None when not even `LEAST_CONTEXT_TOKENS` fit, or when it can't be told.
    """
    limit = choose_context(model, limit_tokens)
    if fit(model, backend_kind, limit, available_bytes).fits:
        return limit
    low, high = LEAST_CONTEXT_TOKENS // CONTEXT_STEP, limit // CONTEXT_STEP
    best = None
    while low <= high:
        middle = (low + high) // 2
        if fit(model, backend_kind, middle * CONTEXT_STEP, available_bytes).fits:
            best, low = middle * CONTEXT_STEP, middle + 1
        else:
            high = middle - 1
    return best


def _language_compute_bytes(model: ModelInfo, context_tokens: int) -> int:
    """llama.cpp's compute buffer, with flash attention: scores of a batch, the mask, and activations.

    Measured with SmolLM2-135M, context 4096, batch 512: 98.3 MiB; this says 106.8 MiB.
    """
    batch = min(BATCH_TOKENS, context_tokens)
    floats = (model.vocabulary or 0) + 6 * (model.embedding_length or 0)
    return batch * (4 * floats + 2 * context_tokens)


def _tensor_compute_bytes(model: ModelInfo) -> int:
    """Activations, as a multiple of the inputs: the file does not tell them."""
    return ACTIVATIONS * sum(_input_bytes(one) for one in model.inputs)


def _input_bytes(tensor: TensorInfo) -> int:
    picture = len(tensor.shape) == 4
    sizes = [
        axis if isinstance(axis, int) else OPEN_SIDE_PX if picture and index >= 2 else OPEN_AXIS
        for index, axis in enumerate(tensor.shape)
    ]
    return math.prod(sizes) * ITEM_BYTES.get(tensor.dtype, 4)
