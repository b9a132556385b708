"""What the benchmark's figures mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_cli.load.figures import Answer, in_window, percentile, summarize
from triptych_cli.load.requests import Prompts


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
    answers = [Answer(1.0, [1.5, 1.75, 2.25], 7, 4), Answer(2.0, [2.25], 5, 1)]
    figures = summarize(answers, ["status 500", "status 500"], elapsed_s=2.0)
    assert (figures.num_ok, figures.num_failed, figures.failures) == (2, 2, {"status 500": 2})
    assert (figures.num_prompt_tokens, figures.num_output_tokens, figures.output_tokens_per_s) == (12, 5, 2.5)
    assert (figures.ttft_p50_ms, figures.ttft_p99_ms) == (250, 500)
    assert (figures.gap_p50_ms, figures.gap_p99_ms) == (250, 500)
    assert figures.messages_per_token == 4 / 5


def test_one_piece_of_text_has_no_gap() -> None:
    figures = summarize([Answer(0.0, [0.1], 1, 1)], [], elapsed_s=1.0)
    assert figures.ttft_p50_ms == pytest.approx(100)
    assert figures.gap_p50_ms is None


def test_no_two_prompts_begin_alike_and_equal_seeds_give_equal_prompts() -> None:
    prompts = Prompts(num_words=20)
    taken = prompts.take(500) + prompts.take(500)
    assert len({prompt.split()[0] for prompt in taken}) == 1000
    assert {len(prompt.split()) for prompt in taken} == {20}
    assert Prompts(num_words=20).take(1000) == taken


def test_a_window_takes_the_share_of_an_answer_that_came_in_it() -> None:
    figures = in_window([[Answer(0.0, [1.0, 2.0, 3.0, 4.0], 1, 8), Answer(4.5, [6.0, 6.5], 1, 2)]], 2.5, 6.25)
    # 3.0 and 4.0 of two tokens each, and 6.0 of one.
    assert figures["output_tokens_per_s"] == pytest.approx(5 / 3.75)
    # 2-3 and 3-4 of the first answer, 6-6.5 of the second; between the two lies a wait and no gap.
    assert (figures["gap_p50_ms"], figures["gap_max_ms"]) == (1000, 1000)


def test_a_gap_that_spans_the_whole_window_counts() -> None:
    figures = in_window([[Answer(0.0, [1.0, 9.0], 1, 2)]], 2.0, 8.0)
    assert figures["output_tokens_per_s"] == 0
    assert (figures["gap_p99_ms"], figures["gap_max_ms"]) == (8000, 8000)


def test_a_window_without_text_has_no_gaps() -> None:
    figures = in_window([[Answer(0.0, [1.0], 1, 1)]], 2.0, 3.0)
    assert (figures["output_tokens_per_s"], figures["gap_p50_ms"]) == (0, None)
