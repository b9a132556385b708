"""Errors as clients get them: long texts, details that are broken, faults of the transport, metadata that cannot be sent."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from support.grpc_server import serving
from support.mock import mock_server, script
from triptych import AsyncChatStream, AsyncClient, Client
from triptych.client.calls import CallDefaults
from triptych.errors import (
    Code,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    RequestAbortedError,
)
from triptych.status import DETAILS_KEY
from triptych.v1 import generation_pb2, generation_pb2_grpc


async def _chat(client: AsyncClient, text: str, **options: Any) -> object:
    return await client.chat(text, **options)


async def _stream(client: AsyncClient, text: str, **options: Any) -> object:
    return [response async for response in client.chat_stream(text, **options)]


Ask = Callable[..., Awaitable[object]]
asks = pytest.mark.parametrize("ask", [_chat, _stream])


@pytest.mark.parametrize("character", ["a", "\u00e9", "\U0001f600", "\x00", "\\", "\uffff"])
async def test_what_a_client_wrote_never_makes_an_error_too_large_for_its_details(character: str) -> None:
    # gRPC refuses metadata of more than 8 KiB at random, of more than 16 KiB always. Other libraries send the details in base64.
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        with pytest.raises(ModelNotFoundError) as caught:
            await client.chat("hello", model=character * 100_000, request_id="x" * 128)
    assert caught.value.reason == "MODEL_NOT_FOUND"
    assert caught.value.message.startswith("the model")
    rpc_error: Any = caught.value.__cause__
    details = dict(rpc_error.trailing_metadata())[DETAILS_KEY]
    assert len(details) * 4 / 3 + 3 * len(rpc_error.details().encode()) < 8000


@asynccontextmanager
async def _served(servicer: generation_pb2_grpc.GenerationServiceServicer) -> AsyncIterator[AsyncClient]:
    def register(server: grpc.aio.Server) -> None:
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)

    async with serving(register) as address, AsyncClient(address) as client:
        yield client


class _Broken(generation_pb2_grpc.GenerationServiceServicer):
    """Ends each call with details of which one cannot be read."""

    async def Chat(self, request: object, context: grpc.aio.ServicerContext) -> generation_pb2.ChatResponse:
        status = status_pb2.Status(code=8)
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL"))
        status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\xff")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", ((DETAILS_KEY, status.SerializeToString()),))
        raise AssertionError


async def test_a_detail_that_cannot_be_read_leaves_the_others() -> None:
    async with _served(_Broken()) as client:
        with pytest.raises(QueueFullError) as caught:
            await client.chat("hello")
    assert (caught.value.reason, caught.value.retry_after_s) == ("QUEUE_FULL", None)


class _Large(generation_pb2_grpc.GenerationServiceServicer):
    """Answers with more than a message may have."""

    async def Chat(self, request: object, context: object) -> generation_pb2.ChatResponse:
        return generation_pb2.ChatResponse(model="m" * (65 << 20))

    async def ChatStream(self, request: object, context: object) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        yield generation_pb2.ChatStreamResponse(model="m" * (65 << 20))


@asks
async def test_an_answer_that_is_too_large_is_no_full_queue(ask: Ask) -> None:
    async with _served(_Large()) as client:
        with pytest.raises(InternalError, match="larger than max") as caught:
            await ask(client, "hello")
    assert (caught.value.code, caught.value.reason, caught.value.has_details) == (Code.RESOURCE_EXHAUSTED, "", False)


def test_secrets_are_not_in_what_debuggers_print() -> None:
    defaults = CallDefaults("hidden", None)
    assert "hidden" not in repr(defaults) + repr(defaults.take({}))


@asks
@pytest.mark.parametrize(
    ("key", "options", "field"),
    [
        ("hidden\n", {}, "api_key"),
        ("hidd\u00e9n", {}, "api_key"),
        ("hidden", {"metadata": {"X-Other": "a"}}, "metadata[X-Other]"),
        ("hidden", {"metadata": {"x other": "a"}}, "metadata[x other]"),
        ("hidden", {"metadata": {"": "a"}}, "metadata[]"),
        ("hidden", {"metadata": {"x-other": "\u00e9"}}, "metadata[x-other]"),
        ("hidden", {"metadata": {"x-other": 5}}, "metadata[x-other]"),
        ("hidden", {"metadata": {"x-other-bin": "text"}}, "metadata[x-other-bin]"),
        ("hidden", {"metadata": {"x-other": b"bytes"}}, "metadata[x-other]"),
        ("hidden", {"metadata": {"grpc-timeout": "1S"}}, "metadata[grpc-timeout]"),
        ("hidden", {"metadata": {"x-other": "a" * 8192}}, "metadata"),
        ("hidden", {"request_id": "a\nb"}, "request_id"),
        ("hidden", {"request_id": "\u00e9"}, "request_id"),
        ("hidden", {"request_id": 5}, "request_id"),
        ("hidden", {"timeout_s": math.nan}, "timeout_s"),
        ("hidden", {"timeout_s": "5"}, "timeout_s"),
    ],
)
async def test_what_grpc_cannot_send_is_named_and_no_secret_told(ask: Ask, key: str, options: Any, field: str) -> None:
    async with AsyncClient("127.0.0.1:1", api_key=key) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await ask(client, "hello", **options)
    assert caught.value.field == field
    assert "hid" not in str(caught.value) + caught.value.value
    with Client("127.0.0.1:1", api_key=key) as client, pytest.raises(InvalidRequestError):
        client.chat("hello", **options)


@asks
@pytest.mark.parametrize("timeout_s", [1e10, 1e18, 10**30, math.inf])
async def test_a_deadline_beyond_what_grpc_can_count_is_none(ask: Ask, timeout_s: float) -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        await ask(client, "hello", timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [0, -1, -math.inf])
async def test_a_deadline_that_has_passed_has_passed(timeout_s: float) -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        with pytest.raises(DeadlineExceededError):
            await client.chat("hello", timeout_s=timeout_s)


async def _read_for(stream: AsyncChatStream, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        async for _ in stream:
            pass


async def test_a_stream_whose_read_was_cancelled_does_not_look_complete() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        stream = client.chat_stream(script(numTokens=9, fault={"afterTokens": 2, "stall": True}))
        with pytest.raises(TimeoutError):
            await _read_for(stream, 0.3)
        for _ in range(2):
            with pytest.raises(RequestAbortedError, match="cancelled"):
                await anext(stream)
        assert stream.response.choices[0].text == "word1 word2"
        stream.close()
        assert [response async for response in stream] == []


async def test_a_stream_that_failed_does_not_look_complete_when_it_is_read_again() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        stream = client.chat_stream(script(fault={"error": {"code": 13}}))
        for _ in range(3):
            with pytest.raises(InternalError):
                await anext(stream)
