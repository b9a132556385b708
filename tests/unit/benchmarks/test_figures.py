"""What the benchmark's figures mean."""

from __future__ import annotations

import pytest
from figures import Stream, percentile, summarize
from hypothesis import given
from hypothesis import strategies as st
from load import Prompts


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, fraction) for fraction in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.5) == 7
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_an_observed_value_that_the_fraction_does_not_exceed(values: list[float], fraction: float) -> None:
    value = percentile(values, fraction)
    assert value in values
    assert sum(other <= value for other in values) >= fraction * len(values) - 1e-9 * len(values)


def test_a_run_is_summed_up_over_its_whole_time() -> None:
    streams = [Stream.of_times(1.0, [1.5, 1.75, 2.25], 7, 3), Stream.of_times(2.0, [2.25], 5, 1)]
    figures = summarize(streams, ["status 500", "status 500"], elapsed_s=2.0)
    assert (figures.num_ok, figures.num_failed, figures.failures) == (2, 2, {"status 500": 2})
    assert (figures.num_prompt_tokens, figures.num_output_tokens, figures.output_tokens_per_s) == (12, 4, 2.0)
    assert (figures.ttft_p50_ms, figures.ttft_p99_ms) == (250, 500)
    assert (figures.gap_p50_ms, figures.gap_p99_ms) == (250, 500)


def test_one_piece_of_text_has_no_gap() -> None:
    figures = summarize([Stream.of_times(0.0, [0.1], 1, 1)], [], elapsed_s=1.0)
    assert figures.ttft_p50_ms == pytest.approx(100)
    assert figures.gap_p50_ms is None


def test_no_two_prompts_begin_alike_and_equal_seeds_give_equal_prompts() -> None:
    prompts = Prompts(num_words=20)
    taken = prompts.take(500) + prompts.take(500)
    assert len({prompt.split()[0] for prompt in taken}) == 1000
    assert {len(prompt.split()) for prompt in taken} == {20}
    assert Prompts(num_words=20).take(1000) == taken
