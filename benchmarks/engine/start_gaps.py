"""Gaps between the tokens of streams beside a long prompt, right after the engine has started on a busy machine.

    python -m benchmarks.engine.start_gaps [--starts 10] [--busy 2] [--max-step-ms 70]

Each round starts `triptych engine` beside processes that only compute. When it is ready, streams begin at once; when each of them
has its first tokens, a long prompt that is in no cache follows. Gaps count from a stream's first token until the prompt has its own
first token. The exit code is 1 if a gap is longer than three times `max_step_ms`. Gaps are measured by the client, over gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import TEXT_MODEL
from triptych_common.rpc.channels import open_channel

from benchmarks.harness.child import Child
from benchmarks.harness.sitting import check_positive, new_parser
from benchmarks.harness.stack import HOST, START_TIMEOUT_S, checkout_env

#: Longest gap that is accepted, in multiples of max_step_ms.
_MAX_STEPS = 3
#: Tokens that each stream has when the long prompt is sent.
_TOKENS_BEFORE = 2
_STREAM_TOKENS = 2000
_TIMEOUT_S = 300.0
#: Ids of this range are ordinary tokens of every model that the benchmarks use.
_TOKEN_IDS = range(1000, 20_000)


@dataclass(frozen=True)
class Round:
    """What one start brought, in seconds.

    Attributes:
        costs: what the engine's log says about its measured costs.
        gaps_s: of all streams, in ascending order, and when each ended, counted from sending the prompt.
        prompt_s: from sending the prompt to its first token.
    """

    costs: str
    ready_s: float
    gaps_s: list[tuple[float, float]]
    prompt_s: float


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that only compute, at the same priority as the engine, for the time of the block."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Child([sys.executable, "-c", "while True: pass"], os.environ))
        yield


def run_round(args: argparse.Namespace, seed: int) -> Round:
    """Start an engine, and measure it as soon as it is ready."""
    port = free_port(HOST)
    flags = ["--model", args.model, "--port", str(port), "--max-step-ms", str(args.max_step_ms)]
    with Child([sys.executable, "-m", "triptych_engine", *flags], checkout_env()) as child:
        costs = child.wait_for(r"warmed up in .*", START_TIMEOUT_S)[0]
        child.wait_for(r"ready: ", START_TIMEOUT_S)
        ready_s = time.perf_counter() - child.started_s
        gaps_s, prompt_s = asyncio.run(_measure(f"{HOST}:{port}", args, random.Random(seed)))
    return Round(costs, ready_s, gaps_s, prompt_s)


async def _measure(address: str, args: argparse.Namespace, dice: random.Random) -> tuple[list[tuple[float, float]], float]:
    async with open_channel(address) as channel, asyncio.timeout(_TIMEOUT_S):
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        times: list[list[float]] = [[] for _ in range(args.streams)]
        all_run = asyncio.Event()

        async def stream(number: int) -> None:
            async for response in stub.Generate(_request(f"stream-{number}", dice.choices(_TOKEN_IDS, k=20), _STREAM_TOKENS)):
                if response.output.error.code:
                    raise RuntimeError(response.output.error.message)
                times[number].append(time.perf_counter())
                if all(len(one) >= _TOKENS_BEFORE for one in times):
                    all_run.set()

        streams = [asyncio.create_task(stream(number)) for number in range(args.streams)]
        await all_run.wait()
        sent_s = time.perf_counter()
        async for _ in stub.Generate(_request("prompt", dice.choices(_TOKEN_IDS, k=args.prompt_tokens), 1)):
            break
        end_s = time.perf_counter()
        await asyncio.sleep(_MAX_STEPS * args.max_step_ms / 1e3)  # the step of the prompt's last tokens ends for the streams, too
        for task in streams:
            if task.done():
                task.result()
                raise RuntimeError("a stream ended before the prompt had its first token")
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    pairs = itertools.chain.from_iterable(map(itertools.pairwise, times))
    return sorted((after - before, after - sent_s) for before, after in pairs if before < end_s), end_s - sent_s


def _request(request_id: str, token_ids: list[int], max_tokens: int) -> engine_pb2.GenerateRequest:
    sampling = common_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    request = engine_pb2.EngineRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling)
    return engine_pb2.GenerateRequest(request=request)


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--starts", type=int, default=10, metavar="N")
    parser.add_argument("--busy", type=int, default=2, metavar="N", help="processes that only compute beside the engine")
    parser.add_argument("--streams", type=int, default=4, metavar="N", help="that decode beside the prompt")
    parser.add_argument("--prompt-tokens", type=int, default=4000, metavar="N")
    parser.add_argument("--max-step-ms", type=float, default=70.0, help="of the engine")
    args = parser.parse_args()
    check_positive(parser, args.starts, args.streams, args.prompt_tokens, args.max_step_ms)
    return args


def main() -> None:
    args = parse_args()
    limit_s, num_late = _MAX_STEPS * args.max_step_ms / 1e3, 0
    print(f"{args.model}, {args.streams} streams beside a prompt of {args.prompt_tokens} tokens, {args.busy} busy processes, "
          f"--max-step-ms {args.max_step_ms:g}: the longest gap may take {limit_s * 1e3:.0f} ms", flush=True)  # fmt: skip
    for number in range(args.starts):
        with busy_processes(args.busy):
            one = run_round(args, seed=number)
        (longest_s, at_s), (median_s, _) = one.gaps_s[-1], one.gaps_s[len(one.gaps_s) // 2]
        late = sum(gap_s > limit_s for gap_s, _ in one.gaps_s)
        num_late += late > 0
        print(f"start {number + 1}: longest gap {longest_s * 1e3:.0f} ms after {at_s:.1f} s, median {median_s * 1e3:.0f}, "
              f"{late} of {len(one.gaps_s)} too long; prompt {one.prompt_s:.1f} s; ready after {one.ready_s:.1f} s; "
              f"load {os.getloadavg()[0]:.1f}; {one.costs}", flush=True)  # fmt: skip
    print(f"{args.starts - num_late} of {args.starts} starts without a gap over {limit_s * 1e3:.0f} ms")
    if num_late:
        sys.exit(1)


if __name__ == "__main__":
    main()
