"""A whole gateway with its gRPC port, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from triptych.errors import TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import detokenize_pb2_grpc, generation_pb2, generation_pb2_grpc, preprocess_pb2_grpc
from triptych_common.rpc.channels import CHANNEL_OPTIONS
from triptych_gateway.connections.https import Https
from triptych_gateway.rpc.server import GrpcServer
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway

from support.fakes.frontend import MODEL, FakeFrontend, running
from support.keys import KeyStore


@dataclass
class GrpcPort:
    """The port, and stubs of its services over a channel without retries."""

    gateway: Gateway
    address: str
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self.channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self.channel)


@asynccontextmanager
async def opened(https_dir: Path | None = None, **settings: Any) -> AsyncIterator[GrpcPort]:
    """A gateway with these settings."""
    gateway = Gateway(GatewaySettings(grpc_port=0, https_dir=https_dir, **settings))
    gateway.grpc_server = grpc_server = GrpcServer(gateway, None if https_dir is None else Https(https_dir))
    address = f"127.0.0.1:{grpc_server.listen()}"
    await gateway.open()
    options = [*CHANNEL_OPTIONS, ("grpc.enable_retries", 0)]
    try:
        async with grpc.aio.insecure_channel(address, options) as channel:
            yield GrpcPort(gateway, address, channel)
    finally:
        await gateway.close()


@asynccontextmanager
async def grpc_port_of(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[GrpcPort]:
    """A gateway in front of this frontend, which is ready."""
    async with running(frontend) as frontend_address, opened(frontend_addresses=(frontend_address,), **settings) as port:
        await port.gateway.pool.until_ready()
        yield port


def with_key(keys: KeyStore, name: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with this key."""
    return tuple(keys.headers(name).items())


def chat(*texts: str, **fields: object) -> generation_pb2.ChatRequest:
    """A chat of one message with these texts."""
    content = [generation_pb2.ContentPart(text=text) for text in texts or ("Hi",)]
    message = generation_pb2.ChatMessage(role="user", content=content)
    return generation_pb2.ChatRequest(model=MODEL.name, messages=[message], **fields)


async def refusal(call: object) -> TriptychError:
    """The error of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return from_rpc_error(raised.value)
