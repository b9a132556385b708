"""What triptych.AsyncClient costs beside the raw stubs of grpc.aio, which it is built on.

    python -m benchmarks.clients.python [--streams 64] [--tokens 200] [--rounds 9]

Both read the same streams of `triptych mock`, one after the other in each round, and both take the text out of each response. The
client also merges the responses. Measured are the processor time of this process and the wall time, per token.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from triptych import AsyncClient, aconnect
from triptych.v1 import generation_pb2, generation_pb2_grpc

from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.report.hold import hold

_START_S = 60.0


def _request(num_tokens: int) -> generation_pb2.ChatRequest:
    part = generation_pb2.ContentPart(text=json.dumps({"mock": {"numTokens": num_tokens}}))
    return generation_pb2.ChatRequest(messages=[generation_pb2.ChatMessage(role="user", content=[part])])


async def _read_stubs(address: str, num_streams: int, request: generation_pb2.ChatRequest) -> int:
    """Read all streams by the stubs. Returns the number of characters."""

    async def read(stub: generation_pb2_grpc.GenerationServiceStub) -> int:
        num_chars = 0
        call: grpc.aio.UnaryStreamCall = stub.ChatStream(generation_pb2.ChatStreamRequest(chat=request))
        async for response in call:
            for choice in response.choices:
                num_chars += len(choice.text)
        return num_chars

    async with aconnect(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        return sum(await asyncio.gather(*(read(stub) for _ in range(num_streams))))


async def _read_client(address: str, num_streams: int, request: generation_pb2.ChatRequest) -> int:
    """Read all streams by the client, which merges them, too. Returns the number of characters."""

    async def read(client: AsyncClient) -> int:
        num_chars = 0
        async with client.chat_stream(request) as stream:
            async for response in stream:
                for choice in response.choices:
                    num_chars += len(choice.text)
        if len(stream.response.choices[0].text) != num_chars:
            raise BenchmarkError("the merged text is not that of the stream")
        return num_chars

    async with AsyncClient(address) as client:
        return sum(await asyncio.gather(*(read(client) for _ in range(num_streams))))


_VARIANTS: dict[str, Callable[[str, int, generation_pb2.ChatRequest], Awaitable[int]]] = {
    "stubs": _read_stubs,
    "client": _read_client,
}


async def _measure(address: str, num_streams: int, num_tokens: int, num_rounds: int) -> list[dict]:
    request, rounds = _request(num_tokens), []
    for number in range(num_rounds + 1):
        seen = {}
        # Who is first changes, so that neither has the better place.
        for name in sorted(_VARIANTS, reverse=number % 2 == 0):
            gc.collect()
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            num_chars = await _VARIANTS[name](address, num_streams, request)
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            seen[name] = {"cpu_us": 1e6 * cpu_s / (num_streams * num_tokens), "wall_s": wall_s, "chars": num_chars}
        if len({figures["chars"] for figures in seen.values()}) != 1:
            raise BenchmarkError(f"the streams differ: {seen}")
        if number:  # the first round warms up
            rounds.append(seen)
            print(
                f"round {number}: client / stubs = {_ratio(seen, 'cpu_us'):.3f} processor, {_ratio(seen, 'wall_s'):.3f} wall",
                flush=True,
            )
    return rounds


def _ratio(seen: dict, figure: str) -> float:
    return float(seen["client"][figure] / seen["stubs"][figure])


def _run(num_streams: int, num_tokens: int, num_rounds: int) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        argv = [sys.executable, "-m", "triptych_mock", "--port", "0", "--address-file", str(Path(directory) / "address")]
        with Child(argv, os.environ) as mock:
            address = mock.wait_for(r"listening on (\S+),", _START_S).group(1)
            results = describe("clients.python")
            rounds = asyncio.run(_measure(address, num_streams, num_tokens, num_rounds))
    return results | {"load": {"streams": num_streams, "tokens": num_tokens, "rounds": num_rounds}, "rounds": rounds}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="streams at the same time")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens of each stream; each is a response")
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    parser.add_argument("--name", default="clients-python", help="of the results' file")
    args = parser.parse_args()
    check_positive(parser, args.streams, args.tokens, args.rounds)
    hold(lambda: _run(args.streams, args.tokens, args.rounds), lambda results: 0, args.name)


if __name__ == "__main__":
    main()
