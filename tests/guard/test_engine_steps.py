"""What a token costs in the engine beside the model: Python calls and messages.

A step brings one token to each of many sequences, and whatever is done per token in Python is done 10,000 times a second at 10,000
tokens per second. The numbers are exact: who adds a call changes a number here, and says why.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.builders.engine import a_request, a_scheduler, a_tiny_llama_config, save_random_model
from support.counting import assert_per_item, python_calls
from support.drivers.engine import EngineDriver
from support.fakes.runner import VOCAB_SIZE, FakeRunner
from support.grpc_server import serving
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_engine.core import EngineCore
from triptych_engine.rpc.convert import load_message, output_message
from triptych_engine.rpc.outbox import Mailbox, Outbox
from triptych_engine.rpc.servicer import EngineServicer
from triptych_engine.scheduling.output import SchedulerOutput, StepResult

FEW, MANY = 8, 64
NUM_CALLS = (1, FEW, MANY)
WARM_UP_STEPS = 3
NUM_STEPS = 5

# Per token: calls of our Python functions, and at most so many of built-in ones by those (an interpreter may do with fewer).
#: It is scheduled (it decodes; there is room; its block), updated (its token, its end), routed to its stream, part of the message.
SCHEDULER_CALLS, SCHEDULER_BUILTINS = 25, 20
#: Arrays are read and written for all sequences at once; only the row of each is looked up one by one.
RUNNER_CALLS, RUNNER_BUILTINS = {0.0: 1, 1.0: 1}, 0


class SameToken:
    """An executor that computes nothing."""

    def __init__(self) -> None:
        self._launched: deque[SchedulerOutput] = deque()

    def compile_constraint(self, spec: object) -> None:
        raise NotImplementedError

    def load_lora(self, name: str) -> None:
        raise NotImplementedError

    def launch(self, scheduled: SchedulerOutput) -> None:
        self._launched.append(scheduled)

    def sample(self, step_id: int) -> None:
        pass

    def result(self, step_id: int) -> StepResult:
        return StepResult(token_ids={request_id: [7] for request_id in self._launched.popleft().max_new_tokens})


@pytest.mark.parametrize("async_scheduling", [False, True])
async def test_scheduling_and_publishing_take_a_few_calls_per_sequence(async_scheduling: bool) -> None:
    async def step_of(num_seqs: int) -> Counter[str]:
        outbox = Outbox(asyncio.get_running_loop(), lambda load: None)
        mailbox = Mailbox(outbox)
        scheduler = a_scheduler(1024, 16, max_num_seqs=MANY, max_num_batched_tokens=1024)
        core = EngineCore(scheduler, SameToken(), outbox.publish, async_scheduling=async_scheduling)  # type: ignore[arg-type]
        for number in range(num_seqs):
            mailbox.expect(f"r{number}", [f"r{number}"])
            scheduler.add(a_request(f"r{number}", max_tokens=40))
        core.step()  # with asynchronous scheduling the first one brings nothing
        for _ in range(WARM_UP_STEPS):
            core.step()
            await mailbox.take()
        with python_calls("triptych_engine") as calls:
            core.step()
            taken = await mailbox.take()
            assert taken is not None
            step, outputs, load = taken
            message = engine_pb2.SessionResponse(
                step=step,
                outputs=[output_message(output, route.request_id, route.index) for route, output in outputs],
                load=load_message(load),
            )
        assert len(message.outputs) == num_seqs
        return calls

    assert_per_item(await step_of(FEW), FEW, await step_of(MANY), MANY, SCHEDULER_CALLS, SCHEDULER_BUILTINS)


@pytest.mark.parametrize("temperature", RUNNER_CALLS)
def test_the_runner_takes_a_few_calls_per_sequence(runner: EngineDriver, temperature: float) -> None:
    def step_of(num_seqs: int) -> Counter[str]:
        scheduler = runner.scheduler(caching=False)
        for number in range(num_seqs):
            scheduler.add(a_request(f"r{number}", max_tokens=40, temperature=temperature))
        for _ in range(WARM_UP_STEPS):
            scheduled = scheduler.schedule()
            scheduler.update_from_output(scheduled, runner.runner.execute(scheduled))
        scheduled = scheduler.schedule()
        with python_calls("triptych_engine.runner") as calls:
            runner.runner.execute(scheduled)
        scheduler.abort(scheduler.live_request_ids)
        runner.runner.execute(scheduler.schedule())  # forgets them
        return calls

    assert_per_item(step_of(FEW), FEW, step_of(MANY), MANY, RUNNER_CALLS[temperature], RUNNER_BUILTINS)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    config = a_tiny_llama_config(num_hidden_layers=1)
    return EngineDriver(save_random_model(tmp_path_factory.mktemp("model"), config), max_num_seqs=MANY, num_blocks=1024)


@asynccontextmanager
async def an_engine(runner: FakeRunner) -> AsyncIterator[engine_pb2_grpc.EngineServiceStub]:
    """The real step loop and servicer; each step waits for the runner's gate."""
    runner.gate = threading.Semaphore(0)
    outbox = Outbox(asyncio.get_running_loop(), lambda load: servicer.on_load(load))
    servicer = EngineServicer(outbox, common_pb2.Instance)
    scheduler = a_scheduler(1024, max_num_seqs=MANY, max_num_batched_tokens=1024)
    core = EngineCore(scheduler, runner, outbox.publish)
    core.start()
    servicer.attach(core, common_pb2.ModelInfo(name="fake", max_model_len=256, vocab_size=VOCAB_SIZE), 4096)
    try:
        async with (
            serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            yield engine_pb2_grpc.EngineServiceStub(channel)
    finally:
        runner.gate.release(1000)
        await asyncio.to_thread(core.stop)


@pytest.mark.parametrize("num_calls", NUM_CALLS)
async def test_the_engine_sends_one_message_per_step(num_calls: int) -> None:
    runner = FakeRunner()
    async with an_engine(runner) as stub:
        session = stub.Session()
        await session.read()  # what it serves
        sampling = common_pb2.SamplingParams(max_tokens=40, temperature=0)
        requests = [
            engine_pb2.EngineRequest(request_id=f"r{number}", prompt_token_ids=[1, number % 50], sampling=sampling)
            for number in range(num_calls)
        ]
        await session.write(engine_pb2.SessionRequest(add=requests))
        message = await one_step(runner, session)
        while len(message.outputs) < num_calls:  # steps may begin before all are there
            message = await one_step(runner, session)
        num_steps = message.step
        for _ in range(NUM_STEPS):
            message = await one_step(runner, session)
            assert len(message.outputs) == num_calls
            num_steps += 1
            assert message.step == num_steps
        session.cancel()


async def one_step(runner: FakeRunner, session: Any) -> engine_pb2.SessionResponse:
    assert runner.gate is not None
    runner.gate.release()
    async with asyncio.timeout(10):
        return await session.read()
