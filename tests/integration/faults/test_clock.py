"""The wall clock jumps, for example when a machine that slept asks a time server."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.fakes.gateway import client_of, gateway_app


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_response_in_the_background_survives_it(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(0)
    frontend.script = says("Hel", "lo", gate=gate)
    async with gateway_app(frontend) as app, client_of(app) as client:
        body = {"model": MODEL.name, "input": "Hi", "background": True}
        response_id = (await client.post("/v1/responses", json=body)).json()["id"]
        await frontend.arrivals.get()
        monkeypatch.setattr(app.state.responses.history, "_clock", lambda: time.time() + jump_s)
        assert (await client.get(f"/v1/responses/{response_id}")).json()["status"] in ("queued", "in_progress")
        for _ in range(3):
            gate.release()
        async with asyncio.timeout(10):
            while (answer := (await client.get(f"/v1/responses/{response_id}")).json())["status"] == "in_progress":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", "Hello")
