"""`triptych.AsyncClient` against `triptych mock`."""

from __future__ import annotations

import asyncio
import gc
import math

import pytest
from support.mock import Mock, mock_server, script
from triptych import AsyncClient, TriptychError, chat_request
from triptych.errors import (
    Code,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    RequestAbortedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2

FOREVER = script(numTokens=2, fault={"afterTokens": 1, "stall": True})


async def test_a_chat_has_one_answer() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        response = await client.chat("one two three", max_tokens=2, n=2, request_id="a")
    assert response.request_id == "a"
    assert [choice.text for choice in response.choices] == ["one two", "one two"]
    assert response.choices[0].finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_pictures_stand_before_the_text() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        response = await client.chat("what?", images=[b"\x89PNG\r\n\x1a\n 1", b"\x89PNG\r\n\x1a\n 2"])
    assert [report.modality for report in response.media] == [common_pb2.MODALITY_IMAGE] * 2


async def test_a_stream_is_read_response_by_response_and_merged() -> None:
    text = script(text="one two", reasoning="let me see", toolCalls=[{"name": "add", "arguments": '{"a": 1, "b": 2}'}])
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        async with client.chat_stream(text, return_token_ids=True, logprobs=1) as stream:
            responses = [response async for response in stream]
        whole = await client.chat(text, return_token_ids=True, logprobs=1, request_id=stream.request_id)
    assert len(responses) > 5
    for response in (whole, stream.response):
        response.ClearField("timings")
    assert stream.response.HasField("timings")
    assert stream.response.choices == whole.choices
    assert stream.response.usage == whole.usage
    assert stream.response.request_id == whole.request_id


async def test_text_is_streamed_choice_by_choice() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        stream = client.chat_stream(script(text="one two", reasoning="hm"), n=2)
        assert [text async for text in stream.text_deltas(1)] == ["one", " two"]


async def test_completions_are_answered_and_streamed() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        whole = await client.complete("one two", echo=True, stop="zzz")
        async with client.complete_stream("one two", echo=True) as stream:
            assert [text async for text in stream.text_deltas()] == ["one two", "one", " two"]
        assert stream.response.choices == whole.choices


async def test_the_other_calls_are_answered() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        assert [len(e.values) for e in (await client.embed(["a b", "c"], dimensions=4)).embeddings] == [4, 4]
        scores = (await client.score("a", ["a", "b a", "c"])).scores
        ranks = await client.rerank("a", ["a", "b a", "c"], top_n=2)
        assert [rank.score for rank in ranks] == sorted(scores, reverse=True)[:2]
        assert all(scores[rank.index] == rank.score and rank.document == ["a", "b a", "c"][rank.index] for rank in ranks)
        assert len((await client.classify("a")).classifications) == 1
        tokens = await client.tokenize("one two", add_special_tokens=False)
        assert (await client.detokenize(tokens.token_ids)).text == "one two"
        assert (await client.preprocess("one two")).token_ids
        assert (await client.preprocess(generation_pb2.CompleteRequest(text="one two"))).prompt == "one two"
        assert [model.name for model in (await client.list_models()).models] == ["mock"]
        assert (await client.describe()).instance.id


async def test_finished_requests_are_sent_as_they_are() -> None:
    request = chat_request("one two three", max_tokens=1)
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        assert (await client.chat(request)).choices[0].text == "one"
        final = generation_pb2.ChatStreamRequest(chat=request, output_mode=generation_pb2.OUTPUT_MODE_FINAL)
        assert len([response async for response in client.chat_stream(final)]) == 1
        ids = (await client.tokenize(preprocess_pb2.TokenizeRequest(text="one"))).token_ids
        assert (await client.complete(generation_pb2.CompleteRequest(token_ids=generation_pb2.TokenIds(ids=ids)))).choices
        with pytest.raises(TypeError, match="'temperature'"):
            await client.chat(request, temperature=0)


async def test_an_unknown_keyword_is_named() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="'temprature'"):
            await client.chat("hello", temprature=0)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="'limit'"):
            await client.list_models(limit=3)  # type: ignore[call-arg]


async def test_an_error_says_what_the_service_said() -> None:
    full = {
        "error": {
            "reason": "QUEUE_FULL",
            "code": 8,
            "message": "full",
            "field": "f",
            "limit": "1",
            "value": "2",
            "retryAfterS": 62.5,
        }
    }
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        with pytest.raises(QueueFullError, match="full") as caught:
            await client.chat(script(fault=full), request_id="a")
        assert len(await mock.calls("a")) == 1, "a queue that is full for long is not asked again"
        with pytest.raises(ModelNotFoundError) as other:
            await client.chat("hello", model="another")
        with pytest.raises(ModelNotFoundError) as replaced:
            await client.chat("hello", model="another", request_id="not an id")
    error = caught.value
    assert (error.code, error.reason, error.field, error.limit, error.value) == (
        Code.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        "f",
        "1",
        "2",
    )
    assert (error.retry_after_s, error.request_id, error.has_details) == (62.5, "a", True)
    assert error.__cause__ is not None
    assert len(other.value.request_id) == len(replaced.value.request_id) == 32


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(3, InvalidRequestError, Code.INVALID_ARGUMENT), (11, TriptychError, Code.OUT_OF_RANGE), (15, TriptychError, Code.DATA_LOSS)],
)
async def test_without_details_the_class_goes_by_the_code(number: int, kind: type[TriptychError], code: Code) -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        with pytest.raises(kind) as caught:
            await client.chat(script(fault={"bareCode": number}))
    assert (caught.value.code, caught.value.reason, caught.value.has_details) == (code, "", False)


