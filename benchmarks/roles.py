"""What it brings that prompts are computed apart from decoding: streams beside long prompts, on two engines with a core each.

    python -m benchmarks.roles
    python -m benchmarks.roles --streams 16 --prompt 4000 --seconds 60 --rounds 3

The setups are: one engine for prompts and one that decodes (--kv-role), and two engines that compute all. Each engine is pinned to
a core. The benchmark's process is the frontend: its router, without text. It is pinned to the first engine's core. Measured are
the gaps between the tokens of streams, beside prompts of --prompt tokens, of which the next comes when the last one has its answer;
then those of as many new streams without such prompts, between the same tokens: a step takes longer as contexts grow. All answers
are greedy, and those of both setups are compared.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
import numpy as np
from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_cli.stack.ports import free_port
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.model import store as model_store
from triptych_frontend.engines.call import EngineCall
from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.router import EngineRouter

from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.stack import checkout_env

#: Setup -> the flags of its engines. {prompts} is the address of the first one.
SETUPS = {
    "roles": (["--kv-role", "prefill"], ["--kv-role", "decode", "--kv-peer-addresses", "{first}"]),
    "mixed": ([], []),
}
_START_S, _END_S = 120.0, 300.0
#: Tokens of a stream's prompt, and seconds until streams run as they do.
_STREAM_PROMPT, _SETTLE_S = 64, 2.0
_TRIPTYCH = "from triptych_cli.main import app; app()"
_VOCABULARY = range(1000, 40_000)


@dataclass(eq=False)
class Answer:
    """What a request brought, and when."""

    sent_s: float = field(default_factory=time.perf_counter)
    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: TriptychError | None = None
    call: EngineCall | None = None

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        self.times_s += [time.perf_counter()] * len(output.token_ids)
        self.token_ids += output.token_ids
        self.begun.set()
        if output.finish_reason:
            self.cached_tokens = output.usage.cached_tokens
            self.done.set()

    def on_error(self, index: int, error: TriptychError) -> None:
        self.error = error
        self.begun.set()
        self.done.set()

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.sent_s


class Setup:
    """Two engines, and a router in this process.

    Args:
        seed: prompts of equal seeds are equal.
    """

    def __init__(self, router: EngineRouter, metrics: list[int], seed: int) -> None:
        self._router, self._metrics, self._random, self._num_sent = router, metrics, random.Random(seed), 0

    def prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(_VOCABULARY, k=num_tokens)

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        self._num_sent += 1
        sampling = common_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        answer = Answer()
        request = engine_pb2.EngineRequest(request_id=f"r{self._num_sent}", prompt_token_ids=prompt, sampling=sampling)
        answer.call = self._router.start(request, answer)
        return answer

    async def answered(self, prompt: list[int], max_tokens: int) -> Answer:
        answer = self.ask(prompt, max_tokens)
        async with asyncio.timeout(_END_S):
            await answer.done.wait()
        if answer.error is not None:
            raise answer.error
        return answer

    def metric(self, name: str) -> float:
        """The sum of a metric over both engines."""
        texts = [httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text for port in self._metrics]
        values = [re.search(rf"^triptych_engine_{name} (\S+)$", text, re.MULTILINE) for text in texts]
        return sum(float(value[1]) for value in values if value)


@asynccontextmanager
async def running(setup: str, args: argparse.Namespace, seed: int) -> AsyncIterator[Setup]:
    """The engines of a setup for the time of the block."""
    path = model_store.resolve_model(args.model, model_store.WEIGHT_PATTERNS)
    model = model_store.model_info(path, model_store.served_name(args.model), None)
    ports, metrics, controls = [[free_port("127.0.0.1") for _ in range(2)] for _ in range(3)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with ExitStack() as children:
        engines = []
        for core, flags in enumerate(SETUPS[setup]):
            argv = ["taskset", "-c", str(core), sys.executable, "-c", _TRIPTYCH, "engine", "--model", args.model]
            argv += ["--port", str(ports[core]), "--control-port", str(controls[core]), "--metrics-port", str(metrics[core])]
            argv += [flag.format(first=addresses[0]) for flag in flags] + args.engine_args
            engines.append(children.enter_context(Child(argv, checkout_env())))
        for engine in engines:
            await asyncio.to_thread(engine.wait_for, "ready: ", _START_S)
        pool = Pool("engine", resolver_of(addresses, "engine"), lambda address: EngineConnection(address, model))
        watching = asyncio.create_task(pool.run())
        try:
            await pool.until(lambda: len(pool.ready) == len(addresses), _START_S)
            await asyncio.sleep(args.rest)  # the KV cache's memory is touched after the start
            router = EngineRouter(pool)
            yield Setup(router, metrics, seed)
            await router.close()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


class Streams:
    """Streams that run side by side."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers

    @classmethod
    async def begun(cls, setup: Setup, max_tokens: list[int]) -> Streams:
        """Streams of so many tokens."""
        streams = cls([setup.ask(setup.prompt(_STREAM_PROMPT), most) for most in max_tokens])
        async with asyncio.timeout(_END_S):
            await asyncio.gather(*(answer.begun.wait() for answer in streams._answers))
        await asyncio.sleep(_SETTLE_S)
        return streams

    @property
    def num_tokens(self) -> list[int]:
        """Of each stream, so far. Raises BenchmarkError if one has ended."""
        if ended := [answer for answer in self._answers if answer.done.is_set()]:
            raise BenchmarkError(f"{len(ended)} streams have ended: {ended[0].error or 'raise --context'}")
        return [len(answer.times_s) for answer in self._answers]

    async def ended(self) -> None:
        """Wait until all have ended."""
        async with asyncio.timeout(_END_S):
            await asyncio.gather(*(answer.done.wait() for answer in self._answers))
        if failed := [answer.error for answer in self._answers if answer.error is not None]:
            raise failed[0]

    def gaps_ms(self, first: list[int], last: list[int]) -> np.ndarray:
        """The gaps between these tokens of each stream."""
        parts = zip(self._answers, first, last, strict=True)
        return 1e3 * np.concatenate([np.diff(answer.times_s[begin:end]) for answer, begin, end in parts])

    async def close(self) -> None:
        for answer in self._answers:
            assert answer.call is not None
            answer.call.close()
        await asyncio.sleep(_SETTLE_S)


