"""`triptych serve` whose models are computed by worker processes: these end, hang and sleep under streams, and no text differs.

One process computes the model, or two that have a share of it each.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from support.stack import QUESTION, Stack, running_stack
from triptych.v1 import control_pb2

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
_TIMEOUT_S = 20
_FLAGS = ["--engine.dtype", "float32", "--engine.batch-invariant", "--engine.execute-model-timeout-s", str(_TIMEOUT_S)]
_FORMS = {1: ["--engine.distributed-executor-backend", "mp"], 2: ["--tensor-parallel-size", "2"]}
_SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 300}}, "required": ["name"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}
_TELL = {"messages": [{"role": "user", "content": "Tell me a long story about a dragon."}], "max_tokens": 120}
#: Bodies of streams: greedy, seeded, with log probabilities, constrained.
BODIES: list[dict[str, Any]] = [
    _TELL | {"temperature": 0},
    _TELL | {"temperature": 1, "seed": 7, "presence_penalty": 0.5},
    _TELL | {"temperature": 0.8, "seed": 3, "logprobs": True, "top_logprobs": 2},
    _TELL | {"temperature": 1, "seed": 5, "response_format": _FORMAT},
    _TELL | {"temperature": 0, "stop": [" treasure"]},
]


@pytest.fixture(scope="module", params=_FORMS, ids=lambda size: f"{size}-ranks")
def num_ranks(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def stack(num_ranks: int) -> Iterator[Stack]:
    with running_stack(*_FLAGS, *_FORMS[num_ranks]) as stack:
        yield stack
        everything = psutil.Process(stack.serving.process.pid).children(recursive=True)
        assert len(workers(stack)) == num_ranks
        stack.serving.process.send_signal(signal.SIGINT)
        assert stack.serving.process.wait(timeout=60) == 0
        assert not any(process.is_running() for process in everything)


def workers(stack: Stack) -> list[psutil.Process]:
    everything = psutil.Process(stack.serving.process.pid).children(recursive=True)
    return [process for process in everything if "triptych_engine.executor.worker" in process.cmdline()]


def streamed(stack: Stack, body: dict[str, Any], begun: threading.Event | None = None) -> tuple[str, list[float], str]:
    """Text, log probabilities, and why it ended. Sets the event at the tenth piece of text."""
    text, logprobs, reason, num_pieces = "", list[float](), "", 0
    with stack.http.stream("POST", "/v1/chat/completions", json=QUESTION | body | {"stream": True}) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["delta"].get("content") or ""
            logprobs += [one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or ()]
            reason = choice["finish_reason"] or reason
            num_pieces += 1
            if begun is not None and num_pieces == 10:
                begun.set()
    return text, logprobs, reason


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> list[tuple[str, list[float], str]]:
    return [streamed(stack, body) for body in BODIES]


@pytest.mark.usefixtures("undisturbed")
def test_the_engine_itself_needs_no_torch(stack: Stack) -> None:
    """Neither for the start nor for requests of any kind."""
    engine = psutil.Process(stack.serving.services()["engine"].pid)
    assert not [one.path for one in engine.memory_maps() if "libtorch" in one.path]
    assert all(any("libtorch" in one.path for one in worker.memory_maps()) for worker in workers(stack))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_streams_go_on_with_the_next_worker(
    stack: Stack, undisturbed: list[tuple[str, list[float], str]], number: signal.Signals
) -> None:
    begun = [threading.Event() for _ in BODIES]
    worker = workers(stack)[-1]
    with ThreadPoolExecutor(len(BODIES) + 2) as threads:
        streams = [threads.submit(streamed, stack, body, event) for body, event in zip(BODIES, begun, strict=True)]
        assert all(event.wait(60) for event in begun[:3])
        worker.send_signal(number)
        stack.serving.wait_until_unready(stack.url, timeout_s=5)
        late = [threads.submit(streamed, stack, BODIES[index]) for index in (1, 3)]
        results = [stream.result(timeout=200) for stream in streams]
        assert [one.result(timeout=100)[0] for one in late] == [undisturbed[1][0], undisturbed[3][0]], "who comes meanwhile waits"
    for got, wanted in zip(results, undisturbed, strict=True):
        assert got[0] == wanted[0]
        assert got[1] == pytest.approx(wanted[1], abs=1e-6)
        assert got[2] == wanted[2]
    assert re.search(rf"was ended by {number.name}; its output is above; starting another one", stack.serving.log)
    assert worker not in workers(stack)
    stack.wait_until_empty()
    stack.serving.wait_until_ready(stack.url)


def test_a_worker_that_stops_under_a_stream_is_replaced(stack: Stack, undisturbed: list[tuple[str, list[float], str]]) -> None:
    """The others, if there are any, wait for it in the middle of a step."""
    before, begun = workers(stack), threading.Event()
    already = len(stack.serving.log)
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(streamed, stack, BODIES[0], begun)
        assert begun.wait(60)
        before[-1].suspend()
        stack.serving.wait_until_unready(stack.url, timeout_s=_TIMEOUT_S + 10)
        assert stream.result(timeout=200) == undisturbed[0]
    assert not psutil.wait_procs(before, 10)[1]
    log = stack.serving.log[already:]
    assert "did not answer to 'result' within 20 s" in log
    # One that is stopped writes nothing.
    assert log.count("most recent call first") >= len(before) - 1
    stack.serving.wait_until_ready(stack.url)


def test_an_idle_engine_is_ready_again_by_itself(stack: Stack, undisturbed: list[tuple[str, list[float], str]]) -> None:
    workers(stack)[-1].kill()
    stack.serving.wait_until_unready(stack.url, timeout_s=5)
    stack.serving.wait_until_ready(stack.url)
    assert streamed(stack, BODIES[0]) == undisturbed[0]


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes(stack: Stack, undisturbed: list[tuple[str, list[float], str]], level: int) -> None:
    control = stack.control("engine")
    control.Sleep(control_pb2.SleepRequest(level=level, timeout_s=5), timeout=60)
    control.WakeUp(control_pb2.WakeUpRequest(), timeout=60)
    stack.serving.wait_until_ready(stack.url)
    assert streamed(stack, BODIES[0]) == undisturbed[0]


def test_a_worker_that_is_lost_asleep_is_there_when_it_wakes(stack: Stack, undisturbed: list[tuple[str, list[float], str]]) -> None:
    control = stack.control("engine")
    control.Sleep(control_pb2.SleepRequest(level=2, timeout_s=5), timeout=60)
    worker = workers(stack)[-1]
    worker.kill()
    worker.wait(10)
    time.sleep(1)
    assert not workers(stack), "nothing is loaded while it sleeps"
    control.WakeUp(control_pb2.WakeUpRequest(), timeout=100)
    stack.serving.wait_until_ready(stack.url)
    assert streamed(stack, BODIES[2])[0] == undisturbed[2][0]


def test_the_worker_ends_with_its_engine(stack: Stack, undisturbed: list[tuple[str, list[float], str]]) -> None:
    before = workers(stack)
    stack.serving.services()["engine"].kill()
    assert not psutil.wait_procs(before, 10)[1]
    stack.serving.wait_until_unready(stack.url, timeout_s=5)
    stack.serving.wait_until_ready(stack.url)
    assert streamed(stack, BODIES[0]) == undisturbed[0]


def test_another_engine_takes_the_streams_over(num_ranks: int, undisturbed: list[tuple[str, list[float], str]]) -> None:
    with running_stack(*_FLAGS, *_FORMS[num_ranks], "--engines", "2") as two:
        begun = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            stream = threads.submit(streamed, two, BODIES[0], begun)
            assert begun.wait(60)
            started_s = time.monotonic()
            busy = max(workers(two), key=lambda worker: worker.cpu_percent(0.3))
            busy.kill()
            assert stream.result(timeout=100) == undisturbed[0]
        assert "restarts its worker" in two.serving.log
        assert time.monotonic() - started_s < 60
