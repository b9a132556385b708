"""A frontend in this process, with a fake engine, both over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import control_pb2_grpc, detokenize_pb2_grpc, generation_pb2, generation_pb2_grpc, preprocess_pb2_grpc
from triptych_common.model.store import model_info
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.control import READINESS
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_frontend.service import Frontend
from triptych_frontend.settings import FrontendSettings

from support.builders.tokenizer import IM_END_ID, byte_level_tokenizer, small_model_dir
from support.fakes.engine import FakeEngine, Script, says
from support.fakes.media_engine import FakeMediaEngine
from support.grpc_server import serving

TOKENIZER = byte_level_tokenizer()


def ids(text: str) -> list[int]:
    """Token ids of a text, in which special tokens are recognized."""
    return TOKENIZER.encode(text).ids


def hello() -> Script:
    """A script: "Hello there", then the model's end-of-sequence token."""
    return says(ids("Hello there"), stop_token_id=IM_END_ID)


@dataclass
class Bench:
    """The frontend, its fake engine, and the stubs for a test."""

    engine: FakeEngine
    frontend: Frontend
    channel: grpc.aio.Channel
    control_channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self.channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self.channel)
        self.control = control_pb2_grpc.ControlServiceStub(self.control_channel)
        self._health = health_pb2_grpc.HealthStub(self.channel)

    def chat(self, request: generation_pb2.ChatRequest, output_mode: int = 0, **call: Any) -> Any:
        """A chat, streamed."""
        return self.generation.ChatStream(streamed(request, output_mode=output_mode), **call)

    def complete(self, request: generation_pb2.CompleteRequest, output_mode: int = 0, **call: Any) -> Any:
        """A completion, streamed."""
        message = generation_pb2.CompleteStreamRequest(complete=request, output_mode=output_mode)
        return self.generation.CompleteStream(message, **call)

    async def until_ready(self, ready: bool = True) -> None:
        """Wait until the frontend reports this readiness."""
        wanted = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        # grpc gives a first connection up at once, if the machine is too busy for its handshake.
        watch = self._health.Watch(health_pb2.HealthCheckRequest(service=READINESS), wait_for_ready=True)
        async for response in watch:
            if response.status == wanted:
                watch.cancel()
                return


@asynccontextmanager
async def frontend_bench(
    script: Script | None = None,
    model: Path | None = None,
    engine_model: Any = None,
    ready: bool = True,
    engine_class: type[FakeEngine] = FakeEngine,
    certs: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Start a fake engine and a frontend that uses it, on free ports.

    Args:
        script: the engine's script; by default `hello`.
        engine_model: the ModelInfo that the engine reports; by default that of the frontend's model.
        ready: wait until the frontend has connected to the engine.
        engine_class: a fake engine with further abilities.
        certs: directory with a directory of certificates for each role: mutual TLS.
        settings: fields of FrontendSettings.
    """
    path = model or small_model_dir()
    engine = engine_class(engine_model or model_info(path, path.name), script or hello())
    if isinstance(engine, FakeMediaEngine):
        engine.encoder_addresses = tuple(settings.get("encoder_addresses", ()))
    tls = {role: Tls.of(certs and certs / role, role) for role in (Role.ENGINE, Role.CLIENT, Role.OPERATOR)}
    if certs is not None:
        settings["tls_dir"] = certs / Role.FRONTEND
    async with serving(engine.register, tls=tls[Role.ENGINE]) as address:
        frontend = Frontend(FrontendSettings(**{"model": str(path), "port": 0, "engine_addresses": (address,)} | settings))
        async with (
            frontend.running(),
            open_channel(f"127.0.0.1:{frontend.server.port}", tls=tls[Role.CLIENT]) as channel,
            open_channel(f"127.0.0.1:{frontend.server.control_port}", tls=tls[Role.OPERATOR]) as control_channel,
        ):
            bench = Bench(engine, frontend, channel, control_channel)
            if ready:
                await bench.until_ready()
            yield bench


def chat_request(text: str = "Hi", **fields: Any) -> generation_pb2.ChatRequest:
    """A conversation of one user message."""
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text=text)])
    return generation_pb2.ChatRequest(**{"messages": [message]} | fields)


def streamed(request: generation_pb2.ChatRequest, **fields: Any) -> generation_pb2.ChatStreamRequest:
    """The request for ChatStream."""
    return generation_pb2.ChatStreamRequest(chat=request, **fields)


def joined(responses: list[Any], index: int = 0) -> str:
    """The joined text of one choice's deltas."""
    return "".join(choice.text for response in responses for choice in response.choices if choice.index == index)


def last_delta(responses: list[Any], index: int = 0) -> generation_pb2.ChoiceDelta:
    """The delta that ended a choice. There must be exactly one."""
    (last,) = (choice for response in responses for choice in response.choices if choice.index == index and choice.finish_reason)
    return last
