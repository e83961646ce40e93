"""What a model file is: recognised by its bytes, read within limits, refused with a reason."""

from __future__ import annotations

import hashlib
import os

import msgspec

from runners.contract import ModelRejected
from runners.formats import gguf_model, onnx
from runners.formats.recognise import HEAD_BYTES, recognise
from runners.formats.source import open_source
from runners.model import ModelInfo

READERS = {"gguf": gguf_model.read, "onnx": onnx.read}
WINDOW_BYTES = 1 << 14
HASHED_BYTES = 1 << 20  # at once


def inspect(path: str, want_sha256: bool = False) -> ModelInfo:
    """Read a model file's own description; nothing is loaded, and weights are not read.

    Args:
        path: of the file; of a split model, its first part.
        want_sha256: also hash the file, which reads all of it.

    Raises:
        ModelRejected: it is not there, not a model, damaged, incomplete, or of a kind that is not run here.
    """
    path = os.fspath(path)
    with open_source(path, WINDOW_BYTES) as source:
        name = recognise(path, source.size_bytes, source.peek(HEAD_BYTES))
        model = READERS[name](source)
    return msgspec.structs.replace(model, sha256=sha256(path)) if want_sha256 else model


def sha256(path: str) -> str:
    """Of a regular file, in hexadecimal.

    Raises:
        ModelRejected: it can't be read.
    """
    hashed = hashlib.sha256()
    with open_source(path) as source:
        try:
            for offset in range(0, source.size_bytes, HASHED_BYTES):
                hashed.update(source.piece(offset, HASHED_BYTES))
        except OSError as error:
            raise ModelRejected(f"{path} can't be read: {error.strerror}") from error
    return hashed.hexdigest()
