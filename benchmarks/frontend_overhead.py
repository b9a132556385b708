"""CPU time that the frontend spends per token, and its resident memory, with no model behind it.

    python benchmarks/frontend_overhead.py --streams 64 --tokens 256 --interval-ms 30

Three processes: an engine that brings one token per interval to each of its sequences, all in one message per step, as the real
one does; the frontend; and this one, which reads the streams. Reported is the user and system time of the frontend's process,
divided by the number of tokens; wall time does not enter, so a busy machine changes the figure little. An interval that is too
short for the machine makes the frontend merge tokens, and the figure per token fall: read "responses per token" beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import psutil
from triptych_common.channels import SERVER_OPTIONS, open_channel
from triptych_common.model_store import model_info, resolve_model
from triptych_common.pb import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.settings import DEFAULT_MODEL

HOST = "127.0.0.1"
#: Ids of ordinary words in any byte-level vocabulary of some size.
FIRST_TOKEN_ID, NUM_TOKEN_IDS = 300, 2000


class NotReadyError(Exception):
    """The frontend has not found its engine yet."""


class Metronome(engine_pb2_grpc.EngineServiceServicer):
    """An engine that says one token to each sequence per interval."""

    def __init__(self, model: common_pb2.ModelInfo, interval_s: float) -> None:
        self._model = model
        self._interval_s = interval_s

    async def Session(  # noqa: N802
        self, requests: AsyncIterator[engine_pb2.SessionRequest], context: object
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        left: dict[str, int] = {}

        async def read() -> None:
            async for message in requests:
                left.update({request.request_id: request.sampling.max_tokens for request in message.add})

        reader = asyncio.create_task(read())
        yield engine_pb2.SessionResponse(model=self._model)
        for step in itertools.count():
            await asyncio.sleep(self._interval_s)
            token_id = FIRST_TOKEN_ID + step % NUM_TOKEN_IDS
            response = engine_pb2.SessionResponse(step=step)
            for request_id in list(left):
                output = response.outputs.add(request_id=request_id, token_ids=[token_id])
                left[request_id] -= 1
                if not left[request_id]:
                    output.finish_reason = common_pb2.FINISH_REASON_LENGTH
                    del left[request_id]
            yield response
        reader.cancel()


async def beat(model: str, port: int, interval_s: float) -> None:
    """Serve as the engine until killed."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    metronome = Metronome(model_info(resolve_model(model), model), interval_s)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(metronome, server)
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


@contextmanager
def process(*command: str) -> Iterator[psutil.Process]:
    """A Python process that ends with the block."""
    with subprocess.Popen([sys.executable, *command]) as child:
        try:
            yield psutil.Process(child.pid)
        finally:
            child.terminate()


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


async def stream_all(stub: generation_pb2_grpc.GenerationServiceStub, args: argparse.Namespace, num_tokens: int) -> int:
    """Run the calls at the same time on one session, as a gateway does; check that nothing is missing; returns the responses."""
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text="Tell me a story.")])
    sampling = common_pb2.SamplingParams(max_tokens=num_tokens)
    options = generation_pb2.GenerationOptions(sampling=sampling, stop=["</never>"] if args.stop else [])
    chat = generation_pb2.ChatRequest(messages=[message], options=options)
    session = stub.Session(wait_for_ready=True)
    calls = [generation_pb2.GenerationCall(number=number, chat=chat) for number in range(args.streams)]
    await session.write(generation_pb2.GenerationServiceSessionRequest(start=calls))
    await session.done_writing()
    num_responses, num_ended = 0, 0
    async for batch in session:
        for response in batch.responses:
            assert response.number < args.streams
            if response.HasField("error"):
                raise NotReadyError(response.error.message)
            num_responses += 1
            if response.HasField("usage"):
                assert response.usage.completion_tokens == num_tokens
                num_ended += 1
    assert num_ended == args.streams
    return num_responses


async def until_ready(stub: generation_pb2_grpc.GenerationServiceStub, args: argparse.Namespace) -> None:
    """Wait until the frontend has found its engine, and warm both up."""
    async with asyncio.timeout(60):
        while True:
            try:
                await stream_all(stub, args, num_tokens=4)
            except (grpc.aio.AioRpcError, NotReadyError):
                await asyncio.sleep(0.2)
            else:
                return


def cpu_s(frontend: psutil.Process) -> float:
    """User and system time of the process so far."""
    times = frontend.cpu_times()
    return float(times.user + times.system)


async def measure(args: argparse.Namespace) -> None:
    """Run the processes and print the figures."""
    engine_port, port = free_port(), free_port()
    engine_args = ("--engine-port", str(engine_port), "--model", args.model, "--interval-ms", str(args.interval_ms))
    frontend_args = ("--port", str(port), "--control-port", "0", "--engine-address", f"{HOST}:{engine_port}", "--model", args.model)
    with process(__file__, *engine_args), process("-m", "triptych_frontend", *frontend_args) as frontend:
        async with open_channel(f"{HOST}:{port}") as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await until_ready(stub, args)
            before_s = cpu_s(frontend)
            num_responses = await stream_all(stub, args, args.tokens)
            spent_s = cpu_s(frontend) - before_s
        num_tokens = args.streams * args.tokens
        print(f"streams                  {args.streams}")
        print(f"tokens                   {num_tokens}")
        print(f"responses per token      {num_responses / num_tokens:.2f}")
        print(f"frontend CPU per token   {spent_s / num_tokens * 1e6:.1f} us")
        print(f"frontend resident memory {frontend.memory_info().rss / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="its tokenizer is used")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="per stream")
    parser.add_argument("--interval-ms", type=float, default=30.0, help="between two steps of the engine")
    parser.add_argument("--stop", action="store_true", help="give each request a stop string that never occurs")
    parser.add_argument("--engine-port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    asyncio.run(beat(args.model, args.engine_port, args.interval_ms / 1e3) if args.engine_port else measure(args))


if __name__ == "__main__":
    main()
