"""What a model file is, as read from its own bytes by a bounded reader; nothing is loaded for it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output of a model.

    Attributes:
        shape: axis sizes in order; a string names a dynamic axis, None is an axis the file does not state.
        dtype: "float32", "uint8", "int64", ... as NumPy spells it.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader in `runners/formats/` could tell about a file; empty or None where it does not say.

    Attributes:
        format: "gguf", "onnx".
        format_version: GGUF version, or the ONNX IR version.
        task: "chat", "completion", "classification", "detection" or "".
        quantisation: by bytes of the tensors ("Q4_1"), not by the file's name.
        context_tokens: context the model was trained with.
        layers: number of blocks.
        heads: attention heads; per block in `kv_heads`.
        kv_heads: KV heads of each block; one entry per block, 0 for a block without a KV cache.
        key_length: size of one head's key, `value_length` of its value.
        tensors_bytes: bytes of all weights.
        opsets: ONNX operator-set domain -> version; the default domain is "".
        labels: class names in order, where the file carries them.
        metadata: what else the file says, short scalars only.
        sha256: hexadecimal; empty when it was not asked for.
        warnings: sentences on what is odd but not fatal.
    """

    path: str
    format: str
    size_bytes: int
    format_version: int = 0
    name: str = ""
    task: str = ""
    architecture: str = ""
    parameters: int | None = None
    quantisation: str = ""
    context_tokens: int | None = None
    layers: int | None = None
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: tuple[int, ...] = ()
    key_length: int | None = None
    value_length: int | None = None
    vocabulary: int | None = None
    tensors_bytes: int = 0
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    opsets: Mapping[str, int] = {}
    labels: tuple[str, ...] = ()
    licence: str = ""
    chat_template: str = ""
    metadata: Mapping[str, str | int | float | bool] = {}
    sha256: str = ""
    warnings: tuple[str, ...] = ()
