"""An engine service with the real scheduler and step loop, and a fake runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
from grpc_health.v1 import health_pb2_grpc
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, kv_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.control import Health
from triptych_common.telemetry.tracing import OFF, Tracer
from triptych_engine.core import EngineCore
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.kv_transfer.sharing import BlockSharing
from triptych_engine.media.fetcher import FetchStatistics
from triptych_engine.metrics import EngineMetrics
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer
from triptych_engine.settings import EngineSettings

from support.builders.engine import GREEDY, a_scheduler
from support.fakes.runner import VOCAB_SIZE, FakeRunner, expected_output
from support.grpc_server import serving
from support.waiting import until

MODEL = common_pb2.ModelInfo(name="fake", max_model_len=256, vocab_size=VOCAB_SIZE, capabilities=common_pb2.Capabilities(lora=True))
NUM_BLOCKS = 64


@dataclass
class Served:
    """A running engine, and a stub for it."""

    stub: engine_pb2_grpc.EngineServiceStub
    runner: FakeRunner
    core: EngineCore
    servicer: EngineServicer
    outbox: Outbox
    metrics: EngineMetrics
    kv_events: KVEventBatches
    sharing: BlockSharing
    address: str

    async def until_idle(self) -> None:
        """Wait until no request is live, then check that all blocks are free."""
        async with asyncio.timeout(10):
            await self.outbox.wait_idle()
            while self.core.load.num_running or self.core.load.num_waiting:
                await self.core_turn()
        assert self.core.load.num_free_blocks == NUM_BLOCKS

    async def until_a_command_waits(self) -> None:
        """Wait until the step loop, blocked by the runner's gate, has a command for after the current step, or has run it."""
        await until(lambda: self.core._commands.qsize() > 0 or self.outbox.num_live_requests == 0)

    async def core_turn(self) -> None:
        await asyncio.wrap_future(self.core.call(lambda: None))


@asynccontextmanager
async def an_engine(
    tracer: Tracer = OFF, *, with_kv_events: bool = False, tier: HostTier | None = None, **scheduler_options: int
) -> AsyncIterator[Served]:
    runner, sharing, health = FakeRunner(tier=tier), BlockSharing(EngineSettings(), None), Health(())
    await health.set_ready(True)
    scheduler = a_scheduler(NUM_BLOCKS, tier=tier, **scheduler_options)  # type: ignore[arg-type]
    if tier is not None:
        sharing.tier = tier
        sharing.servicer.attach(tier, "layout")

    def register(server: grpc.aio.Server) -> None:
        engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
        kv_pb2_grpc.add_KvServiceServicer_to_server(sharing.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)

    outbox = Outbox(asyncio.get_running_loop(), lambda load: servicer.on_load(load), tracer)
    servicer = EngineServicer(outbox, lambda: common_pb2.Instance(id="this engine"), tracer)
    core = EngineCore(scheduler, runner, outbox.publish)
    kv_events = KVEventBatches(asyncio.get_running_loop())
    if with_kv_events:
        scheduler.kv_cache.pool.record_events()
        core.on_kv_events = kv_events.publish
    core.start()
    servicer.attach(core, MODEL, scheduler.kv_cache.capacity_tokens)
    try:
        async with (
            serving(register) as address,
            open_channel(address) as channel,
        ):
            metrics = EngineMetrics(core, scheduler, outbox.statistics, FetchStatistics(), MODEL.name, 4, kv_events, sharing)
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            yield Served(stub, runner, core, servicer, outbox, metrics, kv_events, sharing, address)
    finally:
        if runner.gate is not None:
            runner.gate.release(10_000)
        await asyncio.to_thread(core.stop)


def a_message(
    request_id: str, prompt: list[int] | None = None, max_tokens: int = 8, **sampling: object
) -> engine_pb2.EngineRequest:
    params = common_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, **sampling)  # type: ignore[arg-type]
    return engine_pb2.EngineRequest(request_id=request_id, prompt_token_ids=prompt or [1, 2, 3], sampling=params)


def alone(prompt: list[int], max_tokens: int = 8) -> list[int]:
    return expected_output(prompt, replace(GREEDY, max_tokens=max_tokens))


class Session:
    """One open session. Outputs are sorted by sequence: the request id, plus the index for all sequences but the first."""

    def __init__(self, stub: engine_pb2_grpc.EngineServiceStub) -> None:
        self.call = stub.Session()
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, engine_pb2.SequenceOutput] = {}
        self.num_messages = 0

    async def open(self) -> engine_pb2.SessionResponse:
        return await self.read()

    async def read(self) -> engine_pb2.SessionResponse:
        async with asyncio.timeout(10):
            message = await self.call.read()
        assert message is not grpc.aio.EOF
        self.num_messages += 1
        for output in message.outputs:
            name = f"{output.request_id} {output.index}" if output.index else output.request_id
            assert name not in self.last, "an output after the last"
            self.tokens.setdefault(name, []).extend(output.token_ids)
            if output.finish_reason:
                self.last[name] = output
        return message

    async def add(self, *requests: engine_pb2.EngineRequest) -> None:
        await self.call.write(engine_pb2.SessionRequest(add=requests))

    async def until_ended(self, *names: str) -> None:
        while not set(names) <= set(self.last):
            await self.read()


async def an_open_session(engine: Served) -> Session:
    session = Session(engine.stub)
    await session.open()
    return session
