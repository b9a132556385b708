"""The worker process is lost, in the middle of everything: it is replaced, and no text differs."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict

import pytest
from support.builders.engine import a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output, fake_embeddings, seen
from triptych.errors import InternalError, StartupError
from triptych_engine.core import EngineCore
from triptych_engine.executor.protocol import WorkerLostError
from triptych_engine.load import Load
from triptych_engine.scheduling.output import SequenceOutput, StepResult
from triptych_engine.scheduling.request import FinishReason, Request

pytestmark = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


class Loop:
    """A core whose steps the test makes."""

    def __init__(self, async_scheduling: bool, **options: int) -> None:
        self.runner = FakeRunner()
        self.scheduler = a_scheduler(**options)  # type: ignore[arg-type]
        self.restarts: list[bool] = []
        self.loads: list[Load] = []
        self.tokens = defaultdict[str, list[int]](list)
        self.last: dict[str, SequenceOutput] = {}
        self.ended = threading.Semaphore(0)
        self.core = EngineCore(
            self.scheduler, self.runner, self._publish, async_scheduling=async_scheduling, on_restart=self.restarts.append
        )

    def _publish(self, step: int, outputs: list[SequenceOutput], load: Load) -> None:
        self.loads.append(load)
        for output in outputs:
            assert output.request_id not in self.last
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.last[output.request_id] = output
                self.ended.release()

    def steps(self, most: int = 500) -> None:
        for _ in range(most):
            if not (self.scheduler.has_work or self.core.num_in_flight):
                return
            self.core.step()
            self.scheduler.check_integrity()


def some_requests() -> list[Request]:
    """Some of them share a prefix."""
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, index % 2, index] for index in range(5)]
    return [a_request(f"r{index}", prompt, max_tokens=12) for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("num_steps", range(1, 12))
def test_texts_go_on(async_scheduling: bool, num_steps: int):
    loop = Loop(async_scheduling)
    requests = some_requests()
    for request in requests:
        loop.scheduler.add(request)
    loop.steps(num_steps)
    loop.runner.lose_in_steps = 1
    loop.steps()
    assert loop.runner.num_restores == 1
    assert loop.restarts == [True, False]
    for request in requests:
        assert loop.tokens[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
        assert loop.last[request.request_id].finish_reason is FinishReason.LENGTH
    assert loop.scheduler.kv_cache.pool.num_free_blocks == loop.scheduler.kv_cache.pool.num_blocks


def test_what_was_cached_is_computed_again(async_scheduling: bool):
    loop = Loop(async_scheduling)
    first, second = a_request("first", [7] * 12, max_tokens=2), a_request("second", [7] * 12 + [8], max_tokens=4)
    loop.scheduler.add(first)
    loop.steps()
    assert loop.scheduler.kv_cache.pool.find_prefix(first.block_hashes)
    other = a_request("other", [1, 2, 3], max_tokens=3)
    loop.scheduler.add(other)
    loop.runner.lose_in_steps = 1
    loop.steps()
    loop.scheduler.add(second)
    loop.steps()
    assert second.num_cached_tokens == 0
    assert loop.tokens["second"] == expected_output(second.prompt_token_ids, second.sampling)


def test_the_load_says_that_it_restarts(async_scheduling: bool):
    loop = Loop(async_scheduling)
    loop.scheduler.add(a_request(max_tokens=4))
    loop.runner.lose_in_steps = 1
    loop.steps()
    assert [load.is_restarting for load in loop.loads].count(True) == 1
    assert not loop.loads[-1].is_restarting
    assert not loop.core.current_load().is_restarting


def test_who_is_the_reason_ends(async_scheduling: bool):
    loop = Loop(async_scheduling, max_num_seqs=1)
    loop.scheduler.add(a_request("poison", [1, 2, 3], max_tokens=4))
    loop.scheduler.add(a_request("innocent", [4, 5, 6], max_tokens=4))
    loop.runner.lose_in_steps = 2
    loop.steps()
    assert loop.runner.num_restores == 2
    assert isinstance(loop.last["poison"].error, InternalError)
    assert "was lost in steps with this request" in str(loop.last["poison"].error)
    assert loop.last["innocent"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("in_prompts", [False, True])
def test_the_reason_is_found_among_many(async_scheduling: bool, in_prompts: bool):
    """A step with the poison is lost from its third token on: any, or only one that decodes."""
    loop = Loop(async_scheduling)
    requests = [a_request(f"r{index}", [1, 2, 3, 4, index], max_tokens=10) for index in range(6)]
    result = loop.runner.result

    def losing(step_id: int) -> StepResult:
        step = loop.runner._in_flight[0]
        if any(one.request_id == "r3" and end >= 8 and (in_prompts or end - start == 1) for one, start, end in step.chunks):
            loop.runner.lose_in_steps = 1
        return result(step_id)

    loop.runner.result = losing  # type: ignore[method-assign]
    for request in requests:
        loop.scheduler.add(request)
    loop.steps()
    assert loop.runner.num_restores == 2
    for request in requests:
        expected = expected_output(request.prompt_token_ids, request.sampling)
        if request.request_id == "r3":
            assert loop.last["r3"].finish_reason is FinishReason.ERROR
            assert loop.tokens["r3"] == expected[: 3 if in_prompts else 4]
        else:
            assert loop.tokens[request.request_id] == expected


def test_who_comes_meanwhile_waits_for_the_suspects(async_scheduling: bool):
    loop = Loop(async_scheduling)
    requests = some_requests()
    for request in requests:
        loop.scheduler.add(request)
    loop.steps(3)
    loop.runner.lose_in_steps = 1
    loop.steps(1)
    late = a_request("late", [9, 9], max_tokens=3)
    late.priority = -1
    loop.scheduler.add(late)
    loop.steps()
    for request in [*requests, late]:
        assert loop.tokens[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)


def test_with_a_lost_device_its_process_is_replaced(async_scheduling: bool, monkeypatch: pytest.MonkeyPatch):
    loop = Loop(async_scheduling)

    def check_health() -> None:
        loop.runner.lose()
        raise WorkerLostError("its device is lost")

    monkeypatch.setattr(loop.runner, "check_health", check_health)
    requests = some_requests()
    for request in requests:
        loop.scheduler.add(request)
    loop.steps(3)
    loop.runner.fail_next_step = RuntimeError("an illegal memory access")
    loop.steps()
    for request in requests:
        assert loop.tokens[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)


def test_a_restart_that_fails_ends_an_idle_loop(async_scheduling: bool, monkeypatch: pytest.MonkeyPatch):
    deaths: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    runner = FakeRunner()

    def lost() -> None:
        raise WorkerLostError("it was killed")

    def cannot() -> None:
        raise StartupError("no memory is left")

    monkeypatch.setattr(runner, "check_health", lost)
    monkeypatch.setattr(runner, "restore", cannot)
    core = EngineCore(a_scheduler(), runner, lambda *_: None, deaths.put, async_scheduling=async_scheduling)
    core.start()
    core.recover()
    assert isinstance(deaths.get(timeout=10), StartupError)


def test_a_stop_ends_a_restart(async_scheduling: bool, monkeypatch: pytest.MonkeyPatch):
    loop = Loop(async_scheduling)
    restoring, may_fail = threading.Event(), threading.Event()

    def restore() -> None:
        loop.runner.num_restores += 1
        restoring.set()
        may_fail.wait(10)
        raise WorkerLostError("it was closed")

    monkeypatch.setattr(loop.runner, "restore", restore)
    loop.runner.lose_in_steps = 1
    loop.core.start()
    loop.core.add(a_request())
    assert restoring.wait(10)
    threading.Timer(0.1, may_fail.set).start()
    loop.core.stop(10)
    assert loop.core._loop is not None
    assert loop.core._loop.done()
    assert loop.runner.num_restores == 1


def test_it_gives_up_when_no_step_is_completed(async_scheduling: bool):
    loop = Loop(async_scheduling, max_num_seqs=1)
    for index in range(4):
        loop.scheduler.add(a_request(f"r{index}", [1, 2, 3, index], max_tokens=4))
    loop.runner.lose_in_steps = 100
    with pytest.raises(Exception, match="the fake's process was lost"):
        loop.steps()
    assert loop.runner.num_restores == 3


def test_media_are_computed_again(async_scheduling: bool):
    loop = Loop(async_scheduling, max_embeddings=64)
    request = a_media_request("r", [1, (b"picture", (5,)), 2, 3], max_tokens=6)
    loop.scheduler.add(request)
    orders, _ = loop.scheduler.take_fetches()
    for order in orders:
        loop.scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))
    loop.steps(3)
    loop.runner.lose_in_steps = 1
    loop.steps()
    orders, _ = loop.scheduler.take_fetches()
    assert not orders, "its embeddings are still here"
    loop.steps()
    assert loop.tokens["r"] == expected_output(seen(request.prompt_token_ids, request.media), request.sampling)


def test_a_request_that_is_tried_alone_gets_room_for_its_embeddings(async_scheduling: bool):
    """Meanwhile nothing else is computed, so one that goes before it would keep the room for ever."""
    loop = Loop(async_scheduling, max_embeddings=5)
    suspect, other = a_media_request("suspect", [1, (b"b", (5,))]), a_media_request("other", [1, (b"a", (3,))])
    suspect.priority = 1

    def fetch() -> None:
        for order in loop.scheduler.take_fetches()[0]:
            loop.scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))

    loop.scheduler.add(suspect)
    fetch()
    loop.runner.lose_in_steps = 1
    loop.steps(2 if async_scheduling else 1)
    loop.scheduler.add(other)
    for _ in range(9):
        fetch()
        loop.steps()
    assert loop.runner.num_restores == 1
    assert loop.last.keys() == {"suspect", "other"}


def test_asleep_it_waits_to_be_woken(async_scheduling: bool):
    loop = Loop(async_scheduling)
    loop.core.start()
    try:
        loop.core.sleep().result(10)
        loop.core.recover()
        loop.core.call(lambda: None).result(10)
        assert loop.runner.num_restores == 0
        loop.core.wake_up().result(10)
        assert loop.runner.num_restores == 1
    finally:
        loop.core.stop()


def test_idle_it_is_replaced_at_once(async_scheduling: bool, monkeypatch: pytest.MonkeyPatch):
    loop = Loop(async_scheduling)
    lost = threading.Event()
    lost.set()

    def check_health() -> None:
        if lost.is_set():
            lost.clear()
            raise WorkerLostError("it was killed")

    monkeypatch.setattr(loop.runner, "check_health", check_health)
    loop.core.start()
    try:
        loop.core.recover()
        loop.core.call(lambda: None).result(10)
        assert loop.runner.num_restores == 1
        request = a_request(max_tokens=4)
        loop.core.add(request)
        assert loop.ended.acquire(timeout=10)
        assert loop.tokens[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
    finally:
        loop.core.stop()
