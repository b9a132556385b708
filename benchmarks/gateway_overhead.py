"""CPU time that the gateway spends per streamed token, and its resident memory, with no model behind it.

    python benchmarks/gateway_overhead.py --streams 64 --tokens 256 --interval-ms 20

Three processes: a frontend that says one short text per interval on each stream, the gateway, and this one, which reads the
streams from plain sockets. Reported is the user and system time of the gateway's process, divided by the number of tokens; wall
time does not enter, so a busy machine changes the figure little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import psutil
from grpc_health.v1 import health_pb2_grpc
from triptych_common.channels import SERVER_OPTIONS
from triptych_common.control import Health
from triptych_common.pb import common_pb2, generation_pb2, generation_pb2_grpc

MODEL = "benchmark"
HOST = "127.0.0.1"


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
        while not reader.done():
            await asyncio.sleep(self._interval_s)
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
    async with asyncio.timeout(60):
        while True:
            try:
                if b" 200 OK" in await exchange(port, "GET", "/ready"):
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def stream_all(port: int, num_streams: int, num_tokens: int) -> None:
    """Run the streams at the same time and check that nothing is missing."""
    request = {"model": MODEL, "stream": True, "max_tokens": num_tokens, "messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps(request).encode()
    answers = await asyncio.gather(*(exchange(port, "POST", "/v1/chat/completions", body) for _ in range(num_streams)))
    for answer in answers:
        assert answer.count(b'"content":" token"') == num_tokens
        assert b"data: [DONE]" in answer


def cpu_s(gateway: psutil.Process) -> float:
    """User and system time of the process so far."""
    times = gateway.cpu_times()
    return float(times.user + times.system)


@dataclass
class Result:
    """What was measured."""

    cpu_us_per_token: float
    idle_mb: float
    peak_mb: float


async def measure(port: int, gateway: psutil.Process, num_streams: int, num_tokens: int) -> Result:
    """Run once to warm up, and once for the figures."""
    await until_ready(port)
    idle = gateway.memory_info().rss
    await stream_all(port, num_streams, 8)
    before_s, peak = cpu_s(gateway), 0
    streaming = asyncio.create_task(stream_all(port, num_streams, num_tokens))
    while not streaming.done():
        peak = max(peak, gateway.memory_info().rss)
        await asyncio.wait({streaming}, timeout=0.2)
    await streaming
    used_s = cpu_s(gateway) - before_s
    return Result(used_s * 1e6 / (num_streams * num_tokens), idle / 1e6, peak / 1e6)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="tokens per stream")
    parser.add_argument("--interval-ms", type=float, default=20, help="time between two tokens of a stream")
    parser.add_argument("--speak", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.speak:
        asyncio.run(speak(args.speak, args.interval_ms / 1e3))
        return
    frontend_port, port = free_port(), free_port()
    gateway_flags = ["--port", str(port), "--frontend-address", f"{HOST}:{frontend_port}", "--log-level", "WARNING"]
    with (
        process(__file__, "--speak", str(frontend_port), "--interval-ms", str(args.interval_ms)),
        process("-m", "triptych_gateway", *gateway_flags) as gateway,
    ):
        result = asyncio.run(measure(port, gateway, args.streams, args.tokens))
    print(f"{args.streams} streams of {args.tokens} tokens, one each {args.interval_ms:g} ms")
    print(f"gateway CPU per token: {result.cpu_us_per_token:.1f} us")
    print(f"gateway resident memory: {result.idle_mb:.0f} MB idle, {result.peak_mb:.0f} MB at its peak")


if __name__ == "__main__":
    main()