async def test_an_error_in_a_stream_keeps_what_came() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        stream = client.chat_stream(script(numTokens=5, fault={"afterTokens": 2, "error": {"code": 13, "message": "oops"}}))
        with pytest.raises(TriptychError, match="oops"):
            async for _ in stream:
                pass
    assert stream.response.choices[0].text == "word1 word2"


async def test_a_stream_that_is_left_is_cancelled_on_the_server() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        async with client.chat_stream(FOREVER, request_id="left") as stream:
            async for _ in stream:
                break
        await mock.state("left", mock_pb2.SeenCall.STATE_CANCELLED)
        assert [response async for response in stream] == []

        async for _ in client.chat_stream(FOREVER, request_id="dropped"):
            break
        gc.collect()
        await mock.state("dropped", mock_pb2.SeenCall.STATE_CANCELLED)

        async for _ in client.chat_stream(FOREVER, request_id="text").text_deltas():
            break
        gc.collect()
        await mock.state("text", mock_pb2.SeenCall.STATE_CANCELLED)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_cancelling_the_task_cancels_the_call(is_stream: bool) -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:

        async def read() -> None:
            async for _ in client.chat_stream(FOREVER, request_id="a"):
                pass

        task = asyncio.ensure_future(read() if is_stream else client.chat(FOREVER, request_id="a"))
        await mock.state("a", mock_pb2.SeenCall.STATE_RUNNING)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await mock.state("a", mock_pb2.SeenCall.STATE_CANCELLED)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_closing_the_client_aborts_its_calls(is_stream: bool) -> None:
    async with mock_server() as mock:
        client = AsyncClient(mock.address)

        async def read() -> None:
            async for _ in client.chat_stream(FOREVER, request_id="a"):
                pass

        task = asyncio.ensure_future(read() if is_stream else client.chat(FOREVER, request_id="a"))
        await mock.state("a", mock_pb2.SeenCall.STATE_RUNNING)
        await client.close()
        with pytest.raises(RequestAbortedError) as caught:
            await task
        assert caught.value.request_id == "a"
        with pytest.raises(RuntimeError, match="closed"):
            await client.chat("hello")


async def test_a_deadline_is_the_calls_or_the_clients() -> None:
    async with mock_server() as mock, AsyncClient(mock.address, timeout_s=0.3) as client:
        with pytest.raises(DeadlineExceededError):
            await client.chat(FOREVER)
        with pytest.raises(DeadlineExceededError):
            async for _ in client.chat_stream(FOREVER):
                pass
        await client.chat("hello", timeout_s=20, request_id="own")
        await client.chat("hello", timeout_s=math.inf, request_id="none")
        assert 15 < (await mock.calls("own"))[0].timeout_s < 21  # gRPC rounds up
        assert not (await mock.calls("none"))[0].HasField("timeout_s")


async def test_key_and_metadata_are_sent() -> None:
    async with mock_server(api_key="secret") as mock:
        async with AsyncClient(mock.address) as client:
            with pytest.raises(UnauthenticatedError):
                await client.chat("hello")
        async with AsyncClient(mock.address, api_key="secret") as client:
            await client.chat("hello", request_id="a", metadata={"x-other": "yes"})
            seen = await _calls(mock, "a", "secret")
    assert seen[0].metadata["x-other"] == "yes"


async def _calls(mock: Mock, request_id: str, api_key: str) -> list[mock_pb2.SeenCall]:
    from triptych import aconnect
    from triptych.mock.v1 import mock_pb2_grpc

    async with aconnect(mock.address, api_key=api_key) as channel:
        return list((await mock_pb2_grpc.MockServiceStub(channel).GetCalls(mock_pb2.GetCallsRequest(request_id=request_id))).calls)


async def test_a_large_picture_arrives_and_a_too_large_one_is_refused_here() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        await client.chat("what?", images=[bytes(30 << 20)], request_id="a")
        assert (await mock.calls("a"))[0].media_bytes == 30 << 20
        with pytest.raises(InvalidRequestError, match="67108864"):
            await client.chat("what?", images=[bytes(64 << 20)], request_id="b")
        assert not await mock.calls("b")


async def test_a_reader_that_pauses_makes_the_server_wait() -> None:
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        async with client.chat_stream(script(numTokens=128, tokenBytes=1 << 18), request_id="slow") as stream:
            await anext(stream)
            await asyncio.sleep(0.6)
            (waiting,) = await mock.calls("slow")
            async for _ in stream:
                pass
        (seen,) = await mock.calls("slow")
    assert seen.longest_send_s > 0.3
    # 256 KiB each: 1 MiB for the client, and what both ends buffer.
    assert waiting.num_responses < 16


async def test_nobody_there_is_service_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ServiceUnavailableError) as caught:
            await client.chat("hello")
    assert not caught.value.has_details


async def test_a_client_can_be_made_before_there_is_a_loop() -> None:
    client = await asyncio.to_thread(AsyncClient, "127.0.0.1:1")
    with pytest.raises(ServiceUnavailableError):
        await client.list_models()
    await client.close()
    await client.close()
