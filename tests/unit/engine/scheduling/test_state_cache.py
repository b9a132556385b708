"""Recurrent states: each request has one, and begins with that of a prefix which others computed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych_engine.scheduling.cache.state_pool import StatePool
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler

_SYSTEM = [1 + number % 7 for number in range(40)]


class Run:
    """A scheduler with a runner whose states are checked in each step (support/fakes/states.py)."""

    def __init__(self, num_states: int = 16, **options: Any) -> None:
        self.scheduler: Scheduler = a_scheduler(num_states=num_states, **options)
        self.runner = FakeRunner()
        self.usages: dict[str, int] = {}  # request_id -> prompt tokens that were found
        self.texts: dict[str, list[int]] = {}

    def __call__(self, *requests: Request) -> list[int]:
        """Compute these, which come together, to their ends. Returns how many tokens of each prompt were found."""
        for request in requests:
            self.scheduler.add(request)
        while self.scheduler.has_work:
            output = self.scheduler.schedule()
            for result in self.scheduler.update_from_output(output, self.runner.execute(output)):
                self.texts.setdefault(result.request_id, []).extend(result.token_ids)
                if result.usage is not None:
                    assert result.finish_reason is FinishReason.LENGTH
                    self.usages[result.request_id] = result.usage[2]
            self.scheduler.check_integrity()
        for request in requests:
            assert self.texts[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
        return [self.usages[request.request_id] for request in requests]


def test_the_same_prompt_is_found_up_to_its_last_border():
    run = Run()
    assert run(a_request("first", _SYSTEM)) == [0]
    assert run(a_request("again", _SYSTEM)) == [36]  # its last token is computed, and with it a block


def test_the_next_turn_finds_the_answer_of_the_last_one():
    run = Run()
    run(a_request("first", _SYSTEM, max_tokens=18))
    assert run(a_request("next", _SYSTEM + run.texts["first"] + [3] * 9)) == [56]  # 57 tokens were computed


def test_what_prompts_have_in_common_is_found_by_the_third():
    run = Run()
    assert run(a_request("first", [*_SYSTEM, *[8] * 20])) == [0]
    assert run(a_request("second", [*_SYSTEM, *[9] * 20])) == [0]  # it makes the snapshot where they part
    assert run(a_request("third", [*_SYSTEM, *[10] * 20])) == [40]
    assert run(a_request("fourth", [*_SYSTEM[:20], *[9] * 20])) == [0]
    assert run(a_request("fifth", [*_SYSTEM[:20], *[10] * 20])) == [20]


def test_of_prompts_that_come_together_the_first_makes_the_snapshot_for_all():
    run = Run(max_num_batched_tokens=16)
    assert run(*(a_request(f"r{number}", [*_SYSTEM, *[8 + number] * 20]) for number in range(4))) == [0, 40, 40, 40]


def test_a_running_answer_keeps_one_snapshot_beside_that_of_its_prompt():
    run = Run(num_states=3)
    run(a_request("first", _SYSTEM, max_tokens=40))
    pool = run.scheduler.kv_cache.groups.states.pool  # type: ignore[union-attr]
    assert pool.num_free == 3
    assert run(a_request("again", _SYSTEM)) == [36]  # not dropped for those of the output


def test_without_slots_requests_wait_for_each_other():
    run = Run(num_states=2, max_num_seqs=8)
    running = []
    for number in range(5):
        run.scheduler.add(a_request(f"r{number}", [number] * 9))
    while run.scheduler.has_work:
        output = run.scheduler.schedule()
        running.append(run.scheduler.num_running)
        run.scheduler.update_from_output(output, run.runner.execute(output))
        run.scheduler.check_integrity()
    assert max(running) == 2
    assert run.scheduler.num_running == run.scheduler.num_waiting == 0


def test_preempted_requests_go_on_from_a_snapshot():
    run = Run(num_blocks=12, num_states=16, max_num_batched_tokens=16)
    run(*(a_request(f"r{number}", [number + 1] * 9, max_tokens=20) for number in range(4)))
    assert run.scheduler.num_preemptions > 0


def test_without_a_prefix_cache_no_snapshot_is_made():
    run = Run(enable_prefix_caching=False)
    assert run(a_request("first", _SYSTEM), a_request("again", _SYSTEM)) == [0, 0]
    assert run.runner.states.num_snapshots == 0


def test_prompts_with_log_probabilities_of_their_own_share_nothing():
    run = Run()
    assert run(a_request("first", _SYSTEM), a_request("again", _SYSTEM, prompt_logprobs=1)) == [0, 0]


def test_after_the_caches_were_reset_nothing_is_found():
    run = Run()
    run(a_request("first", _SYSTEM))
    run.scheduler.reset_caches()
    assert run(a_request("again", _SYSTEM)) == [0]


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=12
    ),
    num_states=st.integers(1, 8),
    num_blocks=st.integers(16, 40),
    budget=st.integers(5, 64),
)
def test_whatever_was_computed_before_each_request_goes_on_from_its_own_prefix(
    prompts: list[tuple[int, int, int, int]], num_states: int, num_blocks: int, budget: int
):
    """Trees of prompts: each takes some tokens of one of a few, and ends with its own."""
    run = Run(num_states, num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=4)
    requests = [
        a_request(f"r{number}", [*([root] * 3 + _SYSTEM)[:common], *[20 + leaf] * tail], max_tokens=10)
        for number, (root, common, leaf, tail) in enumerate(prompts)
    ]
    half = len(requests) // 2
    run(*requests[:half])
    run(*requests[half:])


def test_the_pool_takes_the_snapshot_that_was_not_used_for_the_longest_time():
    pool = StatePool(3)
    for prefix in (b"a", b"b", b"c"):
        assert (slot := pool.take()) is not None
        assert pool.keep(slot, prefix)
    pool.use(b"a")
    pool.drop_first(b"c")
    taken = [pool.take(), pool.take()]
    assert b"a" in pool
    assert b"b" not in pool
    assert b"c" not in pool
    pool.check_integrity(slot for slot in taken if slot is not None)
    assert pool.take() is not None
    assert pool.take() is None


def test_a_prefix_has_one_snapshot():
    pool = StatePool(2)
    slots = [pool.take(), pool.take()]
    assert slots[0] is not None
    assert slots[1] is not None
    assert pool.keep(slots[0], b"a")
    assert not pool.keep(slots[1], b"a")
    assert pool.num_free == 2
    with pytest.raises(AssertionError, match="slots are lost"):
        pool.check_integrity([0])
