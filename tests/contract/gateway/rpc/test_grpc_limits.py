"""What a key permits at the gateway's gRPC port: rates, tokens, uploads and calls at once, as over REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from support.drivers.grpc_port import chat, grpc_port_of, refusal, with_key
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.keys import KeyStore
from support.waiting import until
from triptych.errors import QueueFullError, ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2


async def test_nobody_uses_anothers_upload(keys: KeyStore) -> None:
    async def pieces() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        # The tenant that it claims does not count.
        header = generation_pb2.UploadMediaHeader(num_bytes=3, context=common_pb2.CallContext(tenant="b"))
        yield generation_pb2.UploadMediaRequest(header=header)
        yield generation_pb2.UploadMediaRequest(data=b"abc")

    frontend = FakeFrontend()
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        uploaded = await port.generation.UploadMedia(pieces(), metadata=with_key(keys, "a"))
        request = chat()
        request.messages[0].content.add(
            media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=uploaded.upload_id)
        )
        prompt = preprocess_pb2.PreprocessRequest(chat=request)
        for call in (
            port.generation.Chat(request, metadata=with_key(keys, "b")),
            port.preprocess.Preprocess(prompt, metadata=with_key(keys, "b")),
        ):
            await refusal(call)
        error = await refusal(port.generation.Chat(request, metadata=with_key(keys, "b")))
        assert error.field == "messages[0].content[0].media.upload_id" or "upload_id" in error.field
        assert not frontend.requests
        await port.generation.Chat(request, metadata=with_key(keys, "a"))
        assert frontend.request.messages[0].content[1].media.data == b"abc"


async def test_rates_are_told_and_kept(keys: KeyStore) -> None:
    keys.add("slow", requests_per_minute=1, tokens_per_minute=10_000)
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        metadata = with_key(keys, "slow")
        call = port.generation.Chat(chat(), metadata=metadata)
        await call
        trailers = dict(await call.trailing_metadata())
        assert trailers["x-ratelimit-limit-requests"] == "1"
        assert trailers["x-ratelimit-limit-tokens"] == "10000"
        again = port.generation.Chat(chat(), metadata=metadata)
        error = await refusal(again)
        assert dict(await again.trailing_metadata())["x-ratelimit-remaining-requests"] == "0"
        assert isinstance(error, QueueFullError)
        assert error.message.startswith("Rate limit reached for requests per minute: limit 1")
        assert error.retry_after_s is not None
        assert 50 < error.retry_after_s <= 61


async def test_tokens_are_counted_whether_the_answer_is_whole_or_not(keys: KeyStore) -> None:
    keys.add("few", tokens_per_minute=30)
    frontend = FakeFrontend()
    frontend.script = says("a", "b", usage=common_pb2.Usage(prompt_tokens=20, completion_tokens=10))
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=5))
        await port.generation.Chat(chat(options=options), metadata=with_key(keys, "few"))
        error = await refusal(port.generation.Chat(chat(options=options), metadata=with_key(keys, "few")))
        assert "tokens per minute" in error.message


async def test_what_a_client_that_left_had_reserved_is_used(keys: KeyStore) -> None:
    keys.add("few", tokens_per_minute=1000)
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(0))
    frontend.pooling_gate = asyncio.Event()
    options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=400))
    embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput(text="x" * 1600)])
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        metadata = with_key(keys, "few")
        calls = [
            port.generation.Chat(chat(options=options), metadata=metadata),
            port.generation.Embed(embed, metadata=metadata),
        ]
        await until(lambda: bool(frontend.requests and frontend.pooling_requests))
        for call in calls:
            call.cancel()
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 0)
        error = await refusal(port.generation.Chat(chat(options=options), metadata=metadata))
        assert "tokens per minute" in error.message


async def test_a_picture_is_no_text_of_the_prompt(keys: KeyStore) -> None:
    keys.add("few", tokens_per_minute=1000)
    request = chat(options=generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=5)))
    request.messages[0].content.add(media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=bytes(100_000)))
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        for _ in range(2):
            await port.generation.Chat(request, metadata=with_key(keys, "few"))


async def test_a_refused_call_does_not_use_its_upload_up(keys: KeyStore) -> None:
    async def pieces() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=3 << 20))
        for _ in range(3):
            yield generation_pb2.UploadMediaRequest(data=bytes(1 << 20))

    frontend = FakeFrontend()
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        metadata = with_key(keys, "a")
        uploaded = await port.generation.UploadMedia(pieces(), metadata=metadata)
        item = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=uploaded.upload_id)
        request = chat()
        request.messages[0].content.add(media=item)
        other = generation_pb2.ChatRequest()
        other.CopyFrom(request)
        other.model = "another/model"
        await refusal(port.generation.Chat(other, metadata=metadata))
        frontend.script = fails(ServiceUnavailableError("no engine"))
        await refusal(port.generation.Chat(request, metadata=metadata))
        frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=request), metadata=metadata)
        await stream.read()
        assert len(frontend.uploads[frontend.request.messages[0].content[1].media.upload_id]) == 3 << 20
        assert port.gateway.bodies.used_bytes == 0
        stream.cancel()
        assert "upload_id" in (await refusal(port.generation.Chat(request, metadata=metadata))).field

        again = await port.generation.UploadMedia(pieces(), metadata=metadata)
        item.upload_id = again.upload_id
        embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput()])
        embed.inputs[0].messages.messages.add(role="user").content.add(media=item)
        frontend.pooling_gate = asyncio.Event()
        call = port.generation.Embed(embed, metadata=metadata)
        await until(lambda: len(frontend.pooling_requests) == 1)
        assert port.gateway.bodies.used_bytes >= 3 << 20, "while it is used"
        frontend.pooling_gate.set()
        await call
        assert port.gateway.bodies.used_bytes == 0


async def test_one_call_at_a_time(keys: KeyStore) -> None:
    keys.add("one", max_concurrent_requests=1, tenant="one")
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        metadata = with_key(keys, "one")
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()), metadata=metadata)
        await stream.read()
        error = await refusal(port.generation.Chat(chat(), metadata=metadata))
        assert "concurrent requests" in error.message
        # A call that sends nothing takes a place as well, and gives it back.
        stream.cancel()
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 0)
        silent = port.channel.stream_stream("/triptych.v1.GenerationService/Chat")(metadata=metadata)
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 1)
        assert "concurrent" in (await refusal(port.generation.Chat(chat(), metadata=metadata))).message
        silent.cancel()
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 0)
        frontend.script = says("Hello")
        assert (await port.generation.Chat(chat(), metadata=metadata)).choices[0].text == "Hello"


async def test_a_priority_is_no_higher_than_the_keys(keys: KeyStore) -> None:
    keys.add("later", priority=5)
    frontend = FakeFrontend()
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        options = generation_pb2.GenerationOptions(priority=-3)
        await port.generation.Chat(chat(options=options), metadata=with_key(keys, "later"))
    assert frontend.request.options.priority == 5
