"""The mock server over real gRPC: each call of the contracts, scripts, faults, and what it saw."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.mock import mock_server, script
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych.mock.v1 import mock_pb2, mock_pb2_grpc
from triptych.status import from_rpc_error
from triptych.v1 import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    detokenize_pb2,
    detokenize_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)

STOP = common_pb2.FINISH_REASON_STOP
SessionRequest = generation_pb2.GenerationServiceSessionRequest
UploadRequest = generation_pb2.UploadMediaRequest


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    async with mock_server() as mock, grpc.aio.insecure_channel(mock.address) as channel:
        yield channel


def chat(text: str, **options: object) -> generation_pb2.ChatRequest:
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text=text)])
    return generation_pb2.ChatRequest(messages=[message], **options)


async def seen(channel: grpc.aio.Channel, request_id: str) -> list[mock_pb2.SeenCall]:
    response = await mock_pb2_grpc.MockServiceStub(channel).GetCalls(mock_pb2.GetCallsRequest(request_id=request_id))
    return list(response.calls)


async def test_session_carries_calls(channel: grpc.aio.Channel):
    """As the gateway makes them: two calls at once, one is cancelled, one fails."""
    full = script(fault={"error": {"code": 8, "reason": "QUEUE_FULL"}})
    texts = ["a b", script(fault={"stall": True}), full]
    calls = [
        generation_pb2.GenerationCall(number=number, request_id=f"s{number}", chat=chat(text))
        for number, text in enumerate(texts, 1)
    ]
    stream = generation_pb2_grpc.GenerationServiceStub(channel).Session()
    await stream.write(SessionRequest(start=calls))
    text, ended = "", set()
    assert (await stream.read()).instance.service == "mock"
    while len(ended) < 2:
        for response in (await stream.read()).responses:
            text += "".join(choice.text for choice in response.choices)
            if response.HasField("usage") or response.HasField("error"):
                ended.add((response.number, response.error.reason))
    assert (text, ended) == ("a b", {(1, ""), (3, "QUEUE_FULL")})
    await stream.write(SessionRequest(cancel=[2]))
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert [call.state for call in await seen(channel, "s2")] == [mock_pb2.SeenCall.STATE_CANCELLED]


async def test_upload(channel: grpc.aio.Channel):
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    pieces = [
        UploadRequest(header=generation_pb2.UploadMediaHeader(num_bytes=6)),
        UploadRequest(data=b"abc"),
        UploadRequest(data=b"def"),
    ]
    upload_id = (await stub.UploadMedia(iter(pieces))).upload_id
    request = chat("What?")
    request.messages[0].content.add().media.upload_id = upload_id
    request.messages[0].content.add().text = "What?"
    assert (await stub.Chat(request)).media[0].num_tokens == 4
    with pytest.raises(grpc.aio.AioRpcError, match="upload the file again"):
        await stub.Chat(request)
    with pytest.raises(grpc.aio.AioRpcError, match="6 bytes; 3 came"):
        await stub.UploadMedia(iter(pieces[:2]))


async def test_stages(channel: grpc.aio.Channel):
    tokens = await preprocess_pb2_grpc.PreprocessServiceStub(channel).Tokenize(preprocess_pb2.TokenizeRequest(text="One two"))
    stub = detokenize_pb2_grpc.DetokenizeServiceStub(channel)
    assert (await stub.Detokenize(detokenize_pb2.DetokenizeRequest(token_ids=tokens.token_ids))).text == "One two"
    requests = [detokenize_pb2.DetokenizeStreamRequest(token_ids=[byte]) for byte in "é!".encode()]
    texts = [response.text async for response in stub.DetokenizeStream(iter(requests))]
    assert texts == ["", "é", "!", ""]
    with pytest.raises(grpc.aio.AioRpcError, match="no token the id 99999"):
        await stub.Detokenize(detokenize_pb2.DetokenizeRequest(token_ids=[99999]))


async def test_encoder(channel: grpc.aio.Channel):
    stub = encoder_pb2_grpc.EncoderServiceStub(channel)
    watch = stub.WatchEvictions(encoder_pb2.WatchEvictionsRequest())
    await watch.initial_metadata()
    unknown = await stub.Encode(encoder_pb2.EncodeRequest(items=[encoder_pb2.EncodeItem(key=b"k")]))
    assert unknown.results[0].error.reason == "MEDIA_NOT_FOUND"
    items = [encoder_pb2.EncodeItem(key=b"k", data=b"file")]
    tiers = [(await stub.Encode(encoder_pb2.EncodeRequest(items=items))).results[0].tier for _ in range(2)]
    assert tiers == [encoder_pb2.CACHE_TIER_MISS, encoder_pb2.CACHE_TIER_LOCAL]
    (chunk, missing) = [response async for response in stub.Fetch(encoder_pb2.FetchRequest(keys=[b"k", b"other"]))]
    assert (list(chunk.header.shape), len(chunk.data), chunk.last_chunk_of_item) == ([4, 8], 128, True)
    assert missing.error.reason == "EMBEDDING_UNAVAILABLE"
    assert (await stub.Evict(encoder_pb2.EvictRequest(keys=[b"k"]))).num_evicted == 1
    assert list((await watch.read()).keys) == [b"k"]
    watch.cancel()
    stats = await stub.GetStats(encoder_pb2.GetStatsRequest())
    assert (stats.num_misses, stats.num_local_hits, stats.num_failed, stats.num_entries) == (1, 1, 1, 0)


async def token_ids(channel: grpc.aio.Channel, text: str) -> list[int]:
    stub = preprocess_pb2_grpc.PreprocessServiceStub(channel)
    return list((await stub.Tokenize(preprocess_pb2.TokenizeRequest(text=text))).token_ids)


async def test_engine(channel: grpc.aio.Channel):
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    request = engine_pb2.EngineRequest(request_id="a", prompt_token_ids=await token_ids(channel, "One two"), n=2)
    outputs = [response.output async for response in stub.Generate(engine_pb2.GenerateRequest(request=request))]
    assert [(output.index, output.finish_reason) for output in outputs] == [(0, 0), (1, 0), (0, STOP), (1, STOP)]
    load = (await stub.Describe(engine_pb2.EngineServiceDescribeRequest())).load
    assert (load.num_running, load.num_generated_tokens) == (0, 2)


async def test_engine_session(channel: grpc.aio.Channel):
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    slow = await token_ids(channel, script(numTokens=3, tokenS=60))
    session = stub.Session()
    assert (await session.read()).model.name == "mock"
    good = engine_pb2.EngineRequest(request_id="good", prompt_token_ids=await token_ids(channel, "One"))
    bad = engine_pb2.EngineRequest(request_id="bad")
    long = engine_pb2.EngineRequest(request_id="long", prompt_token_ids=slow)
    await session.write(engine_pb2.SessionRequest(add=[good, bad, long]))
    outputs: list[engine_pb2.SequenceOutput] = []
    while len(outputs) < 3:
        outputs += (await session.read()).outputs
    await session.write(engine_pb2.SessionRequest(abort=["long"]))
    outputs += (await session.read()).outputs
    reasons = {output.request_id: output.finish_reason for output in outputs}
    assert reasons == {"good": STOP, "bad": common_pb2.FINISH_REASON_ERROR, "long": common_pb2.FINISH_REASON_ABORT}
    await session.done_writing()
    assert await session.read() is grpc.aio.EOF


async def test_leaving_ends_the_engines_work(channel: grpc.aio.Channel):
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    slow = await token_ids(channel, script(numTokens=3, tokenS=60))
    request = engine_pb2.EngineRequest(request_id="long", prompt_token_ids=slow)
    call = stub.Generate(engine_pb2.GenerateRequest(request=request))
    await call.read()
    loads = stub.WatchLoad(engine_pb2.WatchLoadRequest(interval_s=0.01))
    assert (await loads.read()).load.num_running == 1
    call.cancel()
    assert (await loads.read()).load.num_running == 0
    loads.cancel()


async def test_scripts_are_checked(channel: grpc.aio.Channel):
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    for text, field in ((script(nonsense=1), "mock"), (script(tokenBytes=1 << 30), "token_bytes"), ('{"mock": 7}', "mock")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Chat(chat(text))
        error = from_rpc_error(caught.value)
        assert (type(error), error.field) == (InvalidRequestError, field)
    # A text that only looks like one is a text.
    for text in ('{"mock": {}, "more": 1}', '{"mock"', "[1]"):
        assert (await stub.Chat(chat(text))).choices[0].text == text


async def test_health_and_control():
    async with mock_server() as mock:
        async with grpc.aio.insecure_channel(mock.address) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mock.server.server.control_port}") as channel:
            info = await control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(control_pb2.GetServerInfoRequest())
            assert info.instance.service == "mock"


async def test_the_key_is_not_told():
    async with (
        mock_server(api_key="secret-key") as mock,
        grpc.aio.insecure_channel(f"127.0.0.1:{mock.server.server.control_port}") as channel,
    ):
        info = await control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(control_pb2.GetServerInfoRequest())
        assert "secret-key" not in str(info)


async def test_address_file(tmp_path: Path):
    async with mock_server(address_file=tmp_path / "address") as mock:
        assert (tmp_path / "address").read_text() == mock.address


async def test_a_drain_waits_for_calls():
    async with mock_server() as mock, grpc.aio.insecure_channel(mock.address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Chat(chat(script(fault={"stall": True})))
        await until(lambda: mock.server.num_live_requests == 1)
        assert not await mock.server.drain(0.05)
        call.cancel()
        assert await mock.server.drain(5)
