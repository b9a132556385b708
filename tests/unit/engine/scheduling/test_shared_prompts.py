"""Equal prompts that come together are computed once: the others wait for the blocks of the first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import GREEDY, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych_engine.core import EngineCore
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler

_PROMPT = [1 + number % 90 for number in range(100)]


def a_request(name: str, prompt: list[int] | None = None, **fields: object) -> Request:
    return Request(name, list(prompt or _PROMPT), replace(GREEDY, max_tokens=4), **fields)  # type: ignore[arg-type]


class Run:
    """A scheduler with a runner, step by step."""

    def __init__(self, num_blocks: int = 256, **options: int) -> None:
        self.scheduler: Scheduler = a_scheduler(num_blocks, **options)  # type: ignore[arg-type]
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, SequenceOutput] = {}
        self.core = EngineCore(self.scheduler, FakeRunner(), self._hear)
        #: Prompt tokens of each step.
        self.num_prompt_tokens: list[int] = []

    def _hear(self, step: int, outputs: object, load: object) -> None:
        for output in outputs:  # type: ignore[attr-defined]
            self.outputs.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output

    def step(self) -> None:
        before = self.scheduler.kv_cache.prefix_cache_queries
        self.core.step()
        self.num_prompt_tokens.append(self.scheduler.kv_cache.prefix_cache_queries - before)
        self.scheduler.check_integrity()

    def to_the_end(self) -> None:
        for _ in range(500):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("it does not end")


@pytest.mark.parametrize("budget", [2048, 48])
def test_equal_prompts_of_one_step_are_computed_once(budget: int) -> None:
    run = Run(max_num_batched_tokens=budget)
    for number in range(8):
        run.scheduler.add(a_request(f"r{number}"))
    run.to_the_end()
    assert run.outputs == {f"r{number}": expected_output(_PROMPT, replace(GREEDY, max_tokens=4)) for number in range(8)}
    size = run.scheduler.kv_cache.block_size
    shared = (len(_PROMPT) - 1) // size * size
    assert run.scheduler.kv_cache.prefix_cache_hits == 7 * shared
    assert run.scheduler.kv_cache._computing == {}
    assert not run.scheduler._states.parked


def test_what_is_their_own_is_computed_at_the_same_time_again() -> None:
    run = Run(400, max_num_batched_tokens=2048)
    prompts = [[*_PROMPT, *range(number, number + 40)] for number in range(1, 9)]
    for number, prompt in enumerate(prompts):
        run.scheduler.add(a_request(f"r{number}", prompt))
    run.step()
    assert run.scheduler.num_running == 1
    run.step()
    assert run.scheduler.num_running == 8, "all of them have the beginning now"
    run.to_the_end()
    assert len(run.ends) == 8


@pytest.mark.parametrize("reason", ["abort", "fail"])
def test_those_that_wait_go_on_without_the_first(reason: str) -> None:
    run = Run(max_num_batched_tokens=32)
    for number in range(3):
        run.scheduler.add(a_request(f"r{number}"))
    run.step()
    assert (run.scheduler.num_running, run.scheduler.num_waiting) == (1, 2)
    if reason == "abort":
        run.scheduler.abort(["r0"])
    else:
        run.scheduler.fail(["r0"], ValueError())  # type: ignore[arg-type]
    run.scheduler.abort(["r1"])
    assert run.scheduler.has_work
    run.to_the_end()
    assert run.outputs["r2"] == expected_output(_PROMPT, replace(GREEDY, max_tokens=4))
    assert not run.scheduler._states.parked


def test_nobody_waits_for_a_request_that_is_less_urgent() -> None:
    run = Run(max_num_batched_tokens=32)
    run.scheduler.add(a_request("slow", priority=1))
    run.step()
    run.scheduler.add(a_request("urgent", priority=0))
    run.scheduler.add(a_request("slower", priority=2))
    run.step()
    assert {one.request_id for one in run.scheduler._states.running} == {"slow", "urgent"}
    assert set(run.scheduler._states.parked) <= {"slower"}
    run.to_the_end()
    assert len(run.ends) == 3


def test_tenants_do_not_wait_for_each_other() -> None:
    run = Run(max_num_batched_tokens=32)
    for tenant in ("one", "two"):
        run.scheduler.add(a_request(tenant, cache_salt=tenant, tenant=tenant))
    run.step()
    assert not run.scheduler._states.parked
    run.to_the_end()


@settings(max_examples=60)
@given(st.data())
def test_all_end_whatever_is_aborted_and_preempted(data: st.DataObject) -> None:
    run = Run(data.draw(st.sampled_from([26, 60, 400])), max_num_batched_tokens=data.draw(st.sampled_from([40, 64, 512])))
    names: list[str] = []
    aborted: set[str] = set()
    for number in range(data.draw(st.integers(1, 12))):
        length = data.draw(st.integers(1, 90))
        prompt = [*_PROMPT[:length], *([number] if data.draw(st.booleans()) else [])]
        run.scheduler.add(a_request(f"r{number}", prompt, priority=data.draw(st.integers(0, 1))))
        names.append(f"r{number}")
        if data.draw(st.booleans()) and run.scheduler.has_work:
            run.step()
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(names))
            if victim not in run.ends:
                aborted.add(victim)
                run.scheduler.abort([victim])
    run.to_the_end()
    assert set(run.ends) == set(names) - aborted
    assert all(end.finish_reason is FinishReason.LENGTH for end in run.ends.values())
    assert run.scheduler.kv_cache._computing == {}
    assert run.scheduler._states._followers == {}
    assert run.scheduler.kv_cache.pool.num_free_blocks == run.scheduler.kv_cache.pool.num_blocks
