"""`triptych.Client` against `triptych mock`. The server runs in the event loop, the client in a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.mock import mock_server, script
from triptych import Client
from triptych.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    RequestAbortedError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2

FOREVER = script(numTokens=2, fault={"afterTokens": 1, "stall": True})


async def test_all_calls_are_answered() -> None:
    async with mock_server() as mock:

        def talk() -> None:
            with Client(mock.address) as client:
                response = client.chat("one two three", images=[b"\x89PNG\r\n\x1a\n 1"], max_tokens=2, request_id="a")
                assert (response.request_id, response.choices[0].text) == ("a", "one two")
                assert response.media[0].modality == common_pb2.MODALITY_IMAGE
                assert client.complete("one two").choices[0].text == "one two"
                assert list(client.complete_stream("one two").text_deltas()) == ["one", " two"]
                assert len(client.embed("a").embeddings) == 1
                assert len(client.score("a", ["a", "b"]).scores) == 2
                assert {rank.document for rank in client.rerank("a", ["a", "b"])} == {"a", "b"}
                assert len(client.classify(["a", "b"]).classifications) == 2
                assert client.detokenize(client.tokenize("one two").token_ids).text == "one two"
                assert client.preprocess("one two").token_ids
                assert client.list_models().models[0].name == "mock"
                assert client.describe().models[0].name == "mock"
                with pytest.raises(TypeError, match="'temprature'"):
                    client.chat("hello", temprature=0)  # type: ignore[call-arg]

        await asyncio.to_thread(talk)


async def test_a_stream_is_merged_and_reports_its_media() -> None:
    async with mock_server() as mock:

        def talk() -> None:
            with Client(mock.address) as client:
                with client.chat_stream(script(text="one two"), images=[b"\x89PNG\r\n\x1a\n 1"]) as stream:
                    next(stream)
                    assert stream.trailing_media() == []
                    assert stream.response.choices[0].text == "one"
                    assert list(stream.text_deltas()) == [" two"]
                whole = client.chat(script(text="one two"), images=[b"\x89PNG\r\n\x1a\n 1"])
                assert stream.response.choices == whole.choices
                assert stream.trailing_media() == list(stream.response.media) != []

        await asyncio.to_thread(talk)


async def test_errors_are_those_of_the_service() -> None:
    full = {"error": {"reason": "QUEUE_FULL", "code": 8, "message": "full", "retryAfterS": 2.5}}
    async with mock_server() as mock:

        def talk() -> None:
            with Client(mock.address, timeout_s=20) as client:
                with pytest.raises(QueueFullError) as caught:
                    client.chat(script(fault=full), request_id="a")
                assert (caught.value.retry_after_s, caught.value.request_id) == (2.5, "a")
                stream = client.chat_stream(script(numTokens=5, fault={"afterTokens": 2, "bareCode": 3}))
                with pytest.raises(InvalidRequestError) as bare:
                    list(stream)
                assert not bare.value.has_details
                assert stream.response.choices[0].text == "word1 word2"
                with pytest.raises(DeadlineExceededError):
                    client.chat(FOREVER, timeout_s=0.2)
                with pytest.raises(DeadlineExceededError):
                    list(client.chat_stream(FOREVER, timeout_s=0.2))
                with pytest.raises(InvalidRequestError, match="67108864"):
                    client.chat("what?", images=[bytes(64 << 20)])

        await asyncio.to_thread(talk)


async def test_a_stream_that_is_left_is_cancelled_on_the_server() -> None:
    async with mock_server() as mock:
        with await asyncio.to_thread(Client, mock.address) as client:

            def leave() -> None:
                with client.chat_stream(FOREVER, request_id="left") as stream:
                    next(stream)
                assert list(stream) == []

            def drop() -> None:
                for _ in client.chat_stream(FOREVER, request_id="dropped"):
                    break
                for _ in client.chat_stream(FOREVER, request_id="text").text_deltas():
                    break
                gc.collect()

            await asyncio.to_thread(leave)
            await asyncio.to_thread(drop)
            for request_id in ("left", "dropped", "text"):
                await mock.state(request_id, mock_pb2.SeenCall.STATE_CANCELLED)


async def test_another_thread_can_close_a_stream_that_is_waited_for() -> None:
    async with mock_server() as mock:
        with await asyncio.to_thread(Client, mock.address) as client:
            stream = client.chat_stream(FOREVER)
            await asyncio.to_thread(next, stream)
            rest = asyncio.create_task(asyncio.to_thread(list, stream))
            await asyncio.sleep(0.05)
            stream.close()
            assert await rest == []


async def test_closing_the_client_aborts_its_calls() -> None:
    async with mock_server() as mock:
        client = Client(mock.address)
        answer = asyncio.create_task(asyncio.to_thread(client.chat, FOREVER, request_id="a"))
        await mock.state("a", mock_pb2.SeenCall.STATE_RUNNING)
        client.close()
        with pytest.raises(RequestAbortedError):
            await answer
        with pytest.raises(RuntimeError, match="closed"):
            client.chat("hello")


async def test_threads_share_a_client() -> None:
    async with mock_server() as mock:

        def talk() -> None:
            barrier = threading.Barrier(8)

            def ask(number: int) -> list[str]:
                barrier.wait()
                return ["".join(client.chat_stream(f"text {number} {i}").text_deltas()) for i in range(20)]

            with Client(mock.address) as client, ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, range(8)))
            assert answers == [[f"text {number} {i}" for i in range(20)] for number in range(8)]

        await asyncio.to_thread(talk)


def test_nobody_there_is_service_unavailable() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(ServiceUnavailableError):
            client.chat("hello")
        with pytest.raises(TriptychError):
            list(client.chat_stream("hello"))
