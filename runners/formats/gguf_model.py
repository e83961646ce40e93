"""What a GGUF file's metadata says about the model: shape, task, quantisation; parts of split models together."""

from __future__ import annotations

import re
from pathlib import Path

from runners.contract import ModelRejected
from runners.formats.gguf import TEMPLATE_KEY, Header, Tensors, Value, read_header, read_tensors
from runners.formats.source import Source, open_source
from runners.model import ModelInfo

BLOCKS_LIMIT = 8192
HEADS_LIMIT = 1 << 16
METADATA_KEPT = 64
PARTS_LIMIT = 256
# Source: llama.cpp's llama_split_path(), "%s-%05d-of-%05d.gguf"
PART_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)
NOT_LANGUAGE = {
    "adapter": "is an adapter (LoRA) for another model, no model of its own",
    "mmproj": "is the image or audio part (mmproj) of another model, no language model of its own",
    "clip": "is the image or audio part (mmproj) of another model, no language model of its own",
    "imatrix": "is an importance matrix for quantising a model, no model of its own",
    "vocab": "holds a vocabulary without weights",
}


def read(source: Source) -> ModelInfo:
    """Read a GGUF file; of a split model all parts, beginning with the first.

    Raises:
        ModelRejected: see `runners.formats.gguf`; or parts are missing, or the metadata contradicts itself.
    """
    header = read_header(source)
    tensors = read_tensors(source, header)
    keys = _Keys(source.name, header)
    size_bytes = source.size_bytes
    parts = _other_parts(source.name, keys)
    for path in parts:
        with open_source(path) as part:
            tensors = _together(tensors, _read_part(part))
            size_bytes += part.size_bytes
    return _model(keys, tensors, size_bytes, len(parts) + 1)


def _read_part(source: Source) -> Tensors:
    if source.peek(4) != b"GGUF":
        raise ModelRejected(f"{source.name}, a part of a split model, is not a GGUF file", "download that part again")
    return read_tensors(source, read_header(source))


def _together(first: Tensors, second: Tensors) -> Tensors:
    names = first.bytes_by_type.keys() | second.bytes_by_type.keys()
    by_type = {name: first.bytes_by_type.get(name, 0) + second.bytes_by_type.get(name, 0) for name in sorted(names)}
    return Tensors(by_type, first.elements + second.elements, first.warnings + second.warnings)


