"""Messages that are small on the wire and large in memory, or that do not end."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.grpc_port import grpc_port_of
from support.fakes.frontend import MODEL, FakeFrontend
from support.rpc_fuzz import Mutator
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2
from triptych_gateway.rpc import wire

SERVICE = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
CHAT = "/triptych.v1.GenerationService/Chat"
#: Each is a message of many fields: turns, parts of a turn, tools' names, unknown fields, token ids that are not packed.
BOMBS = {
    "inputs": b"\x0a\x00" * 32_000,
    "messages": b"\x12\x00" * (1 << 20),
    "parts": b"\x12\x80\x80\x80\x01" + b"\x12\x00" * (1 << 20),
    "unknown": b"\xf8\x7f\x00" * (1 << 20),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("method", [CHAT, "/triptych.v1.GenerationService/Embed", "/grpc.health.v1.Health/Check"])
async def test_a_bomb_is_refused_and_stops_nobody(bomb: bytes, method: str) -> None:
    async with grpc_port_of(FakeFrontend()) as port:
        longest_s, is_done = 0.0, False

        async def watch() -> None:
            nonlocal longest_s
            while not is_done:
                # Processor time of this process: other tests take turns with it.
                begin_s = time.process_time()
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, time.process_time() - begin_s)

        watching = asyncio.create_task(watch())
        for _ in range(3):
            with suppress(grpc.aio.AioRpcError):
                await port.channel.unary_unary(method)(bomb)
        is_done = True
        await watching
        assert longest_s < 0.1
        assert port.gateway.bodies.used_bytes == 0


async def test_so_many_messages_arrive_at_the_same_time() -> None:
    settings = {"max_body_bytes": 1 << 20, "max_live_body_bytes": 4 << 20, "body_wait_s": 0.2, "body_timeout_s": 5.0}
    async with grpc_port_of(FakeFrontend(), **settings) as port:
        silent = [port.channel.stream_stream(CHAT)() for _ in range(4)]
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 4)
        with pytest.raises(grpc.aio.AioRpcError, match="4 requests arrive at the same time") as raised:
            await port.generation.Complete(generation_pb2.CompleteRequest(model=MODEL.name, text="x"))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in silent:
            call.cancel()
        await until(lambda: port.gateway.metrics.in_flight._value.get() == 0)
        assert (await port.generation.Complete(generation_pb2.CompleteRequest(model=MODEL.name, text="x"))).choices


async def test_a_large_message_without_files_is_refused() -> None:
    async with grpc_port_of(FakeFrontend()) as port:
        request = generation_pb2.CompleteRequest(model=MODEL.name, text="x" * (9 << 20))
        with pytest.raises(grpc.aio.AioRpcError, match="beside its files"):
            await port.generation.Complete(request)


async def test_a_message_above_the_limit_of_bodies_is_refused_by_name() -> None:
    async with grpc_port_of(FakeFrontend(), max_body_bytes=1 << 20) as port:
        request = generation_pb2.ChatRequest(model=MODEL.name)
        content = request.messages.add(role="user").content
        content.add(media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=bytes(3 << 19)))
        with pytest.raises(grpc.aio.AioRpcError, match="max_body_bytes") as raised:
            await port.generation.Chat(request)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_that_does_not_come_is_not_waited_for() -> None:
    async with grpc_port_of(FakeFrontend(), body_timeout_s=0.1) as port:
        call = port.channel.stream_stream(CHAT)()
        with pytest.raises(grpc.aio.AioRpcError, match=r"did not arrive within 0\.1 s") as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert port.gateway.metrics.in_flight._value.get() == 0


@given(st.sampled_from(["ChatStream", "Embed", "CompleteStream"]), st.integers(0, 1 << 30))
def test_the_walk_takes_what_protobuf_takes(method: str, seed: int) -> None:
    message = Mutator(seed).message(SERVICE.methods_by_name[method], [])
    content = message.SerializeToString(deterministic=True)
    wire._check(message.DESCRIPTOR, content)
    assert wire.parse(type(message), content).SerializeToString(deterministic=True) == content


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(content: bytes) -> None:
    try:
        wire._check(generation_pb2.ChatRequest.DESCRIPTOR, content)
    except (IndexError, InvalidRequestError):
        return


def test_a_limit_names_what_it_counts() -> None:
    ids = detokenize_pb2.DetokenizeRequest(token_ids=range(2_000_000))
    assert len(wire.parse(type(ids), ids.SerializeToString()).token_ids) == 2_000_000
    for name in ("messages", "parts", "unknown"):
        with pytest.raises(InvalidRequestError, match="more than 100000 fields"):
            wire.parse(generation_pb2.ChatRequest, BOMBS[name])
    with pytest.raises(InvalidRequestError, match="more than 100000 fields"):
        wire.parse(generation_pb2.ChatRequest, BOMBS["messages"])
