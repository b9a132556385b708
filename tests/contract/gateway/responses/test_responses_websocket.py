"""The WebSocket transport of /v1/responses, with the official client and with plain frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import websockets
from support.drivers.responses import answers, calls, sdk
from support.fakes.frontend import MODEL, Delta, FakeFrontend, fails, says
from support.fakes.gateway import gateway_server
from triptych.errors import ServiceUnavailableError
from triptych_gateway.apis.responses import websocket as module
from websockets.asyncio.client import ClientConnection


@asynccontextmanager
async def socket(frontend: FakeFrontend, headers: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[ClientConnection]:
    async with (
        gateway_server(frontend, **settings) as (host, port),
        websockets.connect(f"ws://{host}:{port}/v1/responses", additional_headers=headers, max_size=None) as connection,
    ):
        yield connection


async def turn(connection: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    """Send one `response.create`. Returns the events up to the last one."""
    await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, **fields}).decode())
    return await until_end(connection)


async def until_end(connection: ClientConnection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    ends = ("response.completed", "response.incomplete", "response.failed")
    while not events or (events[-1]["type"] not in ends and "status" not in events[-1]):
        events.append(orjson.loads(await connection.recv()))
    return events


async def test_the_official_client_takes_turns() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client, client.responses.connect() as connection:
        await connection.response.create(model=MODEL.name, input="Hi", store=False)
        async for event in connection:
            if event.type == "response.completed":
                first = event.response
                break
        assert first.output_text == "Hello"
        await connection.response.create(model=MODEL.name, input="And?", store=False, previous_response_id=first.id)
        async for event in connection:
            if event.type == "response.completed":
                break
    assert [message.role for message in frontend.request.messages] == ["user", "assistant", "user"]


async def test_what_is_not_stored_is_known_on_its_connection_alone() -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend) as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        async with websockets.connect(address) as one, websockets.connect(address) as other:
            first = (await turn(one, input="Hi", store=False))[-1]["response"]
            [error] = await turn(other, input="And?", previous_response_id=first["id"])
            assert error["type"] == "error"
            assert error["status"] == 404
            assert error["error"]["code"] == "previous_response_not_found"
            assert error["error"]["param"] == "previous_response_id"
            second = (await turn(one, input="And?", store=False, previous_response_id=first["id"]))[-1]["response"]
            third = (await turn(one, input="And?", store=True, previous_response_id=second["id"]))[-1]
            assert third["type"] == "response.completed"
            assert len(frontend.request.messages) == 5


async def test_a_stored_response_is_continued_on_any_connection() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        first = await client.responses.create(model=MODEL.name, input="Hi")
        async with client.responses.connect() as connection:
            await connection.response.create(model=MODEL.name, input="And?", previous_response_id=first.id)
            events = [event async for event in until(connection)]
        stored = await client.responses.retrieve(events[-1].response.id)
    assert stored.output_text == "Hello"
    assert stored.previous_response_id == first.id


async def until(connection: Any) -> AsyncIterator[Any]:
    async for event in connection:
        yield event
        if event.type == "response.completed":
            return


async def test_events_are_those_of_http() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(reasoning="Hm"), Delta(text="I look."), calls("weather", "{}"))
    async with socket(frontend) as connection:
        events = await turn(connection, input="Hi", tools=[{"type": "function", "name": "weather"}])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]


async def test_a_warm_up_computes_the_prompt_and_has_no_output() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(finish_reason=2))
    async with socket(frontend) as connection:
        events = await turn(connection, input="Long instructions", store=False, generate=False)
        assert frontend.request.options.sampling.max_tokens == 0
        assert frontend.request.options.sampling.HasField("max_tokens")
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == []
        frontend.script = says("Hello")
        await turn(connection, input="Hi", previous_response_id=events[-1]["response"]["id"])
    assert not frontend.request.options.sampling.HasField("max_tokens")
    assert len(frontend.request.messages) == 2


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", "type"),
        ('{"type":"session.update"}', "type"),
        ('{"type":"response.create","model":"fake/model"}', "input"),
        ('{"type":"response.create","model":"fake/model","input":"x","input":"y"}', None),
        ('{"type":"response.create","model":"fake/model","input":"x","colour":1}', "colour"),
        ('{"type":"response.create","model":"fake/model","input":"x","background":true}', "background"),
        ('{"type":"response.create","model":"fake/model","input":"x","stream_id":"a"}', "stream_id"),
        ('{"type":"response.create","model":"fake/model","input":"x","generate":1.5}', "generate"),
    ],
)
async def test_what_is_wrong_is_said_and_the_connection_goes_on(message: str, param: str | None) -> None:
    async with socket(FakeFrontend()) as connection:
        await connection.send(message)
        error = orjson.loads(await connection.recv())
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["param"] == param, error
        assert (await turn(connection, input="Hi"))[-1]["type"] == "response.completed"


async def test_turns_are_taken_in_order() -> None:
    async with socket(FakeFrontend()) as connection:
        create = {"type": "response.create", "model": MODEL.name, "input": "Hi"}
        for label in ("a", "b"):
            await connection.send(orjson.dumps(create | {"metadata": {"label": label}}).decode())
        ended = [(await until_end(connection))[-1]["response"]["metadata"]["label"] for _ in range(2)]
    assert ended == ["a", "b"]


async def test_messages_that_wait_have_reserved_their_memory() -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("Hello", gate=gate)
    # Each message reserves 0.75 MB: one fits, the next one waits in vain.
    async with socket(frontend, max_live_body_bytes=1_000_000, body_wait_s=0.05) as connection:
        for length in (1, 300_000, 300_000):
            message = {"type": "response.create", "model": MODEL.name, "input": "x" * length}
            await connection.send(orjson.dumps(message).decode())
        await frontend.arrivals.get()
        await asyncio.sleep(0.2)
        for _ in range(10):
            gate.release()
        ends = [(await until_end(connection))[-1] for _ in range(3)]
        assert [end["type"] for end in ends] == ["response.completed", "response.completed", "error"]
        assert (ends[2]["status"], ends[2]["error"]["code"]) == (429, "queue_full")
        # Their memory is free again.
        assert (await turn(connection, input="x" * 300_000))[-1]["type"] == "response.completed"


async def test_messages_that_wait_when_the_client_leaves_free_their_memory() -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("Hello", gate=gate)
    message = orjson.dumps({"type": "response.create", "model": MODEL.name, "input": "x" * 300_000}).decode()
    async with gateway_server(frontend, max_live_body_bytes=1_000_000, body_wait_s=0.05) as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        async with websockets.connect(address) as connection:
            await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, "input": "Hi"}).decode())
            await frontend.arrivals.get()
            await connection.send(message)
            await asyncio.sleep(0.1)
        for _ in range(10):
            gate.release()
        async with websockets.connect(address) as connection:
            await connection.send(message)
            assert (await until_end(connection))[-1]["type"] == "response.completed"


async def test_a_failed_turn_makes_the_connection_forget_what_it_continued() -> None:
    frontend = FakeFrontend()
    async with socket(frontend) as connection:
        first = (await turn(connection, input="Hi", store=False))[-1]["response"]
        frontend.script = fails(ServiceUnavailableError("the engine died"), after=2)
        failed = await turn(connection, input="And?", store=False, previous_response_id=first["id"])
        assert [event["type"] for event in failed[-2:]] == ["error", "response.failed"]
        [error] = await turn(connection, input="And?", store=False, previous_response_id=first["id"])
    assert error["error"]["code"] == "previous_response_not_found"


async def test_closing_the_connection_cancels_the_turn() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", "c", gate=asyncio.Semaphore(1))
    async with socket(frontend) as connection:
        await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, "input": "Hi"}).decode())
        await connection.recv()
        await connection.close()
        await asyncio.wait_for(frontend.was_cancelled.wait(), 5)


async def test_a_connection_needs_the_key() -> None:
    async with gateway_server(FakeFrontend(), api_key="secret") as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(address)
        assert caught.value.response.status_code == 401
        assert orjson.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"  # type: ignore[arg-type]
        async with websockets.connect(address, additional_headers={"authorization": "Bearer secret"}) as connection:
            assert (await turn(connection, input="Hi"))[-1]["type"] == "response.completed"


async def test_a_page_of_another_origin_is_refused() -> None:
    async with gateway_server(FakeFrontend(), cors_allow_origins="https://good") as (host, port):
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"ws://{host}:{port}/v1/responses", origin="https://bad")  # type: ignore[arg-type]
        assert caught.value.response.status_code == 403
        async with websockets.connect(f"ws://{host}:{port}/v1/responses", origin="https://good"):  # type: ignore[arg-type]
            pass


async def test_a_connection_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTION_S", 0.05)
    async with socket(FakeFrontend()) as connection:
        error = orjson.loads(await connection.recv())
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(websockets.ConnectionClosed):
            await connection.recv()
