"""WebSockets stay open while a turn waits, and end when their client has gone without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import websockets
from support.certificates import issue, write
from support.drivers.https_gateway import https_gateway, trusting
from support.fakes.frontend import MODEL, FakeFrontend, running, says
from support.waiting import until
from triptych_gateway import main
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import Event


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_PING_S", 0.1)
    monkeypatch.setattr(main, "_PONG_S", 0.3)


class _Counting(ClientConnection):
    """Counts the pings that it answers."""

    num_pings = 0

    def process_event(self, event: Event) -> None:
        self.num_pings += isinstance(event, Frame) and event.opcode is Opcode.PING
        super().process_event(event)


class _Mute(ClientConnection):
    """Sends nothing more once it is mute, not even a pong, as a client whose machine has gone."""

    is_mute = False

    def send_data(self) -> None:
        if self.is_mute:
            self.protocol.data_to_send()
        else:
            super().send_data()


@asynccontextmanager
async def waiting_turn(frontend: FakeFrontend, tmp_path: Path, kind: type[ClientConnection]) -> AsyncIterator[Any]:
    """A connection of this kind whose turn waits for the frontend."""
    https = write(tmp_path / "https", issue("127.0.0.1"))
    frontend.script = says("Hel", "lo", gate=asyncio.Semaphore(0))
    async with (
        running(frontend) as address,
        https_gateway(https, frontend_addresses=(address,)) as client,
        websockets.connect(
            f"wss://127.0.0.1:{client.base_url.port}/v1/responses", ssl=trusting(), create_connection=kind, ping_interval=None
        ) as connection,
    ):
        await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, "input": "Hi"}).decode())
        yield connection


async def test_a_turn_that_waits_gets_pings_and_then_its_answer(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with asyncio.timeout(30), waiting_turn(frontend, tmp_path, _Counting) as connection:
        await until(lambda: connection.num_pings >= 3)
        script: Any = frontend.script
        script.gate.release()
        script.gate.release()
        while (event := orjson.loads(await connection.recv()))["type"] != "response.completed":
            pass
        assert event["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_a_client_that_answers_no_ping_is_closed_and_its_turn_cancelled(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with asyncio.timeout(15), waiting_turn(frontend, tmp_path, _Mute) as connection:
        connection.is_mute = True
        await frontend.was_cancelled.wait()
