"""Keys at the gateway's gRPC port: the same as over REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.certificates import authority, issue, write
from support.drivers.grpc_port import GrpcPort, chat, grpc_port_of, refusal, with_key
from support.fakes.frontend import MODEL, FakeFrontend
from support.keys import KeyStore
from triptych.errors import PermissionDeniedError, UnauthenticatedError
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2
from triptych_gateway.access import key_ring
from triptych_gateway.record import RequestRecord
from triptych_gateway.rpc.server import _request_classes
from triptych_gateway.wire.errors import AccessDeniedError

METHODS = sorted(_request_classes())


def test_there_is_a_rule_for_each_method() -> None:
    services = {method.split("/")[1].rsplit(".", 1)[1] for method in METHODS}
    assert services == {
        "GenerationService", "PreprocessService", "DetokenizeService", "ModelManagerService", "Health", "ServerReflection"
    }  # fmt: skip


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
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        call = port.channel.stream_stream(method)(metadata=metadata)
        error = await refusal(call.read())
        assert isinstance(error, UnauthenticatedError)
        # The request was never read.
        assert port.gateway.bodies.used_bytes == 0


async def test_a_key_of_other_characters_is_a_wrong_one(keys: KeyStore) -> None:
    # This client's library sends no such metadata; others do.
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        for name in ("authorization", "x-api-key"):
            with pytest.raises(AccessDeniedError) as raised:
                port.gateway.access.authenticate({name: "Bearer \u0100\u4e2d"}, RequestRecord("id"))
            assert raised.value.status_code == 401


async def test_a_refused_call_does_not_send_its_request(keys: KeyStore) -> None:
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        sent = 0

        async def endless() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
            nonlocal sent
            while True:
                sent += 1
                yield generation_pb2.UploadMediaRequest(data=bytes(1 << 20))

        # This client's library calls a write on a call that has ended an internal error.
        code = await port.generation.UploadMedia(endless()).code()
        assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL)
        assert sent < 40


async def test_either_header_has_the_key(keys: KeyStore) -> None:
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        for metadata in (with_key(keys, "a"), (("x-api-key", keys.texts["a"]),)):
            assert (await port.generation.Chat(chat(), metadata=metadata)).choices[0].text == "Hello"


async def test_the_load_is_for_operators(keys: KeyStore) -> None:
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        asked = generation_pb2.GetLoadRequest()
        assert isinstance(await refusal(port.generation.GetLoad(asked, metadata=with_key(keys, "a"))), PermissionDeniedError)
        assert (await port.generation.GetLoad(asked, metadata=with_key(keys, "boss"))).instance.service == "gateway"


async def test_the_tenant_is_the_keys_and_not_what_the_client_says(keys: KeyStore) -> None:
    frontend, lie = FakeFrontend(), common_pb2.CallContext(tenant="b")
    async with grpc_port_of(frontend, api_keys_file=keys.path) as port:
        metadata = with_key(keys, "a")
        await port.generation.Chat(chat(), metadata=metadata)
        assert frontend.contexts[-1].tenant == "a"
        embed = generation_pb2.EmbedRequest(model=MODEL.name, inputs=[generation_pb2.EmbedInput(text="x")], context=lie)
        await port.generation.Embed(embed, metadata=metadata)
        assert frontend.pooling_requests[-1].context.tenant == "a"
        await port.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat(), context=lie), metadata=metadata)
        assert frontend.preprocessed[-1].context.tenant == "a"


async def test_models_of_a_key(keys: KeyStore) -> None:
    keys.add("none", models=["other/model"])
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        metadata = with_key(keys, "none")
        listed = await port.generation.ListModels(generation_pb2.ListModelsRequest(), metadata=metadata)
        assert not listed.models
        named = preprocess_pb2.TokenizeRequest(text="x", model=MODEL.name)
        errors = [
            await refusal(port.generation.Chat(chat(), metadata=metadata)),
            await refusal(port.preprocess.Tokenize(named, metadata=metadata)),
            await refusal(port.preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text="x"), metadata=metadata)),
        ]
    assert {type(error) for error in errors} == {PermissionDeniedError}
    assert {error.field for error in errors} == {"model"}


async def test_the_audit_log_has_each_call(keys: KeyStore, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path, audit_log=str(log)) as port:
        await port.generation.Chat(chat(), metadata=(*with_key(keys, "a"), ("x-request-id", "one")))
        await refusal(port.generation.Chat(chat(), metadata=(("x-request-id", "two"),)))
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "request"}
    route = "/triptych.v1.GenerationService/Chat"
    assert lines["one"] | {"time": "", "duration_ms": 0} == {
        "time": "", "event": "request", "request_id": "one", "key": keys.id("a"), "tenant": "a", "client": "127.0.0.1",
        "method": "gRPC", "route": route, "model": MODEL.name, "status": 200, "refused": None, "aborted": False,
        "prompt_tokens": 7, "completion_tokens": 3, "duration_ms": 0,
    }  # fmt: skip
    assert (lines["two"]["status"], lines["two"]["refused"], lines["two"]["key"]) == (401, "no_key", None)


async def test_metrics_have_the_method_as_their_route(keys: KeyStore) -> None:
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        stream = port.generation.ChatStream(generation_pb2.ChatStreamRequest(chat=chat()), metadata=with_key(keys, "a"))
        assert [piece.choices[0].text async for piece in stream] == ["Hel", "lo"]
        await refusal(port.generation.Chat(chat()))
        assert counted(port, "/triptych.v1.GenerationService/ChatStream", "200") == 1
        assert counted(port, "/triptych.v1.GenerationService/Chat", "401") == 1
        assert port.gateway.metrics.completion_tokens._value.get() == 3


def counted(port: GrpcPort, route: str, status: str) -> float:
    return port.gateway.metrics.requests.labels(route, status)._value.get()


async def test_tls_is_that_of_https(keys: KeyStore, tmp_path: Path) -> None:
    https = write(tmp_path / "https", issue("127.0.0.1", "localhost"))
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path, https_dir=https) as port:
        with pytest.raises(grpc.aio.AioRpcError):
            await port.generation.Chat(chat(), metadata=with_key(keys, "a"), timeout=5)
        credentials = grpc.ssl_channel_credentials(authority("own").cert_pem.bytes())
        async with grpc.aio.secure_channel(port.address, credentials) as channel:
            own = GrpcPort(port.gateway, port.address, channel)
            answer = await own.generation.Chat(chat(), metadata=with_key(keys, "a"))
            assert answer.choices[0].text == "Hello"


async def test_a_changed_key_counts_at_the_next_call(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "RELOAD_INTERVAL_S", 0.02)
    async with grpc_port_of(FakeFrontend(), api_keys_file=keys.path) as port:
        await port.generation.Chat(chat(), metadata=with_key(keys, "a"))
        metadata = with_key(keys, "a")
        keys.remove("a")
        async with asyncio.timeout(10):
            while True:
                call = port.generation.Chat(chat(), metadata=metadata)
                if await call.code() is grpc.StatusCode.UNAUTHENTICATED:
                    break
                await asyncio.sleep(0.02)
