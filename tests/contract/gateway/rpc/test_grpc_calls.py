"""Calls through the gateway's gRPC port: they reach a frontend as they are, and its answers come back as they are."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.drivers.grpc_port import GrpcPort, chat, grpc_port_of, opened
from support.fakes.frontend import MODEL, STOP, Delta, FakeFrontend, Script, fails, says
from support.waiting import until
from triptych.errors import ContextLengthError, InternalError, QueueFullError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_gateway.rpc import interceptor

PICTURE = common_pb2.MODALITY_IMAGE
REPORT = generation_pb2.MediaReport(key=b"key", num_tokens=4)


def chat_with_file(data: bytes) -> generation_pb2.ChatRequest:
    request = chat()
    request.messages[0].content.add(media=common_pb2.MediaItem(modality=PICTURE, data=data))
    return request


async def error_of(call: object) -> tuple[TriptychError, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return from_rpc_error(raised.value), raised.value


async def test_an_answer_comes_whole_and_in_pieces() -> None:
    frontend = FakeFrontend()
    frontend.script = says("Hel", "lo", media=[REPORT], timings=common_pb2.Timings(queue_s=0.5))
    async with grpc_port_of(frontend) as port:
        call = port.generation.Chat(chat(), metadata=(("x-request-id", "mine"),))
        whole = await call
        assert frontend.output_modes == [generation_pb2.OUTPUT_MODE_FINAL]
        assert (whole.request_id, whole.model, whole.choices[0].text) == ("mine", MODEL.name, "Hello")
        assert (whole.choices[0].finish_reason, whole.usage.completion_tokens, whole.timings.queue_s) == (STOP, 3, 0.5)
        trailers = dict(await call.trailing_metadata())
        assert trailers["triptych-media-bin"] == REPORT.SerializeToString()

        pieces = [piece async for piece in port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()))]
        assert [piece.choices[0].text for piece in pieces] == ["Hel", "lo"]
        assert [piece.HasField("usage") for piece in pieces] == [False, True]
        assert {piece.request_id for piece in pieces} == {frontend.request_ids[-1]}

        prompt = generation_pb2.CompleteRequest(model=MODEL.name, text="Once")
        assert (await port.generation.Complete(prompt)).choices[0].text == "Hello"
        stream = port.generation.CompleteStream(generation_pb2.CompleteStreamRequest(complete=prompt))
        assert "".join([piece.choices[0].text async for piece in stream]) == "Hello"
        assert frontend.request == prompt


async def test_several_choices_keep_their_order() -> None:
    frontend = FakeFrontend()
    frontend.script = Script([[Delta(index=index, text=text, finish_reason=STOP)] for index, text in enumerate("ab")])
    async with grpc_port_of(frontend) as port:
        whole = await port.generation.Chat(chat(options=generation_pb2.GenerationOptions(n=2)))
    assert [(choice.index, choice.text) for choice in whole.choices] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("num_bytes", [1000, 1 << 20], ids=["small", "large"])
async def test_files_travel_with_the_call_or_before_it(num_bytes: int) -> None:
    frontend, data = FakeFrontend(), secrets.token_bytes(num_bytes)
    async with grpc_port_of(frontend) as port:
        await port.generation.Chat(chat_with_file(data))
        item = frontend.request.messages[0].content[1].media
        assert (frontend.uploads[item.upload_id] if item.upload_id else item.data) == data or _content(frontend, item) == data
        assert bool(item.upload_id) == (num_bytes > 256 << 10)
        assert port.gateway.bodies.used_bytes == 0


def _content(frontend: FakeFrontend, item: common_pb2.MediaItem) -> bytes:
    return frontend.uploads.get(item.upload_id, b"")


async def test_an_uploaded_file_is_used_once_by_the_call_that_names_it() -> None:
    frontend, data = FakeFrontend(), secrets.token_bytes(3 << 20)

    async def pieces() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=len(data)))
        for start in range(0, len(data), 1 << 20):
            yield generation_pb2.UploadMediaRequest(data=data[start : start + (1 << 20)])

    async with grpc_port_of(frontend) as port:
        uploaded = await port.generation.UploadMedia(pieces())
        assert port.gateway.bodies.used_bytes >= len(data)
        request = chat()
        request.messages[0].content.add(media=common_pb2.MediaItem(modality=PICTURE, upload_id=uploaded.upload_id))
        await port.generation.Chat(request)
        assert _content(frontend, frontend.request.messages[0].content[1].media) == data
        error, _ = await error_of(port.generation.Chat(request))
        assert error.field == "messages[0].content[1].media.upload_id"
        assert port.gateway.bodies.used_bytes == 0


async def test_other_stages_and_models() -> None:
    frontend = FakeFrontend()
    async with grpc_port_of(frontend) as port:
        assert list((await port.preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text="a"))).token_ids) == [0, 97]
        assert (await port.detokenize.Detokenize(detokenize_pb2.DetokenizeRequest(token_ids=[97]))).text == "a"
        prompt = await port.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat("one")))
        assert prompt.prompt == "one"
        embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput(text="a")])
        embedded = await port.generation.Embed(embed)
        assert list(embedded.packed_vectors) == [1]
        score = generation_pb2.ScoreRequest(queries=embed.inputs, documents=embed.inputs)
        assert list((await port.generation.Score(score)).scores) == [1]
        classify = generation_pb2.ClassifyRequest(inputs=embed.inputs)
        assert (await port.generation.Classify(classify)).labels == ["no", "yes"]
        assert (await port.generation.ListModels(generation_pb2.ListModelsRequest())).models == [MODEL]
        described = await port.generation.Describe(generation_pb2.GenerationServiceDescribeRequest())
        assert (described.instance.service, described.models) == ("gateway", [MODEL])
        load = await port.generation.GetLoad(generation_pb2.GetLoadRequest())
        assert load.instance.service == "gateway"
        for method in (preprocess_pb2.TokenizeRequest(model="x"), detokenize_pb2.DetokenizeRequest(model="x")):
            stub = port.preprocess.Tokenize if isinstance(method, preprocess_pb2.TokenizeRequest) else port.detokenize.Detokenize
            error, _ = await error_of(stub(method))
            assert error.reason == "MODEL_NOT_FOUND"


async def test_growing_tokens_become_text() -> None:
    async def requests() -> AsyncIterator[detokenize_pb2.DetokenizeStreamRequest]:
        for token in b"ab":
            yield detokenize_pb2.DetokenizeStreamRequest(token_ids=[token])

    async with grpc_port_of(FakeFrontend()) as port:
        texts = [response.text async for response in port.detokenize.DetokenizeStream(requests())]
    assert texts == ["a", "b", "end"]


async def test_a_fault_in_the_midst_of_growing_tokens_is_the_clients() -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield detokenize_pb2.DetokenizeStreamRequest(token_ids=[97]).SerializeToString()
        yield b"\xff\xff"

    async with grpc_port_of(FakeFrontend()) as port:
        stream = port.channel.stream_stream("/triptych.v1.DetokenizeService/DetokenizeStream")(requests())
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT

        async def nothing() -> AsyncIterator[detokenize_pb2.DetokenizeStreamRequest]:
            for never in ():
                yield never

        assert [response.text async for response in port.detokenize.DetokenizeStream(nothing())] == [""]


async def test_a_client_that_does_not_read_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "READ_TIMEOUT_S", 0.3)
    frontend = FakeFrontend()
    frontend.script = says(*["x" * 10_000] * 2000)
    async with grpc_port_of(frontend) as port:
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()))
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 1)
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 0)
        stream.cancel()


async def test_errors_keep_their_details() -> None:
    frontend = FakeFrontend()
    async with grpc_port_of(frontend) as port:
        frontend.script = fails(ContextLengthError("too long", field="messages", limit=10, value=20))
        error, rpc = await error_of(port.generation.Chat(chat(), metadata=(("x-request-id", "mine"),)))
        assert isinstance(error, ContextLengthError)
        assert (error.message, error.field, error.limit, error.value) == ("too long", "messages", "10", "20")
        assert b"mine" in dict(rpc.trailing_metadata())["grpc-status-details-bin"]

        frontend.script = fails(QueueFullError("full", retry_after_s=2.0), after=1)
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()))
        assert (await stream.read()).choices[0].text == "a"
        error, rpc = await error_of(stream.read())
        assert (error.retry_after_s, dict(rpc.trailing_metadata())["grpc-retry-pushback-ms"]) == (2.0, "2000")


async def test_an_unexpected_error_does_not_tell_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails_inside(*_: object) -> None:
        raise RuntimeError("a secret")

    async with grpc_port_of(FakeFrontend()) as port:
        monkeypatch.setattr(port.gateway.frontend, "call", fails_inside)
        error, _ = await error_of(port.preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text="a")))
        assert type(error) is InternalError
        assert "secret" not in error.message


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_client_that_leaves_ends_the_work(how: str) -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with grpc_port_of(frontend) as port:
        request = generation_pb2.ChatStreamRequest(chat=chat())
        stream = port.generation.ChatStream(request, timeout=0.5 if how == "deadline" else None)
        assert (await stream.read()).choices[0].text == "a"
        if how == "cancel":
            stream.cancel()
        await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
        await until(lambda: aborted(port) == 1)
        assert port.gateway.metrics.in_flight._value.get() == 0


def aborted(port: GrpcPort) -> float:
    metrics = port.gateway.metrics
    return metrics.aborted.labels("/triptych.v1.GenerationService/ChatStream")._value.get()


async def test_calls_in_flight_end_with_a_reason_when_the_gateway_stops() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with grpc_port_of(frontend) as port:
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()))
        assert (await stream.read()).choices[0].text == "a"
        port.gateway.stop_requests()
        error, _ = await error_of(stream.read())
        assert (error.reason, error.message) == ("SERVICE_UNAVAILABLE", "the gateway is stopping; try again")


async def test_health_follows_the_frontends() -> None:
    async with opened(frontend_addresses=("127.0.0.1:1",)) as port:
        health = health_pb2_grpc.HealthStub(port.channel)
        states = []
        for name in ("liveness", "readiness"):
            states.append((await health.Check(health_pb2.HealthCheckRequest(service=name))).status)
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    async with grpc_port_of(FakeFrontend()) as port:
        health = health_pb2_grpc.HealthStub(port.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()


async def test_session_is_for_gateways() -> None:
    async with grpc_port_of(FakeFrontend()) as port:
        session = port.generation.Session()
        error, _ = await error_of(session.read())
    assert error.reason == "UNIMPLEMENTED"
    assert "ChatStream" in error.message
