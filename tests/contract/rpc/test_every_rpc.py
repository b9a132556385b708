"""Whatever a valid message says, each RPC ends in time and not with INTERNAL, the service goes on, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from support.builders.frontend import chat_request, ids, joined, streamed
from support.builders.media_files import checkpoint
from support.drivers.encoder import an_encoder
from support.drivers.media_frontend import PICTURE, media_bench, request
from support.fakes.engine import says_with_logprobs
from support.media_stack import an_engine
from support.mock import mock_server
from support.rpc_fuzz import Fuzzer, Mutator
from support.waiting import until
from triptych.mock.v1 import mock_pb2
from triptych.v1 import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    detokenize_pb2,
    encoder_pb2,
    engine_pb2,
    engine_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    kv_pb2,
    preprocess_pb2,
)
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security.access import RULES

GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
PREPROCESS = preprocess_pb2.DESCRIPTOR.services_by_name["PreprocessService"]
DETOKENIZE = detokenize_pb2.DESCRIPTOR.services_by_name["DetokenizeService"]
ENCODER = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]
KV = kv_pb2.DESCRIPTOR.services_by_name["KvService"]
ENGINE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
CONTROL = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
MOCK = mock_pb2.DESCRIPTOR.services_by_name["MockService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
FRONTEND = (GENERATION, PREPROCESS, DETOKENIZE)
EVERYWHERE = (HEALTH, REFLECTION)
#: All runs make the same messages.
SEED = 15
#: Calls of each method, and many more in the run by name.
LENGTHS = [pytest.param(4, id="short"), pytest.param(300, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
ENDLESS = frozenset(
    {
        "grpc.health.v1.Health/Watch",
        "triptych.v1.EngineService/WatchLoad",
        "triptych.v1.EngineService/WatchBlocks",
        "triptych.v1.EncoderService/WatchEvictions",
        "triptych.v1.EncoderService/Fetch",  # waits as long as the request says
    }
)
GREEDY = common_pb2.SamplingParams(max_tokens=4, temperature=0)


def generation_examples(model: str = "") -> dict[str, list[Message]]:
    text, picture = chat_request("Hi", model=model), request(PICTURE, "What is this?")
    picture.model = model
    for chat in (text, picture):
        chat.options.sampling.CopyFrom(GREEDY)
    complete = generation_pb2.CompleteRequest(text="Once", model=model)
    complete.options.sampling.CopyFrom(GREEDY)
    calls = [generation_pb2.GenerationCall(number=1, request_id="a", chat=text)]
    calls.append(generation_pb2.GenerationCall(number=2, request_id="b", complete=complete))
    name = "triptych.v1.GenerationService/"
    return {
        f"{name}Chat": [text, picture],
        f"{name}ChatStream": [streamed(text), streamed(picture)],
        f"{name}Complete": [complete],
        f"{name}CompleteStream": [generation_pb2.CompleteStreamRequest(complete=complete)],
        f"{name}Session": [generation_pb2.GenerationServiceSessionRequest(start=calls)],
        "triptych.v1.PreprocessService/Preprocess": [preprocess_pb2.PreprocessRequest(chat=text)],
        "triptych.v1.DetokenizeService/Detokenize": [detokenize_pb2.DetokenizeRequest(token_ids=[20, 21])],
    }


def engine_examples() -> dict[str, list[Message]]:
    one = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=[5, 6, 7], sampling=GREEDY)
    name = "triptych.v1.EngineService/"
    return {
        f"{name}Generate": [engine_pb2.GenerateRequest(request=one)],
        f"{name}Session": [engine_pb2.SessionRequest(add=[one])],
    }


@asynccontextmanager
async def nothing_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Fails if the block leaves tasks or open files, or if a service has logged an error that it did not expect."""
    process, before = psutil.Process(), asyncio.all_tasks()
    yield
    await until(lambda: not {task for task in asyncio.all_tasks() - before if not task.done()})
    gc.collect()
    left = [
        file.path for file in process.open_files() if "triptych" in file.path and not file.path.endswith((".safetensors", ".json"))
    ]
    assert not left
    unexpected = [record.getMessage() + str(record.exc_info) for record in caplog.records if "unexpected" in record.getMessage()]
    assert not unexpected, unexpected[:3]


def statuses_of(fuzzer: Fuzzer, services: Sequence[ServiceDescriptor]) -> None:
    """Each method was called, the good request among its messages was answered, and no fault was found."""
    assert not fuzzer.faults, f"{len(fuzzer.faults)} faults:\n" + "\n".join(fuzzer.faults[:10])
    for service in services:
        for method in service.methods:
            assert fuzzer.statuses.get(f"{service.full_name}/{method.name}"), method.full_name


def test_every_rpc_of_ours_is_called_here() -> None:
    """The services of these tests together have all methods that the rules of access know."""
    known = {f"/{service.full_name}/{method.name}" for service in ALL for method in service.methods}
    # vLLM's contract is called in tests/contract/engine/test_engine_vllm_grpc.py.
    assert known == {method for method in RULES if not method.startswith("/vllm.")}


ALL: Iterable[ServiceDescriptor] = (*FRONTEND, ENCODER, ENGINE, KV, CONTROL, MOCK, *EVERYWHERE)


