"""The connection from a frontend or an engine to one encoder: its identity, its readiness, and its stub."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar

import grpc
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc

from triptych_common.cluster.connection import Connection, ConnectionRefusedByUsError
from triptych_common.rpc.security.tls import Tls

_DESCRIBE_TIMEOUT_S = 10.0
#: The same timeout for an encoder that did not answer another call. Until it answers, it is used only if there is no other.
_DOUBT_TIMEOUT_S = 2.0
#: An encoder that has not answered for the first time is asked who it is, and has the second time to say so, in seconds.
_PATIENCE_S, _PROBE_TIMEOUT_S = 2.0, 3.0

T = TypeVar("T")


class SilentEncoderError(ServiceUnavailableError):
    """An encoder accepted a call but did not answer it."""


class EncoderConnection(Connection):
    """The encoder at one address.

    Args:
        address: host:port.
        expected: the model that this service serves. An encoder with another fingerprint is not used.
        others: returns the connected encoders. An encoder whose embeddings differ from theirs is not used.
        tls: see Connection.
    """

    def __init__(
        self,
        address: str,
        expected: common_pb2.ModelInfo,
        others: Callable[[], Iterable[EncoderConnection]] = tuple,
        tls: Tls | None = None,
    ) -> None:
        super().__init__("encoder", address, tls)
        self._expected = expected
        self._others = others
        self.stub = encoder_pb2_grpc.EncoderServiceStub(self.channel)
        self.description = encoder_pb2.DescribeResponse()

    async def serve(self) -> str:
        await self._describe(_DOUBT_TIMEOUT_S if self.in_doubt.is_set() else _DESCRIBE_TIMEOUT_S)
        watch = asyncio.create_task(self._watch_readiness())
        doubted = asyncio.create_task(self.in_doubt.wait())
        try:
            while not watch.done():
                await asyncio.wait((watch, doubted), return_when=asyncio.FIRST_COMPLETED)
                if doubted.done() and not watch.done():
                    await self._describe(_DOUBT_TIMEOUT_S)
                    doubted = asyncio.create_task(self.in_doubt.wait())
            watch.result()
            return "it ended the connection"
        finally:
            for task in (watch, doubted):
                task.cancel()
            await asyncio.gather(watch, doubted, return_exceptions=True)

    async def answered(self, call: Awaitable[T]) -> T:
        """The result of a call. An encoder that takes long must say meanwhile who it is, or it has stopped.

        Raises:
            SilentEncoderError: it does not. The call is cancelled.
        """
        answer = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({answer}, timeout=_PATIENCE_S))[0]:
                try:
                    await self.stub.Describe(encoder_pb2.DescribeRequest(), timeout=_PROBE_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    if answer.done():
                        break
                    self.doubt()
                    message = f"the encoder at {self.address} does not even say who it is ({error.code().name})"
                    raise SilentEncoderError(message, retry_after_s=1) from error
            return await answer
        finally:
            answer.cancel()

    async def _describe(self, timeout_s: float) -> None:
        description = await self.stub.Describe(encoder_pb2.DescribeRequest(), timeout=timeout_s)
        self.check_fingerprint(description.model, self._expected)
        for other in self._others():
            if (
                other is not self
                and other.is_connected
                and other.description.embedding_fingerprint != description.embedding_fingerprint
            ):
                raise ConnectionRefusedByUsError(
                    f"its embeddings differ from those of {other.address}: other weights, processor or dtype"
                )
        self.description = description
        self.connected(description.instance, description.model)

    async def _watch_readiness(self) -> None:
        """Follow the readiness of the encoder. Ends, or raises AioRpcError, when the connection ends."""
        async with aclosing(self.readiness()) as changes:
            async for is_ready in changes:
                if not is_ready:
                    self.goes_away()
                elif self.is_going_away and self.instance is not None:
                    await self._describe(_DESCRIBE_TIMEOUT_S)
