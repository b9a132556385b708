"""GET /v1/models speaks to OpenAI's and to Anthropic's clients."""

from __future__ import annotations

import anthropic
import pytest
from support.drivers.anthropic import async_client
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client


async def test_the_official_client_lists_models() -> None:
    async with async_client(FakeFrontend()) as client:
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve(MODEL.name)
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("other")
    assert models == [one]
    assert (one.id, one.type, one.display_name, one.max_tokens) == (MODEL.name, "model", MODEL.name, MODEL.max_model_len)
    assert one.created_at.tzinfo is not None


async def test_pages() -> None:
    async with async_client(FakeFrontend()) as client:
        first = await client.models.list(limit=1)
        after = await client.models.list(after_id=MODEL.name)
        before = await client.models.list(before_id=MODEL.name)
        active = await client.models.list(lifecycle=["active", "retired"])
        retired = await client.models.list(lifecycle=["retired"])
    assert (first.first_id, first.last_id, first.has_more) == (MODEL.name, MODEL.name, False)
    assert (after.data, after.first_id, after.has_more) == ([], None, False)
    assert before.data == retired.data == []
    assert active.data == first.data


async def test_other_clients_get_openais_shape() -> None:
    async with gateway_client() as client:
        models = (await client.get("/v1/models")).json()
        one = (await client.get(f"/v1/models/{MODEL.name}")).json()
    assert models["object"] == "list"
    assert models["data"] == [one]
    assert one["object"] == "model"