class _Keys:
    """Typed access to metadata; keys of the architecture are found by the file's own prefix."""

    def __init__(self, path: str, header: Header) -> None:
        self.path = path
        self.header = header
        self.architecture = self.text("general.architecture")

    def text(self, key: str) -> str:
        """A text, or "" when it is not there."""
        value = self.header.values.get(key, "")
        return value if isinstance(value, str) else ""

    def own(self, key: str) -> Value | None:
        """A value of this architecture: `own("block_count")` is "llama.block_count" of a Llama."""
        return self.header.values.get(f"{self.architecture}.{key}")

    def number(self, key: str, limit: int = 1 << 40) -> int | None:
        """A whole number of this architecture, or None when it is not there.

        Raises:
            ModelRejected: it is something else, or not within 0 and `limit`.
        """
        value = self.own(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value <= limit:
            raise self.contradiction(key, f"is {_shown(value)}, which can't be")
        return int(value)

    def per_block(self, key: str, blocks: int | None) -> tuple[int, ...] | None:
        """A number for each block, from an array or from one number for all; None when it is not there.

        Raises:
            ModelRejected: the array has another length than there are blocks, or a number can't be.
        """
        value = self.own(key)
        length = self.header.lengths.get(f"{self.architecture}.{key}")
        if length is not None and not isinstance(value, tuple):
            raise self.contradiction(key, f"has {length} entries, which are too many or no numbers")
        if value is None:
            return None
        numbers = value if isinstance(value, tuple) else (value,) * (blocks or 0)
        if isinstance(value, tuple) and len(value) != (blocks or 0):
            raise self.contradiction(key, f"has {len(value)} entries for {blocks or 'an unknown number of'} blocks")
        checked = tuple(number for number in numbers if isinstance(number, int) and 0 <= number <= HEADS_LIMIT)
        if len(checked) != len(numbers) or isinstance(value, str | float):
            raise self.contradiction(key, f"is {_shown(value)}, which can't be")
        return checked

    def contradiction(self, key: str, what: str) -> ModelRejected:
        """The error for a value of this architecture."""
        return ModelRejected(
            f"{self.path}: {self.architecture}.{key} {what}: the memory that the model needs can't be told",
            "download the file again, or convert the original model with a current llama.cpp",
        )


def _shown(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _model(keys: _Keys, tensors: Tensors, size_bytes: int, parts: int) -> ModelInfo:
    header, values = keys.header, keys.header.values
    blocks = keys.number("block_count", BLOCKS_LIMIT)
    heads = keys.per_block("attention.head_count", blocks)
    kv_heads = keys.per_block("attention.head_count_kv", blocks)
    width = keys.number("embedding_length")
    most = max(heads or (0,))
    head_length = width // most if width and most else None
    key_length = keys.number("attention.key_length")
    value_length = keys.number("attention.value_length")
    template = keys.text(TEMPLATE_KEY)
    part_of = NOT_LANGUAGE.get(keys.text("general.type")) or NOT_LANGUAGE.get(keys.architecture)
    warnings = tensors.warnings + ((f"this file {part_of}",) if part_of else ())
    metadata = _short_scalars(keys)
    if parts > 1:
        metadata["parts"] = parts
    return ModelInfo(
        path=keys.path,
        format="gguf",
        format_version=header.version,
        size_bytes=size_bytes,
        name=keys.text("general.name"),
        task="" if part_of else "chat" if template else "completion",
        architecture=keys.architecture,
        parameters=tensors.elements,
        quantisation=max(tensors.bytes_by_type, key=lambda name: tensors.bytes_by_type[name], default=""),
        context_tokens=keys.number("context_length"),
        layers=blocks,
        embedding_length=width,
        heads=most or None,
        kv_heads=heads or () if kv_heads is None else kv_heads,
        key_length=head_length if key_length is None else key_length,
        value_length=head_length if value_length is None else value_length,
        vocabulary=header.lengths.get("tokenizer.ggml.tokens", keys.number("vocab_size")),
        tensors_bytes=sum(tensors.bytes_by_type.values()),
        licence=keys.text("general.license"),
        chat_template=template,
        metadata=metadata,
        warnings=warnings if values.get("general.architecture") else (*warnings, "the file names no architecture"),
    )


def _short_scalars(keys: _Keys) -> dict[str, str | int | float | bool]:
    """The first keys with scalars; a NaN or infinity, which JSON does not have, as text."""
    kept: dict[str, str | int | float | bool] = {}
    for key, value in keys.header.values.items():
        if key == TEMPLATE_KEY or isinstance(value, tuple):
            continue
        finite = not isinstance(value, float) or abs(value) < float("inf")
        kept[key] = value if finite else str(value)
        if len(kept) == METADATA_KEPT:
            break
    return kept


def _other_parts(path: str, keys: _Keys) -> list[str]:
    """Where the other parts of a split model are; empty for a model in one file.

    Raises:
        ModelRejected: this is not the first part, its name is not by the rule, or parts are missing.
    """
    count, number = keys.header.values.get("split.count", 0), keys.header.values.get("split.no", 0)
    if not isinstance(count, int) or count <= 1:
        return []
    place = Path(path)
    named = PART_NAME.match(place.name)
    if named is None or int(named["count"]) != count:
        raise ModelRejected(
            f"{path} is a part of a model split into {count}, and its name does not say so",
            "give the parts their names back: NAME-00001-of-00003.gguf and so on",
        )
    if count > PARTS_LIMIT:
        raise ModelRejected(f"{path} is one of {count} parts, and {PARTS_LIMIT} are the most that is read")
    names = [f"{named['stem']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    missing = [name for name in names if not (place.parent / name).exists()]
    if missing:
        raise ModelRejected(
            f"{path} is part {int(named['number'])} of {count}; missing beside it: {', '.join(missing[:8])}"
            + (f" and {len(missing) - 8} more" if len(missing) > 8 else ""),
            "download the missing parts into the same folder",
        )
    if number != 0 or int(named["number"]) != 1:
        raise ModelRejected(f"{path} is part {int(named['number'])} of {count}", f"name the first part: {names[0]}")
    return [str(place.parent / name) for name in names[1:]]
