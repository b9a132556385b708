"""Tenants share the engine: the order of waiting requests, the places in the batch, the KV blocks, the places in the queue."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import FakeRunner
from triptych.errors import QueueFullError
from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler


def of(tenant: str, name: str, prompt: list[int] | None = None, priority: int = 0, **sampling: int) -> Request:
    request = a_request(name, prompt, **sampling)
    request.tenant, request.priority = tenant, priority
    return request


def step(scheduler: Scheduler, runner: FakeRunner) -> list[str]:
    """Run a step. Returns the requests that it admitted."""
    scheduled = scheduler.schedule()
    scheduler.update_from_output(scheduled, runner.execute(scheduled))
    scheduler.check_integrity()
    return [new.request_id for new in scheduled.new]


def test_one_request_does_not_wait_for_another_tenants_thousand():
    scheduler, runner = a_scheduler(max_num_seqs=2), FakeRunner()
    for number in range(1000):
        scheduler.add(of("flood", f"f{number}", max_tokens=2))
    step(scheduler, runner)
    scheduler.add(of("quiet", "q", max_tokens=2))
    admitted = [name for _ in range(4) for name in step(scheduler, runner)]
    assert admitted[0] == "q"


def test_tenants_that_always_wait_get_as_many_tokens():
    scheduler, runner = a_scheduler(max_num_seqs=1), FakeRunner()
    for number in range(40):
        scheduler.add(of("short", f"s{number}", [1] * 4, max_tokens=2))
    for number in range(40):
        scheduler.add(of("long", f"l{number}", [2] * 24, max_tokens=2))
    admitted = [name for _ in range(60) for name in step(scheduler, runner)]
    # 4 + 2 * 2 tokens against 24 + 2 * 2, where an output token counts as two. Of the long prompt, a cached prefix is not computed.
    num_short, num_long = (sum(name[0] == kind for name in admitted) for kind in "sl")
    assert num_long >= 5
    assert 1 <= num_short / num_long <= 6


def test_a_tenant_that_was_alone_is_not_made_to_wait_for_it():
    scheduler, runner = a_scheduler(max_num_seqs=1), FakeRunner()
    for number in range(50):
        scheduler.add(of("old", f"o{number}", max_tokens=1))
        step(scheduler, runner)
    for number in range(10):
        scheduler.add(of("new", f"n{number}", max_tokens=1))
        scheduler.add(of("old", f"p{number}", max_tokens=1))
    admitted = [name for _ in range(10) for name in step(scheduler, runner)]
    assert 4 <= sum(name[0] == "p" for name in admitted) <= 6


def test_a_prompt_in_parts_goes_on_before_another_tenants_older_requests():
    # A step has room for a third of the prompt. The flood's requests came before.
    scheduler, runner = a_scheduler(max_num_seqs=8, max_num_batched_tokens=8, enable_prefix_caching=False), FakeRunner()
    for number in range(50):
        scheduler.add(of("flood", f"f{number}", [1] * 12, max_tokens=1))
    step(scheduler, runner)
    scheduler.add(of("quiet", "q", [2] * 24, max_tokens=1))
    num_steps = 0
    while "q" in scheduler.live_request_ids:
        step(scheduler, runner)
        num_steps += 1
    # Half of the steps are its own.
    assert num_steps <= 8


def test_a_short_prompt_does_not_wait_for_another_tenants_long_one():
    scheduler, runner = a_scheduler(num_blocks=1000, max_num_batched_tokens=8, max_model_len=1000), FakeRunner()
    scheduler.add(of("quiet", "first", max_tokens=1))
    scheduler.add(of("long", "l", [1] * 800, max_tokens=1))
    for _ in range(5):
        step(scheduler, runner)
    scheduler.add(of("quiet", "q", [2] * 24, max_tokens=1))
    for _ in range(8):
        step(scheduler, runner)
    assert "q" not in scheduler.live_request_ids


def test_a_better_priority_still_goes_first():
    scheduler, runner = a_scheduler(max_num_seqs=1), FakeRunner()
    for number in range(3):
        scheduler.add(of("urgent", f"u{number}", priority=-1, max_tokens=1))
    scheduler.add(of("other", "o", max_tokens=1))
    assert [name for _ in range(4) for name in step(scheduler, runner)] == ["u0", "u1", "u2", "o"]


def test_a_tenant_leaves_places_in_the_batch_for_others():
    scheduler, runner = a_scheduler(num_blocks=1000, max_num_seqs=16, max_num_batched_tokens=200), FakeRunner()
    scheduler.add(of("quiet", "first", max_tokens=1))
    step(scheduler, runner)
    for number in range(40):
        scheduler.add(of("flood", f"f{number}", max_tokens=100))
    step(scheduler, runner)
    assert scheduler.num_running == 14
    scheduler.add(of("quiet", "q", max_tokens=1))
    assert step(scheduler, runner) == ["q"]


def test_a_tenant_alone_gets_every_place():
    scheduler, runner = a_scheduler(num_blocks=1000, max_num_seqs=16, max_num_batched_tokens=200), FakeRunner()
    for number in range(40):
        scheduler.add(of("only", f"f{number}", max_tokens=100))
    step(scheduler, runner)
    assert scheduler.num_running == 16


def test_a_tenant_leaves_blocks_for_others_and_loses_its_own_when_they_run_out():
    scheduler, runner = a_scheduler(num_blocks=64, max_num_seqs=64, max_num_batched_tokens=256), FakeRunner()
    scheduler.add(of("quiet", "first", max_tokens=1))
    step(scheduler, runner)
    for number in range(30):
        scheduler.add(of("flood", f"f{number}", [number] * 8, max_tokens=60))
    step(scheduler, runner)
    assert scheduler.kv_cache.pool.num_free_blocks >= 8
    scheduler.add(of("quiet", "q", [7] * 8, max_tokens=8))
    # A step that preempts admits nobody.
    assert [name for _ in range(2) for name in step(scheduler, runner)] == ["q"]
    while "q" in scheduler.live_request_ids:
        step(scheduler, runner)
    assert scheduler.num_preemptions > 0


def test_a_request_that_fills_the_cache_is_computed_beside_a_tenant_that_never_stops():
    scheduler, runner = a_scheduler(num_blocks=16, max_num_seqs=8, max_num_batched_tokens=64), FakeRunner()
    scheduler.add(of("small", "s", max_tokens=4))
    scheduler.add(of("big", "b", [5] * 62, max_tokens=1))
    for number in range(60):
        scheduler.add(of("small", f"s{number}", max_tokens=4))
        step(scheduler, runner)
    assert "b" not in scheduler.live_request_ids


@pytest.mark.parametrize("is_running", [False, True], ids=["comes late", "runs already"])
@pytest.mark.parametrize("part", [0.5, 0.7])
def test_a_long_request_ends_beside_many_small_tenants(part: float, is_running: bool):
    scheduler = a_scheduler(128, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=1000, enable_prefix_caching=False)
    runner, number = FakeRunner(), itertools.count()
    num_tokens = int(128 * part * scheduler.kv_cache.block_size)
    live = dict[str, int]()  # small tenant -> its live requests

    def small_requests() -> None:
        # Each of twelve tenants has two clients that send their next request at once.
        live.clear()
        for request_id in scheduler.live_request_ids:
            tenant = request_id.partition("-")[0]
            live[tenant] = live.get(tenant, 0) + 1
        for tenant in (f"t{index}" for index in range(12)):
            for _ in range(2 - live.get(tenant, 0)):
                scheduler.add(of(tenant, f"{tenant}-{next(number)}", [next(number) % 50 + 1] * 12, max_tokens=20))

    long = of("long", "long", [51] * (num_tokens - 40), max_tokens=40)
    if is_running:
        scheduler.add(long)
        step(scheduler, runner)
    for num_steps in range(400):
        small_requests()
        if not is_running and num_steps == 20:
            scheduler.add(long)
        step(scheduler, runner)
        if num_steps > 20 and "long" not in scheduler.live_request_ids:
            return
    raise AssertionError("it never ended")


def test_one_tenant_does_not_fill_the_queue():
    scheduler = a_scheduler(max_num_seqs=1, max_waiting=20)
    refused = 0
    scheduler.add(of("quiet", "first"))
    for number in range(40):
        try:
            scheduler.add(of("flood", f"f{number}"))
        except QueueFullError:
            refused += 1
    assert refused >= 20
    for number in range(5):
        scheduler.add(of("quiet", f"q{number}"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "take", "drop"]), st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 1)),
        max_size=80,
    )
)
def test_the_queue_gives_every_request_once_and_by_priority(operations: list[tuple[str, str, int, int]]):
    queue, model = RequestQueue(), dict[str, Request]()
    for number, (operation, tenant, length, priority) in enumerate(operations):
        if operation == "push":
            request = of(tenant, str(number), [1] * length, priority)
            request.arrival = number
            model[request.request_id] = request
            queue.push(request)
        elif model:
            first = queue.first()
            assert first is not None
            assert first.priority == min(one.priority for one in model.values())
            own = [one for one in model.values() if (one.tenant, one.priority) == (first.tenant, first.priority)]
            assert first.arrival == min(one.arrival for one in own)
            assert queue.shortest() is min(own, key=lambda one: one.shortness_key)
            others = queue.first({first.tenant})
            assert others is None or others.tenant != first.tenant
            if operation == "take":
                queue.take(first)
                queue.charge(tenant, length)
            else:
                queue.remove(first.request_id)
            del model[first.request_id]
        assert len(queue) == len(model)
    assert (queue.first() is None) == (not model)