@pytest.mark.parametrize("num_calls", LENGTHS)
async def test_frontend(num_calls: int, caplog: pytest.LogCaptureFixture) -> None:
    async with nothing_left(caplog), media_bench(says_with_logprobs(ids("Hello there"), 5), template_timeout_s=5) as media:
        bench = media.bench
        fuzzer = Fuzzer(bench.channel, Mutator(SEED), generation_examples(), ENDLESS)
        await fuzzer.run([*FRONTEND, *EVERYWHERE], num_calls)
        statuses_of(fuzzer, [*FRONTEND, *EVERYWHERE])
        control = Fuzzer(bench.control_channel, Mutator(SEED), {}, ENDLESS)
        await control.run([CONTROL, *EVERYWHERE], num_calls)
        statuses_of(control, [CONTROL, *EVERYWHERE])
        await bench.control.WakeUp(control_pb2.WakeUpRequest())
        assert joined([response async for response in bench.chat(chat_request("Hi"))]) == "Hello there"
        await media.until_nothing_is_left()
        assert bench.frontend._media is not None
        assert bench.frontend._media.budget.used_bytes == 0


@pytest.mark.parametrize("num_calls", LENGTHS)
async def test_engine(num_calls: int, caplog: pytest.LogCaptureFixture) -> None:
    # A request without a limit ends at the model's, within a call's time.
    async with (
        nothing_left(caplog),
        an_engine(checkpoint("llava_siglip"), max_model_len=256, kv_offloading_memory=4 << 20) as engine,
    ):
        core = engine._core
        assert core is not None
        num_free = core.load.num_free_blocks
        async with (
            open_channel(f"127.0.0.1:{engine._server.port}") as channel,
            open_channel(f"127.0.0.1:{engine._server.control_port}") as control_channel,
        ):
            fuzzer = Fuzzer(channel, Mutator(SEED), engine_examples(), ENDLESS)
            await fuzzer.run([ENGINE, KV, *EVERYWHERE], num_calls)
            statuses_of(fuzzer, [ENGINE, KV, *EVERYWHERE])
            control = Fuzzer(control_channel, Mutator(SEED))
            await control.run([CONTROL], num_calls)
            statuses_of(control, [CONTROL])
            await control_pb2_grpc.ControlServiceStub(control_channel).WakeUp(control_pb2.WakeUpRequest())
            stub, (good,) = engine_pb2_grpc.EngineServiceStub(channel), engine_examples()["triptych.v1.EngineService/Generate"]
            outputs = [response.output async for response in stub.Generate(good)]
        assert sum(len(output.token_ids) for output in outputs) == 4
        await until(lambda: not engine.num_live_requests and core.load.num_free_blocks == num_free)


@pytest.mark.parametrize("num_calls", LENGTHS)
async def test_encoder(num_calls: int, caplog: pytest.LogCaptureFixture) -> None:
    async with nothing_left(caplog), an_encoder(checkpoint("llava_siglip"), dtype="float32") as encoder:
        item = encoder.item("image", PICTURE)
        name = "triptych.v1.EncoderService/"
        keyed = {
            "Fetch": encoder_pb2.FetchRequest(keys=[item.key], timeout_s=0.1),
            "Lookup": encoder_pb2.LookupRequest(keys=[item.key]),
        }
        examples: dict[str, list[Any]] = {f"{name}{method}": [message] for method, message in keyed.items()}
        examples[f"{name}Encode"] = [encoder_pb2.EncodeRequest(items=[item], lease_s=1)]
        async with (
            open_channel(f"127.0.0.1:{encoder.service.port}") as channel,
            open_channel(f"127.0.0.1:{encoder.service._server.control_port}") as control_channel,
        ):
            fuzzer = Fuzzer(channel, Mutator(SEED), examples, ENDLESS)
            await fuzzer.run([ENCODER, *EVERYWHERE], num_calls)
            statuses_of(fuzzer, [ENCODER, *EVERYWHERE])
            control = Fuzzer(control_channel, Mutator(SEED))
            await control.run([CONTROL], num_calls)
            statuses_of(control, [CONTROL])
            await control_pb2_grpc.ControlServiceStub(control_channel).WakeUp(control_pb2.WakeUpRequest())
        [result] = await encoder.encode(item)
        assert not result.HasField("error"), result.error
        assert (await encoder.fetch(item.key))["embeds"].shape[0] == result.num_tokens


@pytest.mark.parametrize("num_calls", LENGTHS)
async def test_mock(num_calls: int, caplog: pytest.LogCaptureFixture) -> None:
    services = (*FRONTEND, ENCODER, ENGINE, MOCK, *EVERYWHERE)
    async with nothing_left(caplog), mock_server() as mock, open_channel(mock.address) as channel:
        fuzzer = Fuzzer(channel, Mutator(SEED), generation_examples() | engine_examples(), ENDLESS)
        await fuzzer.run(services, num_calls)
        statuses_of(fuzzer, services)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = await stub.Chat(chat_request("Hi"))
        assert answer.choices[0].text == "Hi"
        await until(lambda: not mock.server.num_live_requests)
