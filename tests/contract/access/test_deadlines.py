"""Each call with one answer that a service makes to another has a deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from support import grpc_server
from support.builders.frontend import frontend_bench
from support.builders.pooling import an_embedder
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import client_of, gateway_app
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.pooling import served_model
from triptych_common.rpc.channels import WORK_TIMEOUT_S
from triptych_common.rpc.interceptors import CallInterceptor, wrapped


class Deadlines(CallInterceptor):
    """Notes of each call with one answer how long it may take, in seconds."""

    seen: dict[str, float | None] = {}  # noqa: RUF012 - servers make their own instances

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        handler = await super().intercept_service(continuation, handler_call_details)
        if handler is None or handler.response_streaming:
            return handler
        name = handler_call_details.method.rsplit("/", 1)[1]
        return wrapped(handler, lambda behaviour: self._noted(behaviour, name))

    def _noted(self, behaviour: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self.seen[name] = context.time_remaining()
            return await behaviour(request, context)

        return call


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    monkeypatch.setattr(grpc_server, "CallInterceptor", Deadlines)
    monkeypatch.setattr(Deadlines, "seen", {})
    return Deadlines.seen


async def test_the_gateways_calls_have_deadlines(seen: dict[str, float | None]) -> None:
    async with gateway_app(FakeFrontend()) as app, client_of(app) as client:
        name = {"model": MODEL.name}
        for path, body in {
            "/tokenize": name | {"prompt": "Hi"},
            "/detokenize": name | {"tokens": [72]},
            "/v1/embeddings": name | {"input": "Hi"},
            "/v1/score": name | {"text_1": "Hi", "text_2": "there"},
            "/classify": name | {"input": "Hi"},
            "/v1/messages/count_tokens": name | {"messages": [{"role": "user", "content": "Hi"}]},
        }.items():
            response = await client.post(path, json=body)
            assert response.status_code == 200, (path, response.text)
        for path in ("/v1/models", "/load"):
            assert (await client.get(path)).status_code == 200
        await app.state.gateway.pool.connections[0].upload(b"x", common_pb2.CallContext())
    assert {*seen} == {
        "Classify", "Describe", "Detokenize", "Embed", "GetLoad", "ListModels", "Preprocess", "Score", "Tokenize", "UploadMedia",
    }  # fmt: skip
    assert _without_deadline(seen) == []


async def test_the_frontends_calls_to_an_engine_have_deadlines(seen: dict[str, float | None], tmp_path: Path) -> None:
    model = an_embedder(tmp_path, "bert")
    info, _ = served_model(model, model.name, None, "auto")
    async with frontend_bench(model=model, engine_model=info) as bench:
        inputs = [generation_pb2.EmbedInput(text="w0 w1")]
        await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs), timeout=60)
    assert seen.keys() == {"Embed"}
    assert _without_deadline(seen) == []


def _without_deadline(seen: dict[str, float | None]) -> list[str]:
    # gRPC rounds long timeouts up.
    return [method for method, timeout_s in seen.items() if timeout_s is None or timeout_s > WORK_TIMEOUT_S * 1.1]
