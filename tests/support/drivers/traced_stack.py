"""All services in this process, with a tiny model, real gRPC and HTTP between them, and a collector of their traces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
from triptych.v1 import generation_pb2_grpc
from triptych_common.model.store import has_towers
from triptych_common.rpc.channels import open_channel
from triptych_frontend.service import Frontend
from triptych_frontend.settings import FrontendSettings
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

from support.builders.media_files import checkpoint
from support.drivers.encoder import an_encoder
from support.fakes.collector import Collector, collecting
from support.fakes.gateway import serving_http, until_connected
from support.media_stack import an_engine
from support.waiting import until

FAMILY = "llava_siglip"


@dataclass
class TracedStack:
    """The services' clients, and what the collector got."""

    collector: Collector
    client: httpx.AsyncClient
    channel: grpc.aio.Channel
    frontend: Frontend
    model: str

    @property
    def generation(self) -> generation_pb2_grpc.GenerationServiceStub:
        return generation_pb2_grpc.GenerationServiceStub(self.channel)

    def body(self, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A chat completion of few tokens. Without parts it asks a question."""
        content = list(parts) or [{"type": "text", "text": "Hi"}]
        defaults = {"model": self.model, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        return {**defaults, "messages": [{"role": "user", "content": content}], **fields}

    async def chat(self, request_id: str, *parts: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """POST /v1/chat/completions, read to its end."""
        sent = {"x-request-id": request_id, **(headers or {})}
        return await self.client.post("/v1/chat/completions", json=self.body(*parts, **fields), headers=sent)


@asynccontextmanager
async def traced_stack(monkeypatch: Any, model: Path | None = None, **gateway_settings: Any) -> AsyncIterator[TracedStack]:
    """Run the stack, with an encoder if the model has towers. It is a small LLaVA by default."""
    path = model or checkpoint(FAMILY)
    async with AsyncExitStack() as running:
        collector = await running.enter_async_context(collecting(monkeypatch))
        traced: dict[str, Any] = {"otlp_traces_endpoint": collector.endpoint}
        encoders: tuple[str, ...] = ()
        if has_towers(path):
            encoder = await running.enter_async_context(an_encoder(path, dtype="float32", served_model_name=path.name, **traced))
            encoders = (f"127.0.0.1:{encoder.service.port}",)
        engine = await running.enter_async_context(an_engine(path, encoder_addresses=encoders, **traced))
        frontend = Frontend(
            FrontendSettings(
                model=str(path),
                served_model_name=path.name,
                port=0,
                engine_addresses=(f"127.0.0.1:{engine._server.port}",),
                encoder_addresses=encoders,
                allow_private_media_addresses=True,
                shutdown_grace_s=1,
                **traced,
            )
        )
        await running.enter_async_context(frontend.running())
        address = f"127.0.0.1:{frontend.server.port}"
        app = create_app(GatewaySettings(frontend_addresses=(address,), **traced | gateway_settings))
        host, port = await running.enter_async_context(serving_http(app))
        await until(lambda: hasattr(app.state.gateway, "pool"))
        await until_connected(app)
        await until(lambda: bool(app.state.gateway.pool.ready))
        client = httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30, trust_env=False)
        yield TracedStack(
            collector,
            await running.enter_async_context(client),
            await running.enter_async_context(open_channel(address)),
            frontend,
            path.name,
        )
