"""Where the Python clients connect, with which key, and what they send beside a request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from support.mock import Mock, mock_server, script
from triptych import AsyncClient, Client, IncompleteAnswerError, RetryConfig, TLSConfig
from triptych.client.channels import target_of
from triptych.errors import InvalidRequestError, UnauthenticatedError
from triptych.v1 import generation_pb2
from triptych_cli.stack.ports import free_port


async def models(make: Callable[[], Client | AsyncClient]) -> list[str]:
    """What a new client of either kind is told."""
    client = make()
    if isinstance(client, AsyncClient):
        async with client:
            response = await client.list_models(timeout_s=5)
    else:
        with client:
            response = await asyncio.to_thread(client.list_models, timeout_s=5)
    return [model.name for model in response.models]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_address_and_key_come_from_the_environment(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mock_server(api_key="secret", served_model_name="m") as mock:
        monkeypatch.setenv("TRIPTYCH_ADDRESS", mock.address)
        with pytest.raises(UnauthenticatedError):
            await models(kind)
        monkeypatch.setenv("TRIPTYCH_API_KEY", "secret")
        assert await models(kind) == ["m"]
        assert await models(lambda: kind(mock.address, api_key="secret")) == ["m"]
        for key in ("other", ""):
            with pytest.raises(UnauthenticatedError):
                await models(lambda key=key: kind(api_key=key))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_several_endpoints_take_turns_and_one_that_is_away_is_left_out(kind: type) -> None:
    async with mock_server(served_model_name="a") as one, mock_server(served_model_name="b") as two:
        addresses = [one.address, f"127.0.0.1:{free_port('127.0.0.1')}", two.address.replace("127.0.0.1", "localhost")]
        for address in (addresses, ", ".join(addresses)):
            client = kind(address)
            names = []
            for _ in range(12):
                call = client.list_models if kind is AsyncClient else _in_thread(client.list_models)
                names.append((await call()).models[0].name)
            assert {"a", "b"} == set(names)
            closed = client.close()
            if closed is not None:
                await closed


def _in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: asyncio.to_thread(call)


@pytest.mark.parametrize(
    "address", ["", " , ", [], ["no-port", "127.0.0.1:1"], ["127.0.0.1:x", "127.0.0.1:1"], ["[::1]:1", "127.0.0.1:1"]]
)
def test_what_cannot_be_an_address_is_refused(address: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidRequestError) as caught:
            kind(address)
        assert caught.value.field == "address"


def test_a_list_of_addresses_has_a_name_for_certificates() -> None:
    target = target_of(["127.0.0.1:1", "127.0.0.2:2"], None, None, None)
    assert target.name == "ipv4:127.0.0.1:1,127.0.0.2:2"
    assert dict(target.options)["grpc.default_authority"] == "127.0.0.1:1"
    assert "round_robin" in dict(target.options)["grpc.service_config"]
    assert "round_robin" not in dict(target_of("127.0.0.1:1", None, None, None).options)["grpc.service_config"]


def test_the_files_of_tls_are_read_when_the_client_is_made() -> None:
    with pytest.raises(OSError, match="no-such-file"):
        Client("127.0.0.1:1", tls=TLSConfig(root_certificates="no-such-file"))


async def test_threads_that_call_at_the_same_time_open_one_connection() -> None:
    async with mock_server() as mock:
        with Client(mock.address) as client:
            barrier, stubs = threading.Barrier(8), list[object]()

            def first_use() -> None:
                barrier.wait()
                stubs.append(client._stubs)

            threads = [threading.Thread(target=first_use) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert len(set(map(id, stubs))) == 1


class Noting(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        method = client_call_details.method
        self.methods.append(method.decode() if isinstance(method, bytes) else method)
        return await continuation(client_call_details, request)


async def test_interceptors_are_around_each_call() -> None:
    noting = Noting()
    async with mock_server() as mock, AsyncClient(mock.address, interceptors=[noting]) as client:
        await client.list_models()
    assert noting.methods == ["/triptych.v1.GenerationService/ListModels"]


async def sent_trace(mock: Mock) -> str:
    async with AsyncClient(mock.address) as client:
        await client.chat("hello", request_id="traced")
    return dict((await mock.calls("traced"))[-1].metadata).get("traceparent", "")


async def test_a_call_carries_the_place_in_the_programs_trace() -> None:
    async with mock_server() as mock:
        assert await sent_trace(mock) == ""
        with TracerProvider().get_tracer("test").start_as_current_span("a program's own"):
            context = trace.get_current_span().get_span_context()
            sent = await sent_trace(mock)
            assert sent.rpartition("-")[0] == f"00-{context.trace_id:032x}-{context.span_id:016x}"


class City(BaseModel):
    name: str
    is_capital: bool


async def test_an_answer_becomes_an_object() -> None:
    told = script(text='{"name": "Paris", "is_capital": true}')
    async with mock_server() as mock, AsyncClient(mock.address) as client:
        answer = await client.parse(told, City)
        assert answer.value == City(name="Paris", is_capital=True)
        assert answer.response.choices[0].text.startswith("{")
        with pytest.raises(IncompleteAnswerError, match="ended with length after"):
            await client.parse(told, City, max_tokens=1)
        with pytest.raises(InvalidRequestError) as caught:
            await client.parse(told, City, regex="a")
        assert caught.value.field == "response_type"
        request = generation_pb2.ChatRequest()
        request.messages.add(role="user").content.add(text=told)
        assert (await client.parse(request, City)).value.is_capital
        assert not request.options.HasField("constraint"), "the caller's request stays as it is"
        with Client(mock.address) as threads:
            assert (await asyncio.to_thread(threads.parse, told, City)).value.name == "Paris"


async def test_a_connection_whose_handshake_takes_long_is_made() -> None:
    """Over a slow network, or to a busy server: gRPC gave it 0.2 s, as long as the pause between attempts."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async with mock_server() as mock, contextlib.AsyncExitStack() as stack:
        host, _, port = mock.address.rpartition(":")

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1)
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

        slow = await stack.enter_async_context(await asyncio.start_server(relay, "127.0.0.1"))
        address = "{}:{}".format(*slow.sockets[0].getsockname())
        async with AsyncClient(address, retry=RetryConfig(max_attempts=1)) as client:
            assert (await client.chat("hello")).choices[0].text == "hello"