async def measure(setup: Setup, args: argparse.Namespace) -> dict:
    """One sitting of a setup."""
    await setup.answered(setup.prompt(300), 4)
    streams, answers = await Streams.begun(setup, [args.context - _STREAM_PROMPT] * args.streams), list[Answer]()
    first, start_s = streams.num_tokens, time.perf_counter()
    while time.perf_counter() < start_s + args.seconds:
        answers.append(await setup.answered(setup.prompt(args.prompt), args.answer))
    last, end_s = streams.num_tokens, time.perf_counter()
    beside = streams.gaps_ms(first, last)
    await streams.close()
    streams = await Streams.begun(setup, last)
    await streams.ended()
    alone = streams.gaps_ms(first, last)
    num_tokens = len(beside) + sum(len(answer.token_ids) for answer in answers)
    return {
        "itl_alone_ms": quantiles(alone),
        "itl_beside_ms": quantiles(beside),
        "p99_ratio": float(np.percentile(beside, 99) / np.percentile(alone, 99)),
        "output_tokens_per_s": num_tokens / (end_s - start_s),
        "prompt_tokens_per_s": args.prompt * len(answers) / (end_s - start_s),
        "ttft_s": [answer.ttft_s for answer in answers],
        "second_token_s": [answer.times_s[1] - answer.times_s[0] for answer in answers],
        "answers": [answer.token_ids for answer in answers],
        "fetches": setup.metric("kv_fetch_seconds_count"),
        "fetch_s": setup.metric("kv_fetch_seconds_sum"),
        "fetched_bytes": setup.metric("kv_fetched_bytes_total"),
    }


def quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99, 100)}


async def run(args: argparse.Namespace) -> dict:
    rounds = []
    for number in range(args.rounds):
        one = {}
        for name in list(SETUPS)[:: -1 if number % 2 else 1]:
            async with running(name, args, seed=number) as setup:
                one[name] = await measure(setup, args)
            show(name, one[name])
        both = list(zip(*(one[name].pop("answers") for name in SETUPS), strict=False))
        num_equal = sum(first == second for first, second in both)
        print(f"the same answers in both: {num_equal} of {len(both)}", flush=True)
        rounds.append({**one, "num_equal_answers": num_equal, "num_answers": len(both)})
    keys = ("model", "streams", "context", "prompt", "answer", "seconds", "engine_args")
    return {**describe("roles"), "load": {key: getattr(args, key) for key in keys}, "rounds": rounds}


def show(name: str, result: dict) -> None:
    alone, beside = result["itl_alone_ms"], result["itl_beside_ms"]
    print(
        f"{name}: gaps p50 {alone['p50']:.1f} -> {beside['p50']:.1f} ms, p99 {alone['p99']:.1f} -> {beside['p99']:.1f} ms "
        f"({result['p99_ratio']:.2f}); {result['output_tokens_per_s']:.0f} output and {result['prompt_tokens_per_s']:.0f} prompt "
        f"tokens/s; first token after {statistics.median(result['ttft_s']):.2f} s, second "
        f"{statistics.median(result['second_token_s']):.2f} s later; {result['fetches']:.0f} transfers, {result['fetch_s']:.2f} s",
        flush=True,
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=model_store.TEXT_MODEL, help="name or directory")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=8000, help="tokens of a stream, if it is not ended before")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of a long prompt")
    parser.add_argument("--answer", type=int, default=16, help="tokens of its answer")
    parser.add_argument("--seconds", type=float, default=60, help="with long prompts")
    parser.add_argument("--rest", type=float, default=6, help="seconds between the start of the engines and the first request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="roles")
    parser.add_argument("engine_args", nargs="*", help="further flags of `triptych engine`, after --")
    args = parser.parse_args()
    check_positive(parser, args.streams, args.context - _STREAM_PROMPT, args.prompt, args.answer - 1, args.seconds, args.rounds)
    os.sched_setaffinity(0, {0})
    results = asyncio.run(run(args))
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
