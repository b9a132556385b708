"""CPU time that the frontend spends per token, and its resident memory, with no model behind it.

    python benchmarks/frontend_overhead.py --streams 64 1000
    python benchmarks/frontend_overhead.py --streams 64 --tokens 256 --interval-ms 30

Three processes: an engine that brings one token per interval to each of its sequences, all in one message per step, as the real
one does; the frontend; and this one, which reads the streams. Reported is the user and system time of the frontend's process,
divided by the number of tokens; wall time does not enter, so a busy machine changes the figure little. An interval that is too
short for the machine makes the frontend merge tokens, and the figure per token fall: read "messages per token" beside it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

import grpc
import overhead
import uvloop
from overhead import HOST, Overhead, process
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import TEXT_MODEL, model_info, resolve_model
from triptych_common.pb import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import SERVER_OPTIONS, open_channel

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
        step = 0
        async for _ in overhead.ticks(self._interval_s):
            step += 1
            token_id = FIRST_TOKEN_ID + step % NUM_TOKEN_IDS
            response = engine_pb2.SessionResponse(step=step)
            for request_id in list(left):
                output = response.outputs.add(request_id=request_id, token_ids=[token_id])
                left[request_id] -= 1
                if not left[request_id]:
                    output.finish_reason = common_pb2.FINISH_REASON_LENGTH
                    del left[request_id]
            yield response
            if reader.done():
                return


async def beat(model: str, port: int, interval_s: float) -> None:
    """Serve as the engine until killed."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    metronome = Metronome(model_info(resolve_model(model), model), interval_s)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(metronome, server)
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


async def stream_all(
    stub: generation_pb2_grpc.GenerationServiceStub, num_streams: int, num_tokens: int, *, stop: bool = False
) -> int:
    """Run the calls at the same time on one session, as a gateway does; check that nothing is missing; returns the responses."""
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(text="Tell me a story.")])
    sampling = common_pb2.SamplingParams(max_tokens=num_tokens)
    options = generation_pb2.GenerationOptions(sampling=sampling, stop=["</never>"] if stop else [])
    chat = generation_pb2.ChatRequest(messages=[message], options=options)
    session = stub.Session(wait_for_ready=True)
    calls = [generation_pb2.GenerationCall(number=number, chat=chat) for number in range(num_streams)]
    await session.write(generation_pb2.GenerationServiceSessionRequest(start=calls))
    await session.done_writing()
    num_responses, num_ended = 0, 0
    async for batch in session:
        for response in batch.responses:
            assert response.number < num_streams
            if response.HasField("error"):
                raise NotReadyError(response.error.message)
            num_responses += 1
            if response.HasField("usage"):
                assert response.usage.completion_tokens == num_tokens
                num_ended += 1
    assert num_ended == num_streams
    return num_responses


async def until_ready(stub: generation_pb2_grpc.GenerationServiceStub) -> None:
    """Wait until the frontend has found its engine."""
    async with asyncio.timeout(overhead.READY_TIMEOUT_S):
        while True:
            try:
                await stream_all(stub, 1, num_tokens=4)
            except (grpc.aio.AioRpcError, NotReadyError):
                await asyncio.sleep(0.2)
            else:
                return


async def measure(num_streams: int, num_tokens: int, interval_s: float, model: str = TEXT_MODEL, *, stop: bool = False) -> Overhead:
    """Start the processes, run the streams once to warm up, then for the figures."""
    engine_port, port = free_port(HOST), free_port(HOST)
    engine_args = ("--engine-port", str(engine_port), "--model", model, "--interval-ms", str(interval_s * 1e3))
    frontend_args = ("--port", str(port), "--control-port", "0", "--engine-address", f"{HOST}:{engine_port}", "--model", model)
    with process(__file__, *engine_args), process("-m", "triptych_frontend", *frontend_args, "--log-level", "WARNING") as frontend:
        async with open_channel(f"{HOST}:{port}") as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await until_ready(stub)
            return await overhead.observe(
                frontend, num_streams, num_tokens, lambda tokens: stream_all(stub, num_streams, tokens, stop=stop)
            )


def main() -> None:
    args = overhead.parse_args(
        __doc__ or "",
        ("--model", {"default": TEXT_MODEL, "help": "its tokenizer is used"}),
        ("--stop", {"action": "store_true", "help": "give each request a stop string that never occurs"}),
        ("--engine-port", {"type": int, "help": argparse.SUPPRESS}),
    )
    if args.engine_port:
        uvloop.run(beat(args.model, args.engine_port, args.interval_ms / 1e3))
        return
    for streams in args.streams:
        interval_s = args.interval_ms / 1e3 if args.interval_ms else overhead.interval_s(streams, args.tokens_per_s)
        print("frontend:", uvloop.run(measure(streams, args.tokens, interval_s, args.model, stop=args.stop)), flush=True)


if __name__ == "__main__":
    main()
