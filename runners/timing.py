"""The times that are told of a run, defined as the field does (see docs in `Timing`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Median, 90th and 99th percentile by linear interpolation; seconds."""

    p50_s: float
    p90_s: float
    p99_s: float


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took. Times are monotonic seconds; None where there was nothing to measure, never 0.

    With t0 the request, t1 the first token (of any channel), tN the last, N the output tokens:

    Attributes:
        load_s: loading the model; not part of any figure below.
        ttft_s: time to first token, t1 - t0.
        tpot_s: time per output token, (tN - t1) / (N - 1); None for N < 2.
        itl: inter-token latency, percentiles of the single gaps.
        tokens_per_s: decode rate, 1 / tpot_s.
        end_to_end_s: tN - t0.
        prompt_tokens: tokens of the request after the chat template.
        output_tokens: tokens of the answer, the end token not counted.
        frames: images or frames answered.
        frames_per_s: frames over the wall time of the whole pipeline, decoding and drawing included.
        latency: per frame, from its decoding to its result.
        dropped: frames that were skipped.
        peak_memory_bytes: largest resident size of the worker process.
    """

    load_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl: Percentiles | None = None
    tokens_per_s: float | None = None
    end_to_end_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    frames: int | None = None
    frames_per_s: float | None = None
    latency: Percentiles | None = None
    dropped: int | None = None
    peak_memory_bytes: int | None = None


def percentiles(values_s: Sequence[float]) -> Percentiles | None:
    """The percentiles of some durations in seconds, or None for no values."""
    if not values_s:
        return None
    ordered = sorted(values_s)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Percentiles(p50_s=at(0.50), p90_s=at(0.90), p99_s=at(0.99))


def language_timing(start_s: float, token_times_s: Sequence[float], prompt_tokens: int) -> Timing:
    """The times of one answer.

    Args:
        start_s: when the request was made, monotonic.
        token_times_s: when each output token was there, same clock, ascending.
        prompt_tokens: tokens of the request.
    """
    if not token_times_s:
        return Timing(prompt_tokens=prompt_tokens, output_tokens=0)
    first, last, count = token_times_s[0], token_times_s[-1], len(token_times_s)
    tpot_s = (last - first) / (count - 1) if count > 1 else None
    return Timing(
        ttft_s=first - start_s,
        tpot_s=tpot_s,
        itl=percentiles([b - a for a, b in itertools.pairwise(token_times_s)]),
        tokens_per_s=1 / tpot_s if tpot_s else None,
        end_to_end_s=last - start_s,
        prompt_tokens=prompt_tokens,
        output_tokens=count,
    )


def vision_timing(wall_s: float, latencies_s: Sequence[float], dropped: int = 0) -> Timing:
    """The times of one pass over images: wall time of the whole and each image's own latency, in seconds."""
    frames = len(latencies_s)
    return Timing(
        end_to_end_s=wall_s,
        frames=frames,
        frames_per_s=frames / wall_s if frames and wall_s > 0 else None,
        latency=percentiles(latencies_s),
        dropped=dropped,
    )
