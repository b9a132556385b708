"""`triptych mock` in this process, and scripts for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from triptych.mock.v1 import mock_pb2, mock_pb2_grpc
from triptych_mock.service import MockServer
from triptych_mock.settings import MockSettings


@dataclass
class Mock:
    """A running mock."""

    server: MockServer
    address: str

    async def calls(self, request_id: str) -> list[mock_pb2.SeenCall]:
        """What it saw of the calls with this id."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = mock_pb2_grpc.MockServiceStub(channel)
            response = await stub.GetCalls(mock_pb2.GetCallsRequest(request_id=request_id))  # type: ignore[misc]
        return list(response.calls)

    async def state(self, request_id: str, state: mock_pb2.SeenCall.State) -> None:
        """Wait until the only call with this id is in this state."""
        async with asyncio.timeout(10):
            while [call.state for call in await self.calls(request_id)] != [state]:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def mock_server(**settings: Any) -> AsyncIterator[Mock]:
    """A mock on a free port, with settings of `MockSettings`. At the end it does not wait for calls."""
    server = MockServer(MockSettings(port=0, shutdown_grace_s=0, **settings))
    await server.start()
    try:
        yield Mock(server, f"127.0.0.1:{server.server.port}")
    finally:
        await server.server.stop()


def script(**fields: Any) -> str:
    """A text that tells the mock what to answer, by the fields of `mock_pb2.Script`."""
    return json.dumps({"mock": fields})
