"""Keys at the gateway's gRPC port: the same as over REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.certificates import authority, issue, write
from support.drivers.door import Door, door_of
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.keys import KeyStore
from support.waiting import until
from triptych.errors import PermissionDeniedError, QueueFullError, ServiceUnavailableError, TriptychError, UnauthenticatedError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2
from triptych_gateway.access import key_ring
from triptych_gateway.errors import AccessDeniedError
from triptych_gateway.record import RequestRecord
from triptych_gateway.rpc.server import _request_classes

METHODS = sorted(_request_classes())


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("a", tenant="a")
    store.add("b", tenant="b")
    store.add("boss", operator=True)
    return store


def with_key(keys: KeyStore, name: str) -> tuple[tuple[str, str], ...]:
    return tuple(keys.headers(name).items())


def chat(**fields: object) -> generation_pb2.ChatRequest:
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text="Hi")])
    return generation_pb2.ChatRequest(model=MODEL.name, messages=[message], **fields)


async def refusal(call: object) -> TriptychError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return from_rpc_error(raised.value)


def test_there_is_a_rule_for_each_method() -> None:
    services = {method.split("/")[1].rsplit(".", 1)[1] for method in METHODS}
    assert services == {"GenerationService", "PreprocessService", "DetokenizeService", "Health", "ServerReflection"}


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer sk-wrong"),),
        (("authorization", "Basic x"),),
        (("authorization-bin", b"Bearer x"),),
    ],
    ids=["none", "wrong", "basic", "binary"],
)
@pytest.mark.parametrize("method", METHODS)
async def test_each_method_needs_a_key(keys: KeyStore, method: str, metadata: tuple) -> None:
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        call = door.channel.stream_stream(method)(metadata=metadata)
        error = await refusal(call.read())
        assert isinstance(error, UnauthenticatedError)
        # The request was never read.
        assert door.gateway.bodies.used_bytes == 0


async def test_a_key_of_other_characters_is_a_wrong_one(keys: KeyStore) -> None:
    # This client's library sends no such metadata; others do.
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        for name in ("authorization", "x-api-key"):
            with pytest.raises(AccessDeniedError) as raised:
                door.gateway.access.authenticate({name: "Bearer \u0100\u4e2d"}, RequestRecord("id"))
            assert raised.value.status_code == 401


async def test_a_refused_call_does_not_send_its_request(keys: KeyStore) -> None:
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        sent = 0

        async def endless() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
            nonlocal sent
            while True:
                sent += 1
                yield generation_pb2.UploadMediaRequest(data=bytes(1 << 20))

        # This client's library calls a write on a call that has ended an internal error.
        code = await door.generation.UploadMedia(endless()).code()
        assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL)
        assert sent < 40


async def test_either_header_has_the_key(keys: KeyStore) -> None:
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        for metadata in (with_key(keys, "a"), (("x-api-key", keys.texts["a"]),)):
            assert (await door.generation.Chat(chat(), metadata=metadata)).choices[0].text == "Hello"


async def test_the_load_is_for_operators(keys: KeyStore) -> None:
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        asked = generation_pb2.GetLoadRequest()
        assert isinstance(await refusal(door.generation.GetLoad(asked, metadata=with_key(keys, "a"))), PermissionDeniedError)
        assert (await door.generation.GetLoad(asked, metadata=with_key(keys, "boss"))).instance.service == "gateway"


async def test_the_tenant_is_the_keys_and_not_what_the_client_says(keys: KeyStore) -> None:
    frontend, lie = FakeFrontend(), common_pb2.CallContext(tenant="b")
    async with door_of(frontend, api_keys_file=keys.path) as door:
        metadata = with_key(keys, "a")
        await door.generation.Chat(chat(), metadata=metadata)
        assert frontend.contexts[-1].tenant == "a"
        embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput(text="x")], context=lie)
        await door.generation.Embed(embed, metadata=metadata)
        assert frontend.pooling_requests[-1].context.tenant == "a"
        await door.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat(), context=lie), metadata=metadata)
        assert frontend.preprocessed[-1].context.tenant == "a"


async def test_nobody_uses_anothers_upload(keys: KeyStore) -> None:
    async def pieces() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        # The tenant that it claims does not count.
        header = generation_pb2.UploadMediaHeader(num_bytes=3, context=common_pb2.CallContext(tenant="b"))
        yield generation_pb2.UploadMediaRequest(header=header)
        yield generation_pb2.UploadMediaRequest(data=b"abc")

    frontend = FakeFrontend()
    async with door_of(frontend, api_keys_file=keys.path) as door:
        uploaded = await door.generation.UploadMedia(pieces(), metadata=with_key(keys, "a"))
        request = chat()
        request.messages[0].content.add(
            media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=uploaded.upload_id)
        )
        prompt = preprocess_pb2.PreprocessRequest(chat=request)
        for call in (
            door.generation.Chat(request, metadata=with_key(keys, "b")),
            door.preprocess.Preprocess(prompt, metadata=with_key(keys, "b")),
        ):
            await refusal(call)
        error = await refusal(door.generation.Chat(request, metadata=with_key(keys, "b")))
        assert error.field == "messages[0].content[0].media.upload_id" or "upload_id" in error.field
        assert not frontend.requests
        await door.generation.Chat(request, metadata=with_key(keys, "a"))
        assert frontend.request.messages[0].content[1].media.data == b"abc"


async def test_models_of_a_key(keys: KeyStore) -> None:
    keys.add("none", models=["other/model"])
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        metadata = with_key(keys, "none")
        listed = await door.generation.ListModels(generation_pb2.ListModelsRequest(), metadata=metadata)
        assert not listed.models
        named = preprocess_pb2.TokenizeRequest(text="x", model=MODEL.name)
        errors = [
            await refusal(door.generation.Chat(chat(), metadata=metadata)),
            await refusal(door.preprocess.Tokenize(named, metadata=metadata)),
            await refusal(door.preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text="x"), metadata=metadata)),
        ]
    assert {type(error) for error in errors} == {PermissionDeniedError}
    assert {error.field for error in errors} == {"model"}


async def test_rates_are_told_and_kept(keys: KeyStore) -> None:
    keys.add("slow", requests_per_minute=1, tokens_per_minute=10_000)
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        metadata = with_key(keys, "slow")
        call = door.generation.Chat(chat(), metadata=metadata)
        await call
        trailers = dict(await call.trailing_metadata())
        assert trailers["x-ratelimit-limit-requests"] == "1"
        assert trailers["x-ratelimit-limit-tokens"] == "10000"
        again = door.generation.Chat(chat(), metadata=metadata)
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
    async with door_of(frontend, api_keys_file=keys.path) as door:
        options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=5))
        await door.generation.Chat(chat(options=options), metadata=with_key(keys, "few"))
        error = await refusal(door.generation.Chat(chat(options=options), metadata=with_key(keys, "few")))
        assert "tokens per minute" in error.message


async def test_what_a_client_that_left_had_reserved_is_used(keys: KeyStore) -> None:
    keys.add("few", tokens_per_minute=1000)
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(0))
    frontend.pooling_gate = asyncio.Event()
    options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=400))
    embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput(text="x" * 1600)])
    async with door_of(frontend, api_keys_file=keys.path) as door:
        metadata = with_key(keys, "few")
        for call in (
            door.generation.Chat(chat(options=options), metadata=metadata),
            door.generation.Embed(embed, metadata=metadata),
        ):
            frontend.was_cancelled.clear()
            await asyncio.sleep(0.2)
            call.cancel()
            await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
        await asyncio.sleep(0.1)
        error = await refusal(door.generation.Chat(chat(options=options), metadata=metadata))
        assert "tokens per minute" in error.message


async def test_a_picture_is_no_text_of_the_prompt(keys: KeyStore) -> None:
    keys.add("few", tokens_per_minute=1000)
    request = chat(options=generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=5)))
    request.messages[0].content.add(media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=bytes(100_000)))
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        for _ in range(2):
            await door.generation.Chat(request, metadata=with_key(keys, "few"))


async def test_a_refused_call_does_not_use_its_upload_up(keys: KeyStore) -> None:
    async def pieces() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=3 << 20))
        for _ in range(3):
            yield generation_pb2.UploadMediaRequest(data=bytes(1 << 20))

    frontend = FakeFrontend()
    async with door_of(frontend, api_keys_file=keys.path) as door:
        metadata = with_key(keys, "a")
        uploaded = await door.generation.UploadMedia(pieces(), metadata=metadata)
        item = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=uploaded.upload_id)
        request = chat()
        request.messages[0].content.add(media=item)
        other = generation_pb2.ChatRequest()
        other.CopyFrom(request)
        other.model = "another/model"
        await refusal(door.generation.Chat(other, metadata=metadata))
        frontend.script = fails(ServiceUnavailableError("no engine"))
        await refusal(door.generation.Chat(request, metadata=metadata))
        frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
        stream = door.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=request), metadata=metadata)
        await stream.read()
        assert len(frontend.uploads[frontend.request.messages[0].content[1].media.upload_id]) == 3 << 20
        assert door.gateway.bodies.used_bytes == 0
        stream.cancel()
        assert "upload_id" in (await refusal(door.generation.Chat(request, metadata=metadata))).field

        again = await door.generation.UploadMedia(pieces(), metadata=metadata)
        item.upload_id = again.upload_id
        embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput()])
        embed.inputs[0].messages.messages.add(role="user").content.add(media=item)
        frontend.pooling_gate = asyncio.Event()
        call = door.generation.Embed(embed, metadata=metadata)
        await until(lambda: len(frontend.pooling_requests) == 1)
        assert door.gateway.bodies.used_bytes >= 3 << 20, "while it is used"
        frontend.pooling_gate.set()
        await call
        assert door.gateway.bodies.used_bytes == 0


async def test_one_call_at_a_time(keys: KeyStore) -> None:
    keys.add("one", max_concurrent_requests=1, tenant="one")
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with door_of(frontend, api_keys_file=keys.path) as door:
        metadata = with_key(keys, "one")
        stream = door.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()), metadata=metadata)
        await stream.read()
        error = await refusal(door.generation.Chat(chat(), metadata=metadata))
        assert "concurrent requests" in error.message
        # A call that sends nothing takes a place as well, and gives it back.
        stream.cancel()
        await frontend.was_cancelled.wait()
        silent = door.channel.stream_stream("/triptych.v1.GenerationService/Chat")(metadata=metadata)
        await asyncio.sleep(0.2)
        assert "concurrent" in (await refusal(door.generation.Chat(chat(), metadata=metadata))).message
        silent.cancel()
        await asyncio.sleep(0.2)
        frontend.script = says("Hello")
        assert (await door.generation.Chat(chat(), metadata=metadata)).choices[0].text == "Hello"


async def test_a_priority_is_no_higher_than_the_keys(keys: KeyStore) -> None:
    keys.add("later", priority=5)
    frontend = FakeFrontend()
    async with door_of(frontend, api_keys_file=keys.path) as door:
        options = generation_pb2.GenerationOptions(priority=-3)
        await door.generation.Chat(chat(options=options), metadata=with_key(keys, "later"))
    assert frontend.request.options.priority == 5


async def test_the_audit_log_has_each_call(keys: KeyStore, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with door_of(FakeFrontend(), api_keys_file=keys.path, audit_log=str(log)) as door:
        await door.generation.Chat(chat(), metadata=(*with_key(keys, "a"), ("x-request-id", "one")))
        await refusal(door.generation.Chat(chat(), metadata=(("x-request-id", "two"),)))
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "request"}
    route = "/triptych.v1.GenerationService/Chat"
    assert lines["one"] | {"time": "", "duration_ms": 0} == {
        "time": "", "event": "request", "request_id": "one", "key": keys.id("a"), "tenant": "a", "client": "127.0.0.1",
        "method": "gRPC", "route": route, "model": MODEL.name, "status": 200, "refused": None, "aborted": False,
        "prompt_tokens": 7, "completion_tokens": 3, "duration_ms": 0,
    }  # fmt: skip
    assert (lines["two"]["status"], lines["two"]["refused"], lines["two"]["key"]) == (401, "no_key", None)


async def test_metrics_have_the_method_as_their_route(keys: KeyStore) -> None:
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        stream = door.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()), metadata=with_key(keys, "a"))
        assert [piece.choices[0].text async for piece in stream] == ["Hel", "lo"]
        await refusal(door.generation.Chat(chat()))
        assert counted(door, "/triptych.v1.GenerationService/ChatStream", "200") == 1
        assert counted(door, "/triptych.v1.GenerationService/Chat", "401") == 1
        assert door.gateway.metrics.completion_tokens._value.get() == 3


def counted(door: Door, route: str, status: str) -> float:
    return door.gateway.metrics.requests.labels(route, status)._value.get()


async def test_tls_is_that_of_https(keys: KeyStore, tmp_path: Path) -> None:
    https = write(tmp_path / "https", issue("127.0.0.1", "localhost"))
    async with door_of(FakeFrontend(), api_keys_file=keys.path, https_dir=https) as door:
        with pytest.raises(grpc.aio.AioRpcError):
            await door.generation.Chat(chat(), metadata=with_key(keys, "a"), timeout=5)
        credentials = grpc.ssl_channel_credentials(authority("own").cert_pem.bytes())
        async with grpc.aio.secure_channel(door.address, credentials) as channel:
            own = Door(door.gateway, door.address, channel)
            answer = await own.generation.Chat(chat(), metadata=with_key(keys, "a"))
            assert answer.choices[0].text == "Hello"


async def test_a_changed_key_counts_at_the_next_call(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "RELOAD_INTERVAL_S", 0.02)
    async with door_of(FakeFrontend(), api_keys_file=keys.path) as door:
        await door.generation.Chat(chat(), metadata=with_key(keys, "a"))
        metadata = with_key(keys, "a")
        keys.remove("a")
        async with asyncio.timeout(10):
            while True:
                call = door.generation.Chat(chat(), metadata=metadata)
                if await call.code() is grpc.StatusCode.UNAUTHENTICATED:
                    break
                await asyncio.sleep(0.02)
