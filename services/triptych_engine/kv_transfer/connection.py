"""The connection from an engine to another one, to take blocks of its KV cache."""

from __future__ import annotations

from contextlib import aclosing

from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, kv_pb2_grpc
from triptych_common.cluster.connection import Connection
from triptych_common.rpc.security.tls import Tls

_DESCRIBE_TIMEOUT_S = 10.0


class PeerConnection(Connection):
    """The engine at one address.

    Args:
        address: host:port.
        expected: the model that this engine serves. An engine with another fingerprint is not used.
        tls: see Connection.
    """

    def __init__(self, address: str, expected: common_pb2.ModelInfo, tls: Tls | None = None) -> None:
        super().__init__("engine", address, tls)
        self._expected = expected
        self._engine = engine_pb2_grpc.EngineServiceStub(self.channel)
        self.stub = kv_pb2_grpc.KvServiceStub(self.channel)

    async def serve(self) -> str:
        await self._describe()
        async with aclosing(self.readiness()) as changes:
            async for is_ready in changes:
                # One that drains still gives away what it has.
                if is_ready and not self.is_connected:
                    await self._describe()
        return "it ended the connection"

    async def _describe(self) -> None:
        description = await self._engine.Describe(engine_pb2.EngineServiceDescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S)
        self.check_fingerprint(description.model, self._expected)
        self.connected(description.instance, description.model)
