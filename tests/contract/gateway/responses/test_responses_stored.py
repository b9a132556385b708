"""Stored responses: retrieve, delete, input items, chains, references, other tenants, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.drivers.responses import sdk
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.shared_store import running_store, server_program
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.stores.store import StoredResponse


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "valkey":
        with running_store(server_program(), tmp_path) as url:
            yield url
    else:
        yield "memory" if request.param == "memory" else f"sqlite:{tmp_path}/responses.db"


async def test_retrieve_and_delete(target: str) -> None:
    async with sdk(FakeFrontend(), response_store=target) as client:
        made = await client.responses.create(model=MODEL.name, input="Hi")
        assert await client.responses.retrieve(made.id) == made
        assert await client.responses.retrieve(made.id, include=["message.output_text.logprobs"]) == made
        await client.responses.delete(made.id)
        for missing in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                await missing(made.id)
            assert set(caught.value.body) == {"message", "type", "param", "code"}  # type: ignore[arg-type]


async def test_a_streamed_response_is_there_as_soon_as_it_has_ended(target: str) -> None:
    async with sdk(FakeFrontend(), response_store=target) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", stream=True)
        async for event in stream:
            if event.type == "response.completed":
                assert await client.responses.retrieve(event.response.id) == event.response


async def test_a_response_whose_client_left_is_not_there() -> None:
    frontend = FakeFrontend()
    frontend.script = says("Hel", "lo", gate=asyncio.Semaphore(1))
    async with sdk(frontend) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", stream=True)
        created = await anext(stream)
        await stream.close()
        await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(created.response.id)  # type: ignore[union-attr]


async def test_a_chain_is_no_larger_than_a_body() -> None:
    async with sdk(FakeFrontend(), max_body_bytes=100_000) as client:
        made = await client.responses.create(model=MODEL.name, input="x" * 60_000)
        made = await client.responses.create(model=MODEL.name, input="x" * 60_000, previous_response_id=made.id)
        with pytest.raises(openai.BadRequestError, match="more than 100000 bytes") as caught:
            await client.responses.create(model=MODEL.name, input="And?", previous_response_id=made.id)
    assert caught.value.param == "previous_response_id"


async def test_a_chain(target: str) -> None:
    frontend = FakeFrontend()
    async with sdk(frontend, response_store=target) as client:
        first = await client.responses.create(model=MODEL.name, input="One", instructions="Be brief.")
        second = await client.responses.create(model=MODEL.name, input="Two", previous_response_id=first.id)
        await client.responses.create(model=MODEL.name, input="Three", previous_response_id=second.id)
        said = [(message.role, message.content[0].text) for message in frontend.request.messages]
        assert said == [("user", "One"), ("assistant", "Hello"), ("user", "Two"), ("assistant", "Hello"), ("user", "Three")]
        # Another branch from the first one.
        await client.responses.create(model=MODEL.name, input="Other", previous_response_id=first.id)
        assert len(frontend.request.messages) == 3
        await client.responses.delete(first.id)
        await refused(client, second.id)


async def refused(client: openai.AsyncOpenAI, previous_id: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model=MODEL.name, input="And?", previous_response_id=previous_id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


async def test_what_is_not_stored_is_not_there() -> None:
    async with sdk(FakeFrontend()) as client:
        made = await client.responses.create(model=MODEL.name, input="Hi", store=False)
        await refused(client, made.id)
        await refused(client, "resp_unknown")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_an_expired_response_is_not_there(target: str) -> None:
    async with sdk(FakeFrontend(), response_store=target, response_ttl_s=0.001) as client:
        made = await client.responses.create(model=MODEL.name, input="Hi")
        await refused(client, made.id)


async def test_another_tenants_response_is_not_there() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        [app] = _APPS
        other = StoredResponse(
            "resp_" + "0" * 32, "other tenant", None, b'{"output":[],"background":true}', b"[]", live_until_s=9e9
        )
        await app.state.gateway.store.put(other)
        await refused(client, other.id)
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(other.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_items.list(other.id)
        item: Any = {"type": "item_reference", "id": "msg_" + "0" * 32 + "_o0"}
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model=MODEL.name, input=[item])
        assert caught.value.param == "input"
        assert await app.state.gateway.store.get("other tenant", other.id) == other


async def test_input_items_are_paged() -> None:
    items: Any = [{"role": "user", "content": f"{number}"} for number in range(5)]
    async with sdk(FakeFrontend()) as client:
        made = await client.responses.create(model=MODEL.name, input=items)
        ascending = [item async for item in client.responses.input_items.list(made.id, order="asc", limit=2)]
        descending = [item async for item in client.responses.input_items.list(made.id)]
        page = await client.responses.input_items.list(made.id, limit=2)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.input_items.list(made.id, after="msg_unknown")
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_items.list(made.id, limit=1000)
    assert caught.value.param == "after"
    assert [item.content[0].text for item in ascending] == ["0", "1", "2", "3", "4"]
    assert [item.id for item in descending] == [item.id for item in reversed(ascending)]
    assert page.has_more
    assert len(page.data) == 2
    assert len({item.id for item in ascending}) == 5


async def test_input_items_are_those_of_the_whole_conversation() -> None:
    async with sdk(FakeFrontend()) as client:
        first = await client.responses.create(model=MODEL.name, input="One")
        second = await client.responses.create(model=MODEL.name, input="Two", previous_response_id=first.id)
        third = await client.responses.create(model=MODEL.name, input="Three", previous_response_id=second.id)
        listed = [item.to_dict() async for item in client.responses.input_items.list(third.id, order="asc", limit=2)]
        newest = (await client.responses.input_items.list(third.id, limit=1)).data
        await client.responses.delete(first.id)
        left = (await client.responses.input_items.list(third.id, order="asc")).data
    said: list[Any] = [(item["role"], item["content"][0]["text"]) for item in listed]  # type: ignore[index]
    assert said == [("user", "One"), ("assistant", "Hello"), ("user", "Two"), ("assistant", "Hello"), ("user", "Three")]
    assert [item["id"] for item in listed][1::2] == [first.output[0].id, second.output[0].id]
    assert [item.id for item in newest] == [listed[-1]["id"]]
    assert [item.to_dict() for item in left] == listed[2:], "what is left of a conversation whose beginning is gone"


async def test_references_to_stored_items() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        made = await client.responses.create(model=MODEL.name, input="One")
        [asked] = (await client.responses.input_items.list(made.id)).data
        references: Any = [
            {"type": "item_reference", "id": asked.id},
            {"id": made.output[0].id},
            {"role": "user", "content": "Two"},
        ]
        second = await client.responses.create(model=MODEL.name, input=references)
        listed = (await client.responses.input_items.list(second.id, order="asc")).data
    said = [(message.role, message.content[0].text) for message in frontend.request.messages]
    assert said == [("user", "One"), ("assistant", "Hello"), ("user", "Two")]
    assert [item.type for item in listed] == ["message", "message", "message"], "what they refer to is stored"


async def test_an_input_that_is_too_large_to_be_stored() -> None:
    async with sdk(FakeFrontend(), max_stored_response_bytes=1024) as client:
        made = await client.responses.create(model=MODEL.name, input="x" * 2000)
        assert made.to_dict()["store"] is False
        await refused(client, made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL.name, input="x" * 2000, store=True)
        assert caught.value.param == "store"


async def test_sqlite_survives_a_restart(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    target = f"sqlite:{tmp_path}/responses.db"
    async with sdk(frontend, response_store=target) as client:
        made = await client.responses.create(model=MODEL.name, input="One")
    async with sdk(frontend, response_store=target) as client:
        assert await client.responses.retrieve(made.id) == made
        await client.responses.create(model=MODEL.name, input="Two", previous_response_id=made.id)
    assert len(frontend.request.messages) == 3


async def test_two_gateways_share_a_server(tmp_path: Path) -> None:
    with running_store(server_program(), tmp_path) as url:
        async with sdk(FakeFrontend(), response_store=url) as one, sdk(FakeFrontend(), response_store=url) as other:
            made = await one.responses.create(model=MODEL.name, input="One")
            assert await other.responses.retrieve(made.id) == made


async def test_the_last_event_of_a_stream_says_whether_the_response_was_stored() -> None:
    async with sdk(FakeFrontend(), response_store="redis://127.0.0.1:1/0") as client:
        events = [event async for event in await client.responses.create(model=MODEL.name, input="Hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello"
    assert last.response.to_dict()["store"] is False


async def test_a_store_that_is_away_does_not_take_the_answer() -> None:
    async with sdk(FakeFrontend(), response_store="redis://127.0.0.1:1/0") as client:
        made = await client.responses.create(model=MODEL.name, input="Hi")
        assert made.output_text == "Hello"
        assert made.to_dict()["store"] is False
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.retrieve(made.id)
    assert caught.value.status_code == 503


@pytest.mark.parametrize(
    "query", ["stream=quark", "starting_after=-1&stream=true", "starting_after=1", "colour=1", "include_obfuscation=true"]
)
async def test_queries_are_honoured_or_refused(query: str) -> None:
    async with sdk(FakeFrontend()) as client:
        made = await client.responses.create(model=MODEL.name, input="Hi")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.get(f"/responses/{made.id}?{query}", cast_to=object)
    assert caught.value.param == query.partition("=")[0]


#: The applications of this test.
_APPS: list[Any] = []


@pytest.fixture(autouse=True)
def applications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note the applications that are made, to look into their stores."""
    _APPS.clear()

    def noted(settings: GatewaySettings) -> Any:
        _APPS.append(create_app(settings))
        return _APPS[-1]

    monkeypatch.setattr("support.fakes.gateway.create_app", noted)
