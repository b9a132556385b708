"""An encoder whose fetches are written out by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from triptych_common.errors import EmbeddingUnavailableError
from triptych_common.pb import common_pb2, encoder_pb2
from triptych_common.status import to_request_error

from fakes.encoder import FakeEncoder


class FetchEncoder(FakeEncoder):
    """Sends what it was told to for a key, and nothing else."""

    def __init__(self, model: common_pb2.ModelInfo) -> None:
        super().__init__(model)
        #: key -> messages that a fetch of it gets; others are not found.
        self.fetches: dict[bytes, list[encoder_pb2.FetchResponse]] = {}
        #: When set, fetches wait for it.
        self.fetch_gate: asyncio.Event | None = None

    async def Fetch(
        self, request: encoder_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[encoder_pb2.FetchResponse]:
        self.counts["fetch"] += 1
        try:
            if self.fetch_gate is not None:
                await self.fetch_gate.wait()
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise
        for key in request.keys:
            lost = to_request_error(EmbeddingUnavailableError("it is gone"))
            for message in self.fetches.get(key, [encoder_pb2.FetchResponse(key=key, last_chunk_of_item=True, error=lost)]):
                yield message
