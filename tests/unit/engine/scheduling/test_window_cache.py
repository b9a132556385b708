"""Layers with a window have blocks of their own: only those of the window are held, and nobody reads another one's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.cache.layer_groups import LayerGroups
from triptych_engine.scheduling.cache.window_blocks import blocks_of_window
from triptych_engine.scheduling.cache.window_cache import WindowCache
from triptych_engine.scheduling.output import StepResult
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler

_PROMPT = [1 + number % 7 for number in range(60)]
_BLOCK = 4


class Run:
    """A scheduler with a runner that compares the keys in each token's window (support/fakes/windows.py)."""

    def __init__(self, num_window_blocks: int = 32, window: int = 8, **options: Any) -> None:
        self.scheduler: Scheduler = a_scheduler(num_window_blocks=num_window_blocks, window=window, **options)
        self.runner = FakeRunner()
        self.runner.windows.window = window
        #: Most blocks of a window that were held at once, after a step.
        self.most_held = 0

    def __call__(self, *requests: Request) -> list[int]:
        """Compute these, which come together, to their ends. Returns how many tokens of each prompt were found."""
        texts: dict[str, list[int]] = {}
        usages: dict[str, int] = {}
        for request in requests:
            self.scheduler.add(request)
        while self.scheduler.has_work:
            output = self.scheduler.schedule()
            for result in self.scheduler.update_from_output(output, self.runner.execute(output)):
                texts.setdefault(result.request_id, []).extend(result.token_ids)
                if result.usage is not None:
                    usages[result.request_id] = result.usage[2]
            self.scheduler.check_integrity()
            self.most_held = max(self.most_held, self.windows.pool.num_blocks - self.windows.pool.num_free_blocks)
        for request in requests:
            assert texts[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
        return [usages[request.request_id] for request in requests]

    @property
    def windows(self) -> WindowCache:
        groups = self.scheduler.kv_cache.groups
        windows = None if groups is None else groups.windows
        assert windows is not None
        return windows


def test_a_long_sequence_holds_its_window():
    run = Run(num_blocks=64, max_num_batched_tokens=16)
    run(a_request("long", _PROMPT, max_tokens=100))
    assert run.most_held <= blocks_of_window(8, 16, _BLOCK, 1)
    assert run.windows.pool.num_free_blocks == 32
    assert run.windows.num_reserved == 0


def test_a_cached_prefix_is_used_where_the_window_before_its_end_is_here():
    run = Run(num_blocks=64, max_num_batched_tokens=64)
    assert run(a_request("first", _PROMPT)) == [0]
    assert run(a_request("again", _PROMPT)) == [56]
    assert run(a_request("other end", [*_PROMPT[:30], *[9] * 30])) == [28]
    # Fresh blocks take the place of most of the window's, but of few of the others.
    small = Run(num_window_blocks=24, num_blocks=200, max_num_batched_tokens=64)
    small(a_request("first", _PROMPT))
    small(a_request("much else", [30] * 70, max_tokens=8))
    assert small(a_request("again", _PROMPT))[0] <= 8


def test_requests_wait_for_room_for_their_windows_and_never_for_a_block_while_they_run():
    run = Run(num_window_blocks=12, num_blocks=200, max_num_batched_tokens=16, max_num_seqs=8)
    run(*(a_request(f"r{number}", [number] * 40, max_tokens=30) for number in range(6)))
    assert run.scheduler.num_preemptions == 0
    assert run.windows.num_reserved == 0


def test_drafts_have_blocks_in_the_window():
    run = Run(num_blocks=64, num_drafts=4, max_num_batched_tokens=64)
    run(*(a_request(f"r{number}", [number] * 17, max_tokens=30) for number in range(4)))


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=12),
    window=st.integers(1, 30),
    extra_blocks=st.integers(0, 16),
    num_blocks=st.integers(16, 40),
    budget=st.integers(5, 64),
    num_states=st.integers(0, 4),
)
def test_whatever_was_computed_before_each_token_attends_to_its_own_window(
    prompts: list[tuple[int, int, int]], window: int, extra_blocks: int, num_blocks: int, budget: int, num_states: int
):
    num_window_blocks = blocks_of_window(window, budget, _BLOCK, 1) + extra_blocks
    options = {"num_blocks": num_blocks, "max_num_batched_tokens": budget, "max_num_seqs": 4, "num_states": num_states}
    run = Run(num_window_blocks, window, **options)
    requests = [
        a_request(f"r{number}", [*_PROMPT[:common], *[20 + leaf] * tail], max_tokens=10)
        for number, (common, leaf, tail) in enumerate(prompts)
    ]
    half = len(requests) // 2
    run(*requests[:half])
    run(*requests[half:])


@pytest.mark.parametrize(("window", "step_tokens", "blocks"), [(1, 1, 1), (4, 1, 2), (5, 1, 2), (6, 1, 3), (8, 16, 7)])
def test_how_many_blocks_a_window_takes(window: int, step_tokens: int, blocks: int):
    """Counted over all places where a block can begin."""
    counted = 0
    for start in range(200, 200 + _BLOCK):
        first, last = start - window + 1, start + step_tokens - 1
        counted = max(counted, last // _BLOCK - first // _BLOCK + 1)
    assert counted == blocks
    assert counted <= blocks_of_window(window, step_tokens, _BLOCK, 1)


@pytest.mark.parametrize("context", [8192, 32768])
def test_a_long_context_holds_what_the_formula_says(context: int):
    """A window of 512 tokens takes the same number of blocks at any length."""
    step = 2048
    windows = WindowCache(blocks_of_window(512, step, 16), 16, 512, step)
    kv_cache = KVCacheManager(context // 16 + 2, 16, groups=LayerGroups(windows, None))
    scheduler = Scheduler(kv_cache, max_num_seqs=4, max_num_batched_tokens=step, max_waiting=4, max_model_len=context + 32)
    scheduler.add(a_request("long", [7] * context, max_tokens=20))
    held = []
    while scheduler.has_work:
        output = scheduler.schedule()
        held.append((output.num_decoding, windows.pool.num_blocks - windows.pool.num_free_blocks))
        sampled = {request_id: [1] for request_id in output.max_new_tokens}
        scheduler.update_from_output(output, StepResult(token_ids=sampled))
    assert max(number for _, number in held) <= -(-(512 + step) // 16) + 3
    decoding = [number for num_decoding, number in held if num_decoding]
    assert 512 // 16 <= min(decoding) <= max(decoding) <= 512 // 16 + 3
    assert kv_cache.pool.num_free_blocks == kv_cache.pool.num_blocks
