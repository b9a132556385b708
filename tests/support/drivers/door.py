"""A whole gateway with its gRPC port, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from triptych.v1 import detokenize_pb2_grpc, generation_pb2_grpc, preprocess_pb2_grpc
from triptych_common.rpc.channels import CHANNEL_OPTIONS
from triptych_gateway.connections.https import Https
from triptych_gateway.rpc.server import GrpcDoor
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway

from support.fakes.frontend import FakeFrontend, running


@dataclass
class Door:
    """The port, and stubs of its services over a channel without retries."""

    gateway: Gateway
    address: str
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self.channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self.channel)


@asynccontextmanager
async def opened(https_dir: Path | None = None, **settings: Any) -> AsyncIterator[Door]:
    """A gateway with these settings."""
    gateway = Gateway(GatewaySettings(grpc_port=0, https_dir=https_dir, **settings))
    gateway.door = door = GrpcDoor(gateway, None if https_dir is None else Https(https_dir))
    address = f"127.0.0.1:{door.listen()}"
    await gateway.open()
    options = [*CHANNEL_OPTIONS, ("grpc.enable_retries", 0)]
    try:
        async with grpc.aio.insecure_channel(address, options) as channel:
            yield Door(gateway, address, channel)
    finally:
        await gateway.close()


@asynccontextmanager
async def door_of(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[Door]:
    """A gateway in front of this frontend, which is ready."""
    async with running(frontend) as frontend_address, opened(frontend_addresses=(frontend_address,), **settings) as door:
        await door.gateway.pool.until_ready()
        yield door
