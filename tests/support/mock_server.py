"""`triptych mock` in the test's own event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from triptych_mock.service import MockServer
from triptych_mock.settings import MockSettings


@asynccontextmanager
async def running_mock(**settings: object) -> AsyncIterator[tuple[MockServer, str]]:
    """The mock and its address, for the duration of the block."""
    mock = MockServer(MockSettings(port=0, shutdown_grace_s=0, **settings))
    await mock.start()
    try:
        yield mock, f"127.0.0.1:{mock.server.port}"
    finally:
        await mock.server.stop()


def script(**fields: object) -> str:
    """A prompt that tells the mock how to answer it; see mock.proto."""
    return json.dumps({"mock": fields})
