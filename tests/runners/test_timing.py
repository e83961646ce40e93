"""The times that are told of a run, against the field's definitions."""

from __future__ import annotations

import pytest

from runners.timing import Percentiles, language_timing, percentiles, vision_timing


def test_time_per_output_token_leaves_out_the_first_token() -> None:
    timing = language_timing(10.0, [10.9, 11.0, 11.2, 11.4], prompt_tokens=7)
    assert timing.ttft_s == pytest.approx(0.9)
    assert timing.tpot_s == pytest.approx(0.5 / 3)
    assert timing.tokens_per_s == pytest.approx(6.0)
    assert timing.end_to_end_s == pytest.approx(1.4)
    assert (timing.prompt_tokens, timing.output_tokens) == (7, 4)


def test_inter_token_latency_is_of_single_gaps_not_their_mean() -> None:
    timing = language_timing(0.0, [1.0, 1.1, 1.2, 2.2], prompt_tokens=1)
    assert timing.itl is not None
    assert timing.itl.p50_s == pytest.approx(0.1)
    assert timing.itl.p99_s == pytest.approx(0.1 + 0.9 * 0.98)


def test_one_token_has_a_first_token_time_and_no_rate() -> None:
    timing = language_timing(1.0, [1.42], prompt_tokens=3)
    assert timing.ttft_s == pytest.approx(0.42)
    assert timing.tpot_s is None
    assert timing.tokens_per_s is None
    assert timing.itl is None


def test_an_empty_answer_has_no_times_rather_than_zeros() -> None:
    timing = language_timing(1.0, [], prompt_tokens=3)
    assert timing.ttft_s is None
    assert timing.end_to_end_s is None
    assert timing.output_tokens == 0


def test_loading_is_in_none_of_the_figures() -> None:
    assert language_timing(5.0, [5.5, 6.0], prompt_tokens=1).load_s is None


def test_percentiles_interpolate_linearly() -> None:
    assert percentiles([4.0, 1.0, 3.0, 2.0]) == Percentiles(
        p50_s=2.5, p90_s=pytest.approx(3.7), p99_s=pytest.approx(3.97)
    )


def test_no_values_have_no_percentiles() -> None:
    assert percentiles([]) is None


def test_frames_per_second_are_over_the_whole_pass() -> None:
    timing = vision_timing(2.0, [0.1, 0.2, 0.3, 0.4], dropped=1)
    assert (timing.frames, timing.dropped) == (4, 1)
    assert timing.frames_per_s == pytest.approx(2.0)


def test_no_frames_have_no_rate() -> None:
    timing = vision_timing(2.0, [])
    assert timing.frames == 0
    assert timing.frames_per_s is None
    assert timing.latency is None
