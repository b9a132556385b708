"""The official client against the gateway with a fake frontend, for tests of /v1/responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from triptych.v1 import common_pb2, generation_pb2

from support.fakes.frontend import Delta, FakeFrontend, Script
from support.fakes.gateway import gateway_server

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH


@asynccontextmanager
async def sdk(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway on a real socket."""
    async with (
        gateway_server(frontend, **settings) as (host, port),
        openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


def answers(*deltas: Delta, **options: Any) -> Script:
    """A script with one choice of these deltas, the last of which ends it."""
    ended = [*deltas[:-1], Delta()]
    ended[-1].CopyFrom(deltas[-1])
    if not ended[-1].finish_reason:
        ended[-1].finish_reason = STOP
    return Script([ended], **options)


def calls(name: str, arguments: str, call_id: str = "call_1", index: int = 0) -> Delta:
    """A whole tool call."""
    return Delta(tool_call=generation_pb2.ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments))
