"""The step loop on its thread: commands, failures, sleep, the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest
from support.builders.engine import a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output, fake_embeddings
from triptych.errors import InternalError, ServiceUnavailableError
from triptych_engine.core import EngineCore
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason

WAIT_S = 10


class Running:
    """A core with a fake runner, and what it published."""

    def __init__(self, async_scheduling: bool = False) -> None:
        self.runner = FakeRunner()
        self.scheduler = a_scheduler()
        self.outputs: queue.SimpleQueue[SequenceOutput] = queue.SimpleQueue()
        self.deaths: list[BaseException] = []
        self.core = EngineCore(self.scheduler, self.runner, self._publish, self.deaths.append, async_scheduling=async_scheduling)

    def _publish(self, step: int, outputs, load) -> None:
        for output in outputs:
            self.outputs.put(output)

    def until_end(self, request_id: str) -> list[SequenceOutput]:
        got = []
        while True:
            output = self.outputs.get(timeout=WAIT_S)
            if output.request_id == request_id:
                got.append(output)
                if output.finish_reason is not None:
                    return got

    def until_idle(self) -> None:
        """Until no step is in flight; commands are run between steps."""
        while self.core.call(lambda: self.core.num_in_flight).result(WAIT_S):
            pass


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(async_scheduling=request.param)
    made.core.start()
    yield made
    made.core.stop()
    assert made.core._loop is not None
    assert made.core._loop.done()


def test_a_request_is_generated(running: Running):
    request = a_request()
    running.core.add(request)
    outputs = running.until_end("r")
    assert [t for o in outputs for t in o.token_ids] == expected_output([1, 2, 3], request.sampling)
    assert running.core.load.num_free_blocks == 64


def test_abort_takes_effect_before_the_next_step(running: Running):
    running.runner.gate = threading.Semaphore(0)
    running.core.add(a_request(max_tokens=200))
    for _ in range(3):
        running.runner.gate.release()
        running.outputs.get(timeout=WAIT_S)
    aborted = running.core.abort(["r", "nobody"])
    running.runner.gate.release(2)  # the step in hand, and the one that may be in flight behind it
    assert aborted.result(WAIT_S) == ["r"]
    rest = running.until_end("r")
    assert len(rest) <= 2
    assert rest[-1].finish_reason is FinishReason.ABORT
    running.until_idle()
    assert running.core.load.num_free_blocks == 64


def test_a_failing_step_fails_its_requests_and_the_next_is_fine(running: Running):
    running.runner.fail_next_step = RuntimeError("boom")
    running.core.add(a_request("unlucky"))
    last = running.until_end("unlucky")[-1]
    assert isinstance(last.error, InternalError)
    assert "boom" not in str(last.error)
    running.runner.fail_next_launch = RuntimeError("boom")
    running.core.add(a_request("unlucky too"))
    assert isinstance(running.until_end("unlucky too")[-1].error, InternalError)
    running.core.add(a_request("next"))
    assert running.until_end("next")[-1].finish_reason is FinishReason.LENGTH
    running.until_idle()
    assert running.core.load.num_free_blocks == 64
    assert running.deaths == []


def test_a_lost_device_ends_the_loop(running: Running):
    """Every step after it would fail, too."""
    running.runner.fail_next_step = running.runner.lost_device = RuntimeError("an illegal memory access was encountered")
    running.core.add(a_request("unlucky"))
    assert isinstance(running.until_end("unlucky")[-1].error, InternalError)
    assert running.core._loop is not None
    running.core._loop.result(WAIT_S)
    assert running.deaths == [running.runner.lost_device]


def test_a_refused_request_gets_its_error_as_its_last_output(running: Running):
    running.core.add(a_request(prompt=[1] * 1000))
    (output,) = running.until_end("r")
    assert output.finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("unload", [False, True])
def test_asleep_it_refuses_and_awake_it_serves(running: Running, unload: bool):
    running.core.add(a_request("first"))
    running.until_end("first")
    running.core.sleep().result(WAIT_S)
    assert not running.runner.cache_allocated
    assert running.runner.model_loaded
    if unload:  # also of an engine that sleeps already
        running.core.sleep(unload=True).result(WAIT_S)
        assert not running.runner.model_loaded
    running.core.add(a_request("asleep"))
    assert isinstance(running.until_end("asleep")[-1].error, ServiceUnavailableError)
    running.core.wake_up().result(WAIT_S)
    running.core.add(a_request("awake"))
    assert running.until_end("awake")[-1].finish_reason is FinishReason.LENGTH


def test_the_prefix_cache_can_be_reset(running: Running):
    running.core.add(a_request("r", list(range(9)), max_tokens=1))
    running.until_end("r")
    assert running.core.reset_prefix_cache().result(WAIT_S) == 2
    assert running.core.reset_prefix_cache().result(WAIT_S) == 0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_stop_aborts_what_is_left(async_scheduling: bool):
    running = Running(async_scheduling)
    running.runner.gate = threading.Semaphore(2)
    running.core.start()
    running.core.add(a_request(max_tokens=200))
    running.outputs.get(timeout=WAIT_S)
    stopper = threading.Thread(target=running.core.stop)
    stopper.start()
    running.runner.gate.release(5)
    stopper.join(WAIT_S)
    assert running.until_end("r")[-1].finish_reason is FinishReason.ABORT


def test_a_loop_that_cannot_go_on_says_so():
    running = Running()
    running.scheduler.schedule = None  # type: ignore[method-assign, assignment] - a bug outside of any request
    running.core.start()
    running.core.add(a_request())
    assert running.core._loop is not None
    running.core._loop.result(WAIT_S)
    assert len(running.deaths) == 1


def test_a_command_that_fails_reports_to_its_caller(running: Running):
    with pytest.raises(ZeroDivisionError):
        running.core.call(lambda: 1 // 0).result(WAIT_S)
    running.core.add(a_request())
    assert running.until_end("r")


def fails_for(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, request_id: str) -> None:
    """Make a method raise when it is called about one request."""
    own = getattr(owner, name)

    def failing(request, *args):
        if request.request_id == request_id:
            raise ZeroDivisionError("a bug")
        return own(request, *args)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("name", ["check", "find_cached_prefix", "can_allocate", "allocate", "num_missing_blocks", "commit"])
def test_a_bug_that_one_request_meets_fails_it_alone(running: Running, monkeypatch: pytest.MonkeyPatch, name: str):
    """When it is added, admitted, scheduled, updated: the others of the same steps go on, and nothing of theirs is lost."""
    fails_for(monkeypatch, running.scheduler.kv_cache, name, "bad")
    requests = [a_request("first", [1, 2], max_tokens=1), a_request("bad"), a_request("other", [4, 5], max_tokens=9)]
    running.core.call(lambda: [running.core._add(request) for request in requests]).result(WAIT_S)  # for one step
    outputs: dict[str, list[SequenceOutput]] = {}
    while sum(output.finish_reason is not None for some in outputs.values() for output in some) < len(requests):
        output = running.outputs.get(timeout=WAIT_S)
        outputs.setdefault(output.request_id, []).append(output)
    assert isinstance(outputs["bad"][-1].error, InternalError)
    assert "a bug" not in str(outputs["bad"][-1].error)
    for request in (requests[0], requests[2]):
        got = [token_id for output in outputs[request.request_id] for token_id in output.token_ids]
        assert got == expected_output(request.prompt_token_ids, request.sampling)
    running.core.add(a_request("next"))
    assert running.until_end("next")[-1].finish_reason is FinishReason.LENGTH
    running.until_idle()
    running.scheduler.check_integrity()
    assert running.core.load.num_free_blocks == 64
    assert running.deaths == []


class NoFetcher:
    """Leaves it to the test to deliver."""

    def submit(self, orders, cancelled) -> None:
        pass


def test_a_bug_when_embeddings_arrive_fails_those_who_wait_for_them(running: Running, monkeypatch: pytest.MonkeyPatch):
    running.core._fetcher = NoFetcher()
    running.core.add(a_media_request("picture", [1, (b"cat", (6,)), 2]))
    running.core.add(a_request("text"))
    running.until_end("text")
    own = running.scheduler.arrive

    def failing(number, result):
        own(number, result)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(running.scheduler, "arrive", failing)
    running.core.deliver(1, fake_embeddings(b"cat".ljust(32, b"."), 6))
    assert isinstance(running.until_end("picture")[-1].error, InternalError)
    running.core.add(a_request("next"))
    assert running.until_end("next")[-1].finish_reason is FinishReason.LENGTH
    assert running.deaths == []


def test_what_the_pacer_cannot_learn_harms_nobody(running: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running.scheduler, "observe", lambda scheduled, step_s: 1 // 0)
    running.core.add(a_request())
    assert running.until_end("r")[-1].finish_reason is FinishReason.LENGTH
