"""The gateway's gRPC port."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from triptych.v1 import common_pb2, models_pb2_grpc
from triptych_common import __version__
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.control import Health
from triptych_common.rpc.generation import SERVICES, add_services
from triptych_common.rpc.security.tls import server_credentials
from triptych_common.rpc.server import bind

from triptych_gateway.connections.http_protocol import HEADER_TIMEOUT_S, max_grpc_connections
from triptych_gateway.connections.https import Https
from triptych_gateway.rpc.interceptor import GatewayInterceptor
from triptych_gateway.rpc.models import SERVICE, ModelManagerServicer
from triptych_gateway.rpc.servicer import GatewayServicer
from triptych_gateway.state import Gateway

log = logging.getLogger(__name__)
# gRPC writes metadata that is no UTF-8 to its log, and a key may be in it.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: not str(record.msg).startswith("Invalid encoding"))
_MAX_RECEIVE = "grpc.max_receive_message_length"
#: Calls of one connection at once; further ones wait in the client.
_MAX_CALLS = 1024
#: A connection without calls is closed after this time, in milliseconds. Clients open another one by themselves.
_MAX_IDLE_MS = 60_000


class GrpcServer:
    """The gRPC server of a gateway.

    Args:
        https: the certificate of the gateway; None for no TLS.
    """

    def __init__(self, gateway: Gateway, https: Https | None) -> None:
        self._gateway, self._https = gateway, https
        self._health = Health(tuple(service.full_name for service in SERVICES))
        self._instance = common_pb2.Instance(
            id=secrets.token_hex(8), service="gateway", version=__version__, state=common_pb2.SERVER_STATE_SERVING
        )
        self._servicer = GatewayServicer(gateway, self._instance)
        self._stopping: asyncio.Task[None] | None = None

    def listen(self) -> int:
        """Take the port. Calls wait until `start`. Returns the actual port. Raises StartupError if it is taken."""
        settings = self._gateway.settings
        interceptor = GatewayInterceptor(self._gateway, _request_classes())
        self._server = server = grpc.aio.server(interceptors=[interceptor], options=_options(settings.max_body_bytes))
        add_services(server, self._servicer, self._servicer)
        models_pb2_grpc.add_ModelManagerServiceServicer_to_server(ModelManagerServicer(self._gateway), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        names = [
            *(service.full_name for service in (*SERVICES, SERVICE)),
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        ]
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
        watched = self._https.watched if self._https is not None else None
        credentials = None if watched is None else server_credentials(lambda: watched.current.files)
        return bind(server, settings.host, settings.grpc_port, "--grpc-port", credentials)

    async def start(self) -> None:
        """Take calls."""
        await self._health.set_alive()
        await self._health.set_ready(False)
        await self._server.start()
        self._following = asyncio.create_task(self._follow_readiness(), name="gRPC readiness")

    async def stop(self, grace_s: float) -> None:
        """Take no more calls. Those in flight may end within `grace_s`, if this is the first call of this method."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s), name="gRPC port")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        self._following.cancel()
        await self._health.set_ready(False)
        await self._server.stop(grace_s)
        self._servicer.uploads.close()

    async def _follow_readiness(self) -> None:
        """Tell by the health service whether a frontend is ready, as /ready does."""
        pool = self._gateway.pool
        while True:
            await pool.until(lambda: bool(pool.ready), None)
            await self._health.set_ready(True)
            await pool.until(lambda: not pool.ready, None)
            await self._health.set_ready(False)


def _request_classes() -> Mapping[str, type[Message]]:
    """Method -> the class of its requests."""
    further = (health_pb2.DESCRIPTOR.services_by_name["Health"], reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"])
    methods = [method for service in (*SERVICES, SERVICE, *further) for method in service.methods]
    return {f"/{one.containing_service.full_name}/{one.name}": GetMessageClass(one.input_type) for one in methods}


def _options(max_body_bytes: int) -> list[tuple[str, Any]]:
    return [
        *(option for option in SERVER_OPTIONS if option[0] != _MAX_RECEIVE),
        # A little more, so that a request that is too large is refused with words.
        (_MAX_RECEIVE, max_body_bytes + (1 << 20)),
        ("grpc.max_concurrent_streams", _MAX_CALLS),
        ("grpc.max_connection_idle_ms", _MAX_IDLE_MS),
        ("grpc.server_handshake_timeout_ms", int(HEADER_TIMEOUT_S * 1000)),
        ("grpc.max_allowed_incoming_connections", max_grpc_connections()),
    ]
