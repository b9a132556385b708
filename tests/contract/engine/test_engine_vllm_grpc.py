"""vLLM's gRPC contract at an engine, on the real scheduler and step loop, with a runner that has no model."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import threading
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as smg_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as vllm_grpc
from support.drivers.engine_service import MODEL, Served, alone, an_engine
from support.grpc_server import serving
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.rpc.channels import open_channel
from triptych_engine.rpc.vllm.convert import Sequences, engine_request
from triptych_engine.rpc.vllm.servicer import VllmServicer
from triptych_engine.settings import EngineSettings


@dataclass
class Routed:
    """An engine, and a router's stub for it."""

    engine: Served
    stub: Any


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": [2, 7], "bos_token_id": 1})
    )
    # Larger than a chunk, also as an archive.
    (tmp_path / "tokenizer.json").write_text(random.Random(0).randbytes(100_000).hex())
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


@asynccontextmanager
async def routed(folder: Path) -> AsyncIterator[Routed]:
    async with an_engine(with_kv_events=True) as engine:
        servicer = VllmServicer(engine.servicer, lambda: engine.outbox.num_live_requests, engine.kv_events)
        servicer.attach(engine.core, MODEL, folder, EngineSettings(max_num_seqs=4), generates=True)
        async with (
            serving(lambda server: vllm_grpc.add_VllmEngineServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            yield Routed(engine, vllm_grpc.VllmEngineStub(channel))


def a_request(request_id: str, prompt: list[int], *, stream: bool = True, **params: Any) -> vllm_pb2.GenerateRequest:
    sampling = vllm_pb2.SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params})
    tokenized = vllm_pb2.TokenizedInput(input_ids=prompt)
    return vllm_pb2.GenerateRequest(request_id=request_id, tokenized=tokenized, sampling_params=sampling, stream=stream)


async def test_a_stream_has_the_tokens_in_chunks_and_then_its_end(folder: Path) -> None:
    async with routed(folder) as ours:
        responses = [response async for response in ours.stub.Generate(a_request("r", [4, 5]))]
        chunks = [response.chunk for response in responses if response.HasField("chunk")]
        assert [token for chunk in chunks for token in chunk.token_ids] == alone([4, 5])
        assert sum(chunk.completion_tokens for chunk in chunks) == 8
        assert {chunk.prompt_tokens for chunk in chunks} == {2}
        last = responses[-1].complete
        assert (last.finish_reason, last.prompt_tokens) == ("length", 2)


async def test_without_a_stream_each_sequence_comes_whole(folder: Path) -> None:
    async with routed(folder) as ours:
        request = a_request("r", [4, 5], stream=False, n=3)
        responses = [response.complete async for response in ours.stub.Generate(request)]
        assert sorted(one.index for one in responses) == [0, 1, 2]
        for one in responses:
            assert list(one.output_ids) == alone([4, 5])
            assert one.completion_tokens == 8


async def test_a_cancelled_stream_and_an_abort_free_the_blocks(folder: Path) -> None:
    async with routed(folder) as ours:
        gate = ours.engine.runner.gate = threading.Semaphore(0)

        async def step_until(work: Any) -> Any:
            """Let the engine make its steps one by one, until this is done. None of the requests ends by itself meanwhile."""
            task = asyncio.ensure_future(work)
            while not task.done():
                gate.release()
                await asyncio.wait({task}, timeout=0.02)
            return task.result()

        cancelled = ours.stub.Generate(a_request("a", [1], max_tokens=200))
        assert await step_until(cancelled.read()) is not grpc.aio.EOF
        cancelled.cancel()
        aborted = ours.stub.Generate(a_request("b", [2], max_tokens=200))
        assert await step_until(aborted.read()) is not grpc.aio.EOF
        await step_until(_abort(ours.stub, "b", "nobody"))
        last = None
        while (response := await step_until(aborted.read())) is not grpc.aio.EOF:
            last = response
        assert last is not None
        assert last.complete.finish_reason == "abort"
        await step_until(ours.engine.until_idle())
        await _abort(ours.stub, "b")  # it may come after the end


async def _abort(stub: Any, *request_ids: str) -> None:
    await stub.Abort(vllm_pb2.AbortRequest(request_ids=request_ids))


