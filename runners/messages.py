"""What an agent and its worker say to each other: tagged structs, MessagePack, each behind a 4-byte length.

`Open` comes first, once. Then one request at a time; each ends with exactly one of `Done` or `Failed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from runners.contract import FinishReason, GenerateRequest, OpenOptions, Placement
from runners.timing import Timing

FRAME_LIMIT_BYTES = 16 << 20


class Open(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load this model with this runner."""

    model_path: str
    runtime: str
    options: OpenOptions


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer with a language model."""

    request: GenerateRequest


class Classify(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Classify image files with a tensor model.

    Attributes:
        images: paths, in order.
        labels: class names; empty takes those of the model file or of its sidecar.
        batch: images per run; 0 lets the pipeline choose.
        top: classes told per image.
        annotate_dir: where annotated pictures go; "" for none.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...] = ()
    batch: int = 0
    top: int = 3
    annotate_dir: str = ""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the request in hand; answered by its `Done` with what there is, or its `Failed`."""


Request = Open | Generate | Classify | Cancel


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded."""

    placement: Placement
    load_s: float


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """New text of an answer: whole characters."""

    text: str


class Result(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One result of a vision pipeline, as it goes into a JSON line."""

    data: Mapping[str, Any]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request is carried out."""

    timing: Timing
    placement: Placement
    text: str = ""
    finish_reason: FinishReason = FinishReason.STOP


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request could not be carried out; the fields of a `RunnerError`."""

    code: str
    reason: str
    remedy: str = ""


Reply = Opened | Piece | Result | Done | Failed
