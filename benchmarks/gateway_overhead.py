"""CPU time that the gateway spends per streamed token, and its resident memory, with no model behind it.

    python benchmarks/gateway_overhead.py --streams 64 1000
    python benchmarks/gateway_overhead.py --streams 64 --tokens 256 --interval-ms 20

Three processes: a frontend that says one short text per interval on each stream, the gateway, and this one, which reads the
streams from plain sockets. Reported is the user and system time of the gateway's process, divided by the number of tokens; wall
time does not enter, so a busy machine changes the figure little. An interval that is too short for the machine makes the gateway
merge tokens, and the figure per token fall: read "messages per token" beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import overhead
import uvloop
from grpc_health.v1 import health_pb2_grpc
from overhead import HOST, Overhead, process
from triptych_cli.stack.ports import free_port
from triptych_common.host.open_files import raise_open_files_limit
from triptych_common.pb import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.control import Health

MODEL = "benchmark"


class Speaker(generation_pb2_grpc.GenerationServiceServicer):
    """Says " token" max_tokens times in each call, to all of them at the same time, as a real one does after an engine step."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s

    async def ListModels(self, request: generation_pb2.ListModelsRequest, context: object) -> generation_pb2.ListModelsResponse:  # noqa: N802
        return generation_pb2.ListModelsResponse(models=[common_pb2.ModelInfo(name=MODEL)])

    async def Session(  # noqa: N802
        self, requests: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: object
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        left: dict[int, int] = {}

        async def read() -> None:
            async for message in requests:
                left.update({call.number: call.chat.options.sampling.max_tokens for call in message.start})

        reader = asyncio.create_task(read())
        async for _ in overhead.ticks(self._interval_s):
            if reader.done():
                return
            response = generation_pb2.GenerationServiceSessionResponse()
            for number in list(left):
                left[number] -= 1
                delta = generation_pb2.ChoiceDelta(text=" token")
                call = response.responses.add(number=number, choices=[delta])
                if not left[number]:
                    call.choices[0].finish_reason = common_pb2.FINISH_REASON_LENGTH
                    call.usage.prompt_tokens = 1
                    del left[number]
            yield response


async def speak(port: int, interval_s: float) -> None:
    """Serve as the frontend until killed."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    health = Health(())
    await health.set_ready(True)
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Speaker(interval_s), server)
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


async def exchange(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    response = await reader.read()
    writer.close()
    return response


async def until_ready(port: int) -> None:
    """Wait until the gateway sees its frontend."""
    async with asyncio.timeout(overhead.READY_TIMEOUT_S):
        while True:
            try:
                if b" 200 OK" in await exchange(port, "GET", "/ready"):
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def stream_all(port: int, num_streams: int, num_tokens: int) -> int:
    """Run the streams at the same time and check that nothing is missing; returns how many pieces of text came."""
    request = {"model": MODEL, "stream": True, "max_tokens": num_tokens, "messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps(request).encode()
    answers = await asyncio.gather(*(exchange(port, "POST", "/v1/chat/completions", body) for _ in range(num_streams)))
    for answer in answers:
        assert answer.count(b" token") == num_tokens
        assert b"data: [DONE]" in answer
    return sum(answer.count(b'"content":" token') for answer in answers)


async def measure(num_streams: int, num_tokens: int, interval_s: float) -> Overhead:
    """Start the processes, run the streams once to warm up, then for the figures."""
    raise_open_files_limit()
    frontend_port, port = free_port(HOST), free_port(HOST)
    gateway_flags = ["--port", str(port), "--frontend-address", f"{HOST}:{frontend_port}", "--log-level", "WARNING"]
    with (
        process(__file__, "--speak", str(frontend_port), "--interval-ms", str(interval_s * 1e3)),
        process("-m", "triptych_gateway", *gateway_flags) as gateway,
    ):
        await until_ready(port)
        return await overhead.observe(gateway, num_streams, num_tokens, lambda tokens: stream_all(port, num_streams, tokens))


def main() -> None:
    args = overhead.parse_args(__doc__ or "", ("--speak", {"type": int, "metavar": "PORT", "help": argparse.SUPPRESS}))
    if args.speak:
        uvloop.run(speak(args.speak, args.interval_ms / 1e3))
        return
    for streams in args.streams:
        interval_s = args.interval_ms / 1e3 if args.interval_ms else overhead.interval_s(streams, args.tokens_per_s)
        print("gateway:", uvloop.run(measure(streams, args.tokens, interval_s)), flush=True)


if __name__ == "__main__":
    main()
