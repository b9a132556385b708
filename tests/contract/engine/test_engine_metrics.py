"""What Prometheus sees of an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.drivers.engine_service import a_message
from support.media_stack import an_engine
from triptych.v1 import engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel

pytestmark = pytest.mark.model
#: What Prometheus 2 sends. In OpenMetrics, the client library would replace the colons of vLLM's names.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5"
)


async def test_cached_tokens_and_preemptions_are_counted(tmp_path: Path) -> None:
    path = save_random_model(tmp_path / "model", a_tiny_llama_config())
    # KV cache for 20 blocks of 16 tokens; two layers, two heads of 16 float32, keys and values.
    kv_cache = 20 * 16 * (2 * 2 * 16 * 4 * 2)
    async with (
        an_engine(path, metrics_port=0, kv_cache_memory=kv_cache) as engine,
        open_channel(f"127.0.0.1:{engine._server.port}") as channel,
        httpx.AsyncClient(trust_env=False, headers={"accept": ACCEPT}) as client,
    ):
        stub = engine_pb2_grpc.EngineServiceStub(channel)

        async def generate(request: engine_pb2.EngineRequest) -> engine_pb2.SequenceOutput:
            outputs = [one.output async for one in stub.Generate(engine_pb2.GenerateRequest(request=request))]
            return outputs[-1]

        async def lines() -> list[str]:
            return (await client.get(f"http://127.0.0.1:{engine.metrics_port}/metrics")).text.splitlines()

        before = await lines()
        lasts = [await generate(a_message(name, [*range(3, 53)])) for name in ("first", "again")]
        after = await lines()
        crowd = [a_message(f"r{i}", [3 + i] * 20, max_tokens=150, ignore_eos=True) for i in range(4)]
        lasts = await asyncio.gather(*map(generate, crowd))
        crowded = await lines()
    assert "vllm:num_requests_running" in "".join(after)
    assert {"triptych_engine_ready 1.0", "triptych_engine_cached_tokens_total 0.0"} <= {*before}
    assert {"triptych_engine_cached_tokens_total 48.0", "triptych_engine_preemptions_total 0.0"} <= {*after}
    num_preemptions = sum(last.timings.num_preemptions for last in lasts)
    assert num_preemptions > 0
    assert f"triptych_engine_preemptions_total {float(num_preemptions)}" in crowded
