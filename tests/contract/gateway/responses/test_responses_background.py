"""Responses in the background: polling, cancelling, streams that are taken up again, limits, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import Response
from support.drivers.responses import sdk
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.shared_store import running_store, server_program
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych_gateway.stores.memory import MemoryStore
from triptych_gateway.stores.opening import open_store
from triptych_gateway.stores.store import StoredResponse

Client = openai.AsyncOpenAI


def held(*texts: str) -> tuple[FakeFrontend, asyncio.Semaphore]:
    """A frontend that sends one response per permit."""
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says(*texts, gate=gate)
    return frontend, gate


def let_go(gate: asyncio.Semaphore) -> None:
    """Permit all that is still to come."""
    for _ in range(100):
        gate.release()


async def begun(client: Client, **fields: Any) -> Response:
    return await client.responses.create(model=MODEL.name, input="Hi", background=True, **fields)


async def ended(client: Client, response_id: str) -> Response:
    async with asyncio.timeout(10):
        while (response := await client.responses.retrieve(response_id)).status in ("queued", "in_progress"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return response


async def test_polling() -> None:
    frontend, gate = held("Hel", "lo")
    async with sdk(frontend) as client:
        made = await begun(client)
        assert made.status in ("queued", "in_progress")
        assert made.background
        await frontend.arrivals.get()
        assert (await client.responses.retrieve(made.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL.name, input="And?", previous_response_id=made.id)
        assert caught.value.param == "previous_response_id"
        let_go(gate)
        done = await ended(client, made.id)
        assert (done.status, done.output_text) == ("completed", "Hello")
        assert done.usage is not None
        continued = await client.responses.create(model=MODEL.name, input="And?", previous_response_id=made.id, store=False)
    assert continued.output_text == "Hello"


async def test_cancel() -> None:
    frontend, _ = held("Hel", "lo")
    async with sdk(frontend) as client:
        made = await begun(client)
        await frontend.arrivals.get()
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
        assert (await client.responses.retrieve(made.id)).status == "cancelled"
        assert (await client.responses.cancel(made.id)).status == "cancelled", "a second time changes nothing"


class SlowStore(MemoryStore):
    """A store in memory, in which responses end only when the event is set."""

    async def replace(self, record: StoredResponse) -> bool:
        if not record.is_live:
            self.reached.set()
            await self.gate.wait()
        return await super().replace(record)

    def __init__(self, *limits: Any) -> None:
        super().__init__(*limits)
        self.gate, self.reached = asyncio.Event(), asyncio.Event()


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    store = SlowStore(60.0, 1 << 20)
    monkeypatch.setattr("triptych_gateway.state.open_store", lambda *_: store)
    return store


async def test_cancelling_twice_while_the_store_is_slow(slow_store: SlowStore) -> None:
    frontend, _ = held("Hel", "lo")
    async with sdk(frontend) as client:
        made = await begun(client)
        await frontend.arrivals.get()
        cancelling = [asyncio.create_task(client.responses.cancel(made.id))]
        await slow_store.reached.wait()
        cancelling.append(asyncio.create_task(client.responses.cancel(made.id)))
        await asyncio.sleep(0.1)
        slow_store.gate.set()
        assert [response.status for response in await asyncio.gather(*cancelling)] == ["cancelled", "cancelled"]
        assert (await client.responses.retrieve(made.id)).status == "cancelled"


async def test_cancelling_while_the_end_is_stored_comes_too_late(slow_store: SlowStore) -> None:
    async with sdk(FakeFrontend()) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", background=True, stream=True)
        created = await anext(stream)
        await slow_store.reached.wait()
        cancelling = asyncio.create_task(client.responses.cancel(created.response.id))  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        slow_store.gate.set()
        assert (await cancelling).status == "completed"
        assert [event.type async for event in stream][-1] == "response.completed"
        replayed = await client.responses.retrieve(created.response.id, stream=True)  # type: ignore[union-attr]
        assert [event.type async for event in replayed][-1] == "response.completed"


async def test_only_background_responses_can_be_cancelled() -> None:
    async with sdk(FakeFrontend()) as client:
        made = await client.responses.create(model=MODEL.name, input="Hi")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(made.id)
        background = await begun(client)
        assert (await ended(client, background.id)).status == "completed"
        assert (await client.responses.cancel(background.id)).status == "completed"


async def test_deleting_cancels() -> None:
    frontend, _ = held("Hel", "lo")
    async with sdk(frontend) as client:
        made = await begun(client)
        await frontend.arrivals.get()
        await client.responses.delete(made.id)
        await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_failure_is_stored() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InvalidRequestError("messages: too many", field="messages"))
    async with sdk(frontend) as client:
        made = await begun(client)
        failed = await ended(client, made.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("invalid_prompt", "input: too many")


async def test_a_stream_is_taken_up_again_after_its_client_has_gone() -> None:
    frontend, gate = held("Hel", "lo", "!")
    async with sdk(frontend) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", background=True, stream=True)
        first = [await anext(stream) for _ in range(3)]
        assert [event.type for event in first] == ["response.created", "response.queued", "response.in_progress"]
        response_id = first[0].response.id  # type: ignore[union-attr]
        gate.release()
        async for event in stream:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        again = await client.responses.retrieve(response_id, stream=True, starting_after=first[-1].sequence_number)
        let_go(gate)
        rest = [event async for event in again]
        assert rest[-1].type == "response.completed"
        events = [*first, *rest]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello!"
        assert not frontend.was_cancelled.is_set()
        # When it has ended, the same events come from the store.
        replayed = [event async for event in await client.responses.retrieve(response_id, stream=True)]
        assert [event.to_dict() for event in replayed] == [event.to_dict() for event in events]
        late = [event async for event in await client.responses.retrieve(response_id, stream=True, starting_after=len(events) - 2)]
        assert [event.type for event in late] == ["response.completed"]


async def test_a_stream_that_is_cancelled_ends() -> None:
    frontend, _ = held("Hel", "lo")
    async with sdk(frontend) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", background=True, stream=True)
        created = await anext(stream)
        await client.responses.cancel(created.response.id)  # type: ignore[union-attr]
        async with asyncio.timeout(5):
            rest = [event.type async for event in stream]
    assert "response.completed" not in rest


async def test_only_streams_in_the_background_can_be_read_again() -> None:
    async with sdk(FakeFrontend()) as client:
        for fields in ({"background": True}, {}):
            made = await client.responses.create(model=MODEL.name, input="Hi", **fields)  # type: ignore[call-overload]
            await ended(client, made.id)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.retrieve(made.id, stream=True)
            assert caught.value.param == "stream"


async def test_their_number_is_limited() -> None:
    frontend, gate = held("Hello")
    async with sdk(frontend, max_background_responses=1) as client:
        made = await begun(client)
        with pytest.raises(openai.RateLimitError):
            await begun(client)
        let_go(gate)
        assert (await ended(client, made.id)).status == "completed"
        await ended(client, (await begun(client)).id)


async def test_a_gateway_that_stops_lets_them_end(tmp_path: Path) -> None:
    frontend, gate = held("Hello")
    target = f"sqlite:{tmp_path}/responses.db"
    async with sdk(frontend, response_store=target) as client:
        made = await begun(client)
        await frontend.arrivals.get()
        let_go(gate)
        await ended(client, made.id)
    async with sdk(frontend, response_store=target) as client:
        assert (await client.responses.retrieve(made.id)).output_text == "Hello"


async def test_a_gateway_that_must_stop_fails_them(tmp_path: Path) -> None:
    frontend, _ = held("Hello")
    target = f"sqlite:{tmp_path}/responses.db"
    async with sdk(frontend, response_store=target, shutdown_grace_s=0.0) as client:
        made = await begun(client)
        await frontend.arrivals.get()
    async with sdk(frontend, response_store=target) as client:
        failed = await client.responses.retrieve(made.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert "stopped" in failed.error.message


async def test_a_response_whose_gateway_died_has_failed(tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path}/responses.db"
    response_id = "resp_" + "0" * 32
    store = open_store(target, 3600, 1 << 20)
    resource = {"id": response_id, "object": "response", "status": "in_progress", "background": True, "output": []}
    await store.put(StoredResponse(response_id, "", None, orjson.dumps(resource), b"[]", live_until_s=1.0))
    await store.close()
    async with sdk(FakeFrontend(), response_store=target) as client:
        failed = await client.responses.retrieve(response_id)
        assert failed.status == "failed"
        assert (await client.responses.cancel(response_id)).status == "failed"


async def test_another_gateway_can_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.apis.responses.background.LEASE_S", 0.3)
    frontend, _ = held("Hel", "lo")
    with running_store(server_program(), tmp_path) as url:
        async with sdk(frontend, response_store=url) as one, sdk(FakeFrontend(), response_store=url) as other:
            made = await begun(one)
            await frontend.arrivals.get()
            assert (await other.responses.cancel(made.id)).status == "cancelled"
            await asyncio.wait_for(frontend.was_cancelled.wait(), 5)
            assert (await one.responses.retrieve(made.id)).status == "cancelled"


async def test_a_lease_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.apis.responses.background.LEASE_S", 0.3)
    frontend, gate = held("Hello")
    async with sdk(frontend) as client:
        made = await begun(client)
        await asyncio.sleep(0.6)
        assert (await client.responses.retrieve(made.id)).status == "in_progress"
        let_go(gate)
        assert (await ended(client, made.id)).output_text == "Hello"


async def test_the_metric_counts_them() -> None:
    frontend, gate = held("Hello")
    async with sdk(frontend) as client:
        await begun(client)
        root = str(client.base_url).removesuffix("/v1/")
        page = await client._client.get(f"{root}/metrics")
        assert "triptych_gateway_background_responses 1.0" in page.text
        let_go(gate)
        await until(lambda: frontend.num_live == 0)