@pytest.mark.slow
async def test_10000_cancels_leak_no_block(folder: Path) -> None:
    chance = random.Random(0)
    async with routed(folder) as ours:

        async def one(number: int) -> None:
            call = ours.stub.Generate(a_request(f"r{number}", [1 + number % 5] * chance.randint(1, 20), max_tokens=100))
            for _ in range(chance.randint(0, 3)):
                if await call.read() is grpc.aio.EOF:
                    return
            if chance.random() < 0.5:
                await _abort(ours.stub, f"r{number}")
            call.cancel()

        for first in range(0, 10_000, 50):
            await asyncio.gather(*(one(number) for number in range(first, first + 50)))
        await ours.engine.until_idle()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"text": "words"}, "text"),
        ({"mm_inputs": vllm_pb2.MultimodalInputs()}, "mm_inputs"),
        ({"extra_mm_inputs": [vllm_pb2.MultimodalInputs()]}, "extra_mm_inputs"),
        ({"sampling_params": vllm_pb2.SamplingParams(structural_tag="{}")}, "structural_tag"),
        ({"sampling_params": vllm_pb2.SamplingParams(logprobs=-1)}, "logprobs"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(folder: Path, fields: dict[str, Any], field: str) -> None:
    async with routed(folder) as ours:
        request = vllm_pb2.GenerateRequest(request_id="r", tokenized=vllm_pb2.TokenizedInput(input_ids=[1]))
        request.MergeFrom(vllm_pb2.GenerateRequest(**fields))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ours.stub.Generate(request).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert field in caught.value.details()


def test_numbers_that_are_not_set_mean_what_vllm_means() -> None:
    request = vllm_pb2.GenerateRequest(request_id="r", tokenized=vllm_pb2.TokenizedInput(input_ids=[1, 2, 3]))
    own = engine_request(request)
    assert (own.n, own.sampling.temperature, own.sampling.top_p, own.sampling.repetition_penalty) == (1, 1.0, 1.0, 1.0)
    assert not any(own.sampling.HasField(field) for field in ("max_tokens", "seed", "logprobs", "prompt_logprobs"))
    params = vllm_pb2.SamplingParams(
        truncate_prompt_tokens=2, seed=-5, logit_bias={3: 1.5}, choice={"choices": ["a", "b"]}, top_k=4
    )
    request.sampling_params.CopyFrom(params)
    own = engine_request(request)
    assert list(own.prompt_token_ids) == [2, 3]
    assert (own.sampling.seed, own.sampling.logit_bias[3], own.sampling.top_k) == (-5, 1.5, 4)
    assert list(own.constraint.choice.values) == ["a", "b"]


async def test_a_router_learns_what_it_needs(folder: Path) -> None:
    async with routed(folder) as ours:
        model = await ours.stub.GetModelInfo(vllm_pb2.GetModelInfoRequest())
        assert (model.served_model_name, model.is_generation, model.max_context_length) == ("fake", True, 256)
        assert (list(model.eos_token_ids), model.bos_token_id, list(model.architectures)) == ([2, 7], 1, ["LlamaForCausalLM"])
        server = await ours.stub.GetServerInfo(vllm_pb2.GetServerInfoRequest())
        assert (server.server_type, server.active_requests, server.max_num_seqs) == ("vllm-grpc", 0, 4)
        (load,) = (await ours.stub.GetLoads(vllm_pb2.GetLoadsRequest())).loads
        assert (load.num_running_reqs, load.token_usage, load.max_total_num_tokens) == (0, 0.0, 64 * 4)
        assert (await ours.stub.FlushCache(smg_pb2.FlushCacheRequest())).success
        chunks = [chunk async for chunk in ours.stub.GetTokenizer(smg_pb2.GetTokenizerRequest())]
        assert len(chunks) > 1
        content = b"".join(chunk.data for chunk in chunks)
        assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(content).hexdigest()]
        assert sorted(zipfile.ZipFile(io.BytesIO(content)).namelist()) == ["config.json", "tokenizer.json"]


async def test_a_draining_engine_is_not_healthy_and_refuses(folder: Path) -> None:
    async with routed(folder) as ours:
        assert (await ours.stub.HealthCheck(vllm_pb2.HealthCheckRequest())).healthy
        ours.engine.servicer.refuse("the engine is draining")
        health = await ours.stub.HealthCheck(vllm_pb2.HealthCheckRequest())
        assert (health.healthy, health.message) == (False, "the engine is draining")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ours.stub.Generate(a_request("r", [1])).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_log_probabilities_keep_their_positions() -> None:
    request = a_request("r", [7, 8], stream=False, logprobs=2, prompt_logprobs=2)
    sequences = Sequences(request, [7, 8])
    entry = engine_pb2.TokenLogprobs(token_id=8, logprob=-1.5, top_token_ids=[3, 8], top_logprobs=[-0.5, -1.5])
    first = engine_pb2.SequenceOutput(token_ids=[8], logprobs=[entry], prompt_logprobs=[entry])
    assert sequences.responses(first) == []
    last = engine_pb2.SequenceOutput(token_ids=[9], logprobs=[entry], finish_reason=common_pb2.FINISH_REASON_STOP, stop_token_id=9)
    (response,) = sequences.responses(last)
    whole = response.complete
    assert (list(whole.output_ids), whole.finish_reason, whole.WhichOneof("matched_stop")) == ([8, 9], "stop", None)
    assert list(whole.output_logprobs.token_logprobs) == [-1.5, -1.5]
    assert [list(top.token_ids) for top in whole.output_logprobs.top_logprobs] == [[3, 8], [3, 8]]
    assert [one.HasField("value") for one in whole.input_logprobs.token_logprobs] == [False, True]
    assert list(whole.input_logprobs.token_ids) == [7, 8]
    assert [list(top.token_ids) for top in whole.input_logprobs.top_logprobs] == [[], [3, 8]]
