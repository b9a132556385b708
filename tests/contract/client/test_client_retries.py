"""gRPC's retries with both clients: while nothing of the answer has come, within the deadline, and when the server says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from support.mock import Mock, mock_server, script
from support.waiting import until
from triptych import AsyncClient, Client, RetryConfig
from triptych.errors import DeadlineExceededError, QueueFullError, ServiceUnavailableError

#: Make one call with a client; the text of its answer.
Ask = Callable[..., Awaitable[str]]


async def ask_async(mock: Mock, prompt: str, is_stream: bool, retry: RetryConfig | None = None, **options: Any) -> str:
    async with AsyncClient(mock.address, retry=retry) as client:
        if is_stream:
            return "".join([text async for text in client.chat_stream(prompt, **options).text_deltas()])
        return (await client.chat(prompt, **options)).choices[0].text


async def ask_sync(mock: Mock, prompt: str, is_stream: bool, retry: RetryConfig | None = None, **options: Any) -> str:
    def ask() -> str:
        with Client(mock.address, retry=retry) as client:
            if is_stream:
                return "".join(client.chat_stream(prompt, **options).text_deltas())
            return client.chat(prompt, **options).choices[0].text

    return await asyncio.to_thread(ask)


def unavailable(num_calls: int = 0, after_tokens: int = 0) -> str:
    return script(numTokens=3, fault={"numCalls": num_calls, "bareCode": 14, "afterTokens": after_tokens})


@pytest.fixture(params=[ask_async, ask_sync])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_service_that_is_back_in_time_answers_a_large_request(ask: Ask, is_stream: bool) -> None:
    async with mock_server() as mock:
        assert await ask(mock, unavailable(3), is_stream, request_id="a", images=[bytes(3 << 20)]) == "word1 word2 word3"
        assert [call.media_bytes for call in await mock.calls("a")] == [3 << 20] * 4


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_a_stopping_server_cancelled_is_sent_again(ask: Ask, is_stream: bool) -> None:
    cancelled = script(numTokens=3, fault={"numCalls": 1, "bareCode": grpc.StatusCode.CANCELLED.value[0]})
    async with mock_server() as mock:
        assert await ask(mock, cancelled, is_stream, request_id="a") == "word1 word2 word3"
        assert len(await mock.calls("a")) == 2


async def test_a_call_that_the_client_cancelled_is_not_sent_again() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        call = asyncio.create_task(client.chat(script(numTokens=3, firstTokenS=30), request_id="a"))
        await until(lambda: mock.server.num_live_requests > 0)
        call.cancel()
        await asyncio.sleep(0.5)
        assert len(await mock.calls("a")) == 1


async def test_four_attempts_are_all(ask: Ask) -> None:
    async with mock_server() as mock:
        with pytest.raises(ServiceUnavailableError):
            await ask(mock, unavailable(), False, request_id="a")
        assert len(await mock.calls("a")) == 4
        with pytest.raises(ServiceUnavailableError):
            await ask(mock, unavailable(), False, RetryConfig(max_attempts=1), request_id="b")
        assert len(await mock.calls("b")) == 1


async def test_a_stream_that_has_begun_is_not_asked_again(ask: Ask) -> None:
    async with mock_server() as mock:
        with pytest.raises(ServiceUnavailableError):
            await ask(mock, unavailable(after_tokens=1), True, request_id="a")
        assert len(await mock.calls("a")) == 1


@pytest.mark.parametrize("retry_after_s", [0.2, 61, None])
async def test_a_full_queue_is_asked_again_when_it_says(ask: Ask, retry_after_s: float | None) -> None:
    error = {"reason": "QUEUE_FULL", "code": 8} | ({} if retry_after_s is None else {"retryAfterS": retry_after_s})
    full = script(numTokens=1, fault={"numCalls": 1, "error": error})
    async with mock_server() as mock:
        started_s = time.monotonic()
        if retry_after_s == 0.2:
            assert await ask(mock, full, False, request_id="a") == "word1"
            assert time.monotonic() - started_s > 0.2
            assert len(await mock.calls("a")) == 2
        else:
            with pytest.raises(QueueFullError):
                await ask(mock, full, False, request_id="a")
            assert time.monotonic() - started_s < 5
            assert len(await mock.calls("a")) == 1


@pytest.mark.parametrize("code", [13, 10])
async def test_other_errors_are_not_retried(ask: Ask, code: int) -> None:
    async with mock_server() as mock:
        with pytest.raises(Exception, match="mock"):
            await ask(mock, script(fault={"bareCode": code}), False, request_id="a")
        assert len(await mock.calls("a")) == 1


async def test_the_deadline_is_of_all_attempts_together(ask: Ask) -> None:
    retry = RetryConfig(initial_backoff_s=1.0)
    async with mock_server() as mock:
        started_s = time.monotonic()
        with pytest.raises((DeadlineExceededError, ServiceUnavailableError)):
            await ask(mock, unavailable(), False, retry, request_id="a", timeout_s=0.5)
        assert time.monotonic() - started_s < 2
        assert len(await mock.calls("a")) <= 2
