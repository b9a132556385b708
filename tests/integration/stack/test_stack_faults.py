"""A small stack at its limits, and what clients see when a service dies under them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from support.stack import QUESTION, SOON_S, Stack, running_stack
from triptych.status import DETAILS_KEY
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
_MAX_WAITING = 2
#: A stream that does not end while a test looks at it.
_ENDLESS = {"model": DEFAULT_MODEL, "prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def small_stack() -> Iterator[Stack]:
    """One request runs, two wait, and about 700 tokens are all that the KV cache holds. At the end SIGINT leaves no process."""
    limits = ["--engine.max-num-seqs", "1", "--engine.max-waiting", str(_MAX_WAITING), "--engine.kv-cache-memory", "32M"]
    # The type decides how many tokens that holds, and by default the CPU decides about the type.
    limits += ["--engine.dtype", "float32"]
    with running_stack(*limits) as stack:
        yield stack
        services = stack.serving.services()
        stack.serving.process.send_signal(signal.SIGINT)
        assert stack.serving.process.wait(timeout=60) == 0
        assert services.keys() >= {"gateway", "frontend", "engine"}
        assert not any(service.is_running() for service in services.values())


@pytest.fixture
def stack(small_stack: Stack) -> Iterator[Stack]:
    """The small stack. Whatever the test did, nothing of it may be left when it ends."""
    yield small_stack
    small_stack.wait_until_empty()


def error_event(event: str) -> Any:
    return json.loads(event.removeprefix("data: "))["error"]


def options(**sampling: Any) -> generation_pb2.GenerationOptions:
    return generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(**sampling))


def grpc_error(stack: Stack, **sampling: Any) -> tuple[grpc.RpcError, status_pb2.Status]:
    """What GenerationService.Complete ends with, and the details."""
    stub = generation_pb2_grpc.GenerationServiceStub(stack.channel("frontend"))
    request = generation_pb2.CompleteRequest(text="Hi", options=options(**sampling))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Complete(request, timeout=SOON_S)
    return caught.value, status_pb2.Status.FromString(dict(caught.value.trailing_metadata())[DETAILS_KEY])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_kv_cache_bounds_the_context_and_what_exceeds_it_is_refused_at_once(stack: Stack, stream: bool) -> None:
    assert re.search(r"the model's context of 8192 tokens does not fit: the KV cache holds 7\d\d tokens", stack.serving.log)
    body = {"model": DEFAULT_MODEL, "prompt": "Hi", "max_tokens": 2000, "stream": stream}
    response = stack.http.post("/v1/completions", json=body, timeout=SOON_S)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "max_tokens", "context_length_exceeded")
    assert re.search(r"\b2000\b|\b2001\b", error["message"])
    response = stack.http.post("/v1/completions", json=body | {"prompt": " the" * 900, "max_tokens": 1}, timeout=SOON_S)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    failure, _ = grpc_error(stack, max_tokens=2000)
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_without_max_tokens_the_kv_cache_is_the_bound(stack: Stack) -> None:
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": "the " * 600}], "ignore_eos": True}
    answer = stack.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert 600 < answer["usage"]["total_tokens"] < 800


def test_a_full_queue_says_when_to_come_back(stack: Stack) -> None:
    with contextlib.ExitStack() as streams:
        streams.enter_context(stack.http.stream("POST", "/v1/completions", json=_ENDLESS))
        for number in range(_MAX_WAITING):
            streams.enter_context(_waiting(stack))
            stack.wait_for_load(1, number + 1)
        for stream in (False, True):
            response = stack.http.post("/v1/completions", json=_ENDLESS | {"stream": stream}, timeout=SOON_S)
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert (response.json()["error"]["type"], response.json()["error"]["code"]) == ("rate_limit_error", "queue_full")
        failure, status = grpc_error(stack, max_tokens=5)
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    stack.wait_until_empty()
    assert stack.http.post("/v1/completions", json=_ENDLESS | {"stream": False, "max_tokens": 5}).status_code == 200


@contextlib.contextmanager
def _waiting(stack: Stack) -> Iterator[None]:
    """A request in the queue: over gRPC, as a REST stream has no headers before its first token."""
    stub = generation_pb2_grpc.GenerationServiceStub(stack.channel("frontend"))
    complete = generation_pb2.CompleteRequest(text="Hi", options=options(max_tokens=5))
    call = stub.CompleteStream(generation_pb2.CompleteStreamRequest(complete=complete))
    try:
        yield
    finally:
        call.cancel()


@pytest.mark.parametrize("victim", ["engine", "frontend"])
def test_a_service_killed_under_a_stream(stack: Stack, victim: str) -> None:
    serving = stack.serving
    before = serving.services()
    with stack.http.stream("POST", "/v1/completions", json=_ENDLESS) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))  # comments keep a connection open
        for _ in range(3):
            assert "error" not in json.loads(next(events).removeprefix("data: "))
        # Nothing is started again while this process stands still: an engine that is soon back would go on with the stream.
        serving.process.send_signal(signal.SIGSTOP)
        try:
            before[victim].kill()
            *_, last, done = events
        finally:
            serving.process.send_signal(signal.SIGCONT)
    assert done == "data: [DONE]"
    assert error_event(last)["type"] == "service_unavailable_error"
    assert error_event(last)["message"]
    serving.wait_for(rf"{victim} died \(SIGKILL\); its last lines:")
    serving.wait_until_unready(stack.url)
    assert [stack.http.get(path).status_code for path in ("/ready", "/live", "/health")] == [503, 200, 200]
    # It waits for the service for a few seconds, in which a frontend may be back.
    waited = stack.http.post("/v1/chat/completions", json=QUESTION)
    assert waited.status_code == 200 or (waited.status_code, int(waited.headers["retry-after"]) >= 1) == (503, True)
    serving.wait_until_ready(stack.url, timeout_s=120)
    assert "Paris" in serving.ask(stack.url)
    after = serving.services()
    assert {name for name in before if before[name] != after[name]} == {victim}
