"""The same closed loop of streams over gRPC, by raw stubs: what a client's library adds is measured elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_cli.load.client import RequestFailedError, reason
from triptych_cli.load.figures import Answer, Figures, summarize
from triptych_cli.load.requests import Request, Target


async def put_grpc_load(address: str, target: Target, requests: Sequence[Request], concurrency: int, timeout_s: float) -> Figures:
    """Send each completion once, so many at a time, over one channel.

    Args:
        address: host:port of a gateway, or of a frontend.
        timeout_s: for the whole; what is not answered by then has failed.
    """
    answers: list[Answer] = []
    failures: list[str] = []
    waiting = iter(requests)
    deadline = time.perf_counter() + timeout_s
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        async def work() -> None:
            for request in waiting:
                try:
                    answers.append(await _answer(stub, target, request, deadline - time.perf_counter()))
                except (grpc.aio.AioRpcError, RequestFailedError) as error:
                    failures.append(reason(error))

        start_s = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return summarize(answers, failures, time.perf_counter() - start_s)


async def _answer(stub: generation_pb2_grpc.GenerationServiceStub, target: Target, request: Request, timeout_s: float) -> Answer:
    """The answer to one completion. Raises RequestFailedError where it has another number of tokens than was asked for."""
    body = request.body
    sampling = common_pb2.SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"], ignore_eos=True)
    options = generation_pb2.GenerationOptions(sampling=sampling)
    complete = generation_pb2.CompleteRequest(model=target.model, text=body["prompt"], options=options)
    sent_s, pieces_s, usage = time.perf_counter(), list[float](), common_pb2.Usage()
    async for response in stub.CompleteStream(
        generation_pb2.CompleteStreamRequest(complete=complete), timeout=max(0.001, timeout_s)
    ):
        if any(delta.text for delta in response.choices):
            pieces_s.append(time.perf_counter())
        if response.HasField("usage"):
            usage = response.usage
    if usage.completion_tokens != body["max_tokens"]:
        raise RequestFailedError(f"{usage.completion_tokens} tokens instead of {body['max_tokens']}")
    return Answer(sent_s, pieces_s, usage.prompt_tokens, usage.completion_tokens)
