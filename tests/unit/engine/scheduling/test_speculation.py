"""What is guessed, and how much: a naive search as the reference, and machines of known costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_request
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.speculation.drafter import MAX_DRAFT_TOKENS, PromptLookupDrafter
from triptych_engine.scheduling.speculation.prompt_lookup import PromptLookup
from triptych_engine.scheduling.step_costs import StepCosts

#: A step takes 10 ms, and 1 ms more for each sequence.
COSTS = StepCosts(0.010, 0.001, 0.001)
REPEATING = [*range(1, 41), *range(1, 11)]


def expected(tokens: list[int], most: int) -> list[int]:
    """The longest match of at least three and at most sixteen tokens, the latest of several, and what followed it."""
    best = (0, -1)
    for end in range(3, len(tokens)):
        length = 0
        while length < min(end, 16) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= 3:
            best = max(best, (length, end))
    if best[0] == 0:
        return []
    going_on = list(tokens)
    for number in range(most):
        going_on.append(going_on[best[1] + number])
    return going_on[len(tokens) :]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 20), st.integers(0, 60))
def test_it_finds_what_followed_the_longest_match(tokens: list[int], most: int, first: int) -> None:
    lookup = PromptLookup()
    lookup.follow(tokens[:first])
    lookup.find(5)
    lookup.follow(tokens)
    assert lookup.find(most) == expected(tokens, most)


def test_long_texts_grow_its_memory() -> None:
    lookup, tokens = PromptLookup(), list(range(1000))
    for end in range(10, 1000, 37):
        lookup.follow(tokens[:end])
    lookup.follow([*tokens, 500, 501, 502])
    assert lookup.find(4) == [503, 504, 505, 506]


def drafter(costs: StepCosts = COSTS, num_decoding: int = 1) -> PromptLookupDrafter:
    made = PromptLookupDrafter(StepPacer(costs, 1.0))
    assert made.begin_step(num_decoding, had_prompts=False, encoding=False)
    return made


def test_a_text_that_repeats_itself_is_guessed() -> None:
    drafts = drafter().propose(a_request(prompt=REPEATING), 64)
    # With three, 14 ms bring 2.26 tokens. A fourth is right with 0.625**4 = 0.15; it would have to be with 2.26 / 14 = 0.16.
    assert drafts == [11, 12, 13]


def test_nothing_is_guessed_where_nothing_repeats_or_no_room_is_left() -> None:
    assert drafter().propose(a_request(prompt=list(range(50))), 64) == []
    assert drafter().propose(a_request(prompt=REPEATING), 0) == []
    assert len(drafter().propose(a_request(prompt=REPEATING), 2)) == 2


def test_guesses_end_before_a_token_that_ends_the_sequence() -> None:
    assert drafter().propose(a_request(prompt=REPEATING, stop_token_ids=frozenset({12})), 64) == [11]


def test_behind_a_step_with_prompts_and_with_many_sequences_nothing_is_guessed() -> None:
    assert not drafter().begin_step(1, had_prompts=True, encoding=False)
    assert len(drafter(num_decoding=8).propose(a_request(prompt=REPEATING), 64)) == 1  # a token costs 18/8 ms, a guess 1
    assert drafter(num_decoding=30).propose(a_request(prompt=REPEATING), 64) == []
    assert not PromptLookupDrafter(StepPacer(COSTS, 1.0)).begin_step(64, had_prompts=False, encoding=False)


def test_the_guesses_for_one_sequence_do_not_hold_up_others_for_long() -> None:
    made, request = drafter(num_decoding=2), a_request(prompt=REPEATING * 3)
    for _ in range(10):
        made.observe(request, 8, 8)
    both = [made.propose(request, 64), made.propose(a_request("other", REPEATING), 64)]
    assert len(both[0]) >= 5
    assert sum(map(len, both)) == 6, "half of 12 ms"


def test_a_step_that_is_not_worth_it_forgets_nothing() -> None:
    made, request = drafter(), a_request(prompt=REPEATING)
    made.begin_step(30, had_prompts=False, encoding=False)
    assert made.propose(request, 64) == []
    made.begin_step(1, had_prompts=False, encoding=False)
    assert made.propose(request, 64) == [11, 12, 13]


def test_right_guesses_become_longer_and_wrong_ones_end() -> None:
    made, request = drafter(), a_request(prompt=REPEATING * 3)
    lengths = []
    for _ in range(10):
        made.begin_step(1, had_prompts=False, encoding=False)
        drafts = made.propose(request, 64)
        lengths.append(len(drafts))
        made.observe(request, len(drafts), len(drafts))
    assert lengths == sorted(lengths)
    assert lengths[-1] == MAX_DRAFT_TOKENS
    num_wrong = 0
    while drafts := made.propose(request, 64):
        made.observe(request, len(drafts), 0)
        made.begin_step(1, had_prompts=False, encoding=False)
        num_wrong += 1
    assert 5 < num_wrong < 40
    pauses = 0
    while not made.propose(request, 64):
        made.begin_step(1, had_prompts=False, encoding=False)
        pauses += 1
    assert 10 < pauses < 100, "what is wrong here may be right further on"


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("decode_s", [1e-5, 0.001, 0.005, 0.01])
@pytest.mark.parametrize("num_decoding", [1, 8, 64])
def test_it_costs_little_and_pays_where_guesses_are_right(acceptance: float, decode_s: float, num_decoding: int) -> None:
    """Steps of a machine whose guesses are right with a fixed probability."""
    costs = StepCosts(0.01, decode_s, 0.001)
    made = PromptLookupDrafter(StepPacer(costs, 1.0))
    requests: list[Request] = [a_request(f"r{index}", REPEATING * 2) for index in range(num_decoding)]
    seconds, tokens, dice = 0.0, 0, random.Random(0)
    for _ in range(300):
        may_pay, num_drafts = made.begin_step(num_decoding, had_prompts=False, encoding=False), 0
        for request in requests:
            drafts = made.propose(request, 64) if may_pay else []
            accepted = 0
            for _ in drafts:
                if dice.random() >= acceptance:
                    break
                accepted += 1
            if drafts:
                made.observe(request, len(drafts), accepted)
            num_drafts += len(drafts)
            tokens += 1 + accepted
        seconds += costs.step_s(num_decoding + num_drafts)
    speed_up = (tokens / seconds) / (num_decoding / costs.step_s(num_decoding))
    assert speed_up > 0.96
    if acceptance == 1.0 and num_decoding == 1 and decode_s < 0.005:
        assert speed_up > 3
    elif acceptance == 1.0 and num_decoding == 8 and decode_s < 0.005:
        assert speed_up > 1.25
