"""What routing by prefix is worth: conversations on several simulated engines, by policy and number of frontends.

    python -m benchmarks.steps --costs-file costs.json                   # what a step costs here, for the engines to simulate
    python -m benchmarks.routing --costs-file costs.json
    python -m benchmarks.routing --costs-file costs.json --engines 4 --frontends 1 8 --users 60 --concurrency 24

A third of the users ask about a document of their own, a third are agents with tools in a long system prompt in common, a third
share a system prompt. Each waits for the answer before the next turn. Everything is real but the computation: the engines' steps
take the time that the file says (docs/scaling.md#simulated-engines).

Measured are the share of prompt tokens that the engines found in their prefix caches, TTFT, and the load of the engines, largest by
mean, each averaged over the sitting. Beside the policies runs one engine with the memory of all and steps that are as many times
faster: it holds everything, so that its hits are what can be had.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import httpx
from triptych_cli.load.client import run_async
from triptych_common.model.store import TEXT_MODEL

from benchmarks.errors import BenchmarkError
from benchmarks.harness.engines import SAMPLE_S, SETTLE_S, engines_of, wait_until_all_serve
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.harness.targets import describe_load
from benchmarks.load.conversations import Outcome, converse, scripts
from benchmarks.report.hold import hold

POLICIES = ("prefix", "least-load", "round-robin")


def measure(stack: Stack, args: argparse.Namespace) -> dict:
    """One load; returns its figures."""
    users = scripts(args.users, args.turns, args.seed)
    before = engines_of(stack)
    start_s = time.perf_counter()
    outcome, loads = run_async(_converse(stack, args, users))
    seconds = time.perf_counter() - start_s
    if not outcome.ttft_s:
        raise BenchmarkError(f"no request was answered: {outcome.failures[:3]}")
    time.sleep(SETTLE_S)
    after = engines_of(stack)
    queries, hits = (_sum(after, name) - _sum(before, name) for name in ("prefix_cache_queries", "prefix_cache_hits"))
    mean = statistics.mean(loads)
    return {
        "seconds": seconds,
        "prompt_tokens": queries,
        "hits": hits / queries,
        "ttft_ms": {"p50": 1e3 * statistics.median(outcome.ttft_s), "p99": 1e3 * statistics.quantiles(outcome.ttft_s, n=100)[98]},
        "tokens_per_s": outcome.num_tokens / seconds,
        "engine_loads": loads,
        "max_by_mean_load": max(loads) / mean if mean else 1.0,
        "num_turns": len(outcome.ttft_s),
        "failures": outcome.failures,
    }


def _sum(engines: list[dict], name: str) -> int:
    # An engine that has had no request has not told it.
    return sum(engine[name] or 0 for engine in engines)


async def _converse(stack: Stack, args: argparse.Namespace, users: list) -> tuple[Outcome, list[float]]:
    """The load, and the mean number of sequences that each engine had meanwhile."""
    loads: dict[str, list[int]] = defaultdict(list)

    async def watch() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                await asyncio.sleep(SAMPLE_S)
                engines = (await client.get(f"{stack.target.url}/load")).json()["engines"]
                for engine in engines:
                    if engine["id"]:  # a frontend that has begun may know only its address
                        loads[engine["id"]].append((engine["num_running"] or 0) + (engine["num_waiting"] or 0))

    watching = asyncio.create_task(watch())
    try:
        outcome = await converse(stack.target, users, args.concurrency, args.max_tokens, args.think_s)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return outcome, [statistics.mean(engine) for engine in loads.values()]


def run(args: argparse.Namespace) -> dict:
    """Start each configuration in turn, and measure it; returns the results."""
    costs = json.loads(args.costs_file.read_text())
    described, runs = describe("routing"), []
    with tempfile.TemporaryDirectory() as folder:
        each, whole = Path(folder) / "each.json", Path(folder) / "whole.json"
        each.write_text(json.dumps({**costs, "num_blocks": args.blocks}))
        fast = {name: costs[name] / args.engines for name in ("fixed_s", "decode_s", "prompt_token_s")}
        whole.write_text(json.dumps({**fast, "num_blocks": args.blocks * args.engines}))
        plans = [("one engine", "prefix", 1, 1, whole)]
        plans += [(policy, policy, args.engines, count, each) for policy in args.policies for count in args.frontends]
        for repeat in range(args.repeats):
            for name, policy, num_engines, num_frontends, file in plans:
                flags = ["--engines", str(num_engines), "--frontends", str(num_frontends), "--frontend.routing", policy]
                with running_stack(args.model, [*flags, "--engine.simulate", str(file), *args.serve_args]) as stack:
                    wait_until_all_serve(stack, num_engines)
                    figures = measure(stack, args)
                runs.append({"repeat": repeat, "policy": name, "engines": num_engines, "frontends": num_frontends, **figures})
                print_run(runs[-1])
    keys = ("engines", "frontends", "blocks", "users", "turns", "concurrency", "max_tokens", "think_s", "repeats", "seed")
    return {**described, "costs": costs, "load": describe_load(args, *keys), "runs": runs}


def print_run(run: dict) -> None:
    """One line of figures."""
    print(
        f"{run['policy']:12} {run['engines']} engines, {run['frontends']} frontends: hits {run['hits']:.3f}, "
        f"TTFT p50 {run['ttft_ms']['p50']:.0f} ms, p99 {run['ttft_ms']['p99']:.0f} ms, {run['tokens_per_s']:.0f} tok/s, "
        f"load max/mean {run['max_by_mean_load']:.2f}, {run['num_turns']} turns, {len(run['failures'])} failed",
        flush=True,
    )


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--costs-file", type=Path, required=True, help="of an engine, as benchmarks.steps writes it")
    parser.add_argument("--model", default=TEXT_MODEL, help="its tokenizer and chat template are used")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--frontends", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--blocks", type=int, default=3000, help="of the KV cache of each engine, 16 tokens each")
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--turns", type=int, default=6, help="of each user")
    parser.add_argument("--concurrency", type=int, default=16, help="users at a time")
    parser.add_argument("--max-tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--think-s", type=float, default=1.0, help="mean time until a user goes on, in seconds")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="routing", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    check_positive(parser, args.engines, *args.frontends, args.blocks, args.users, args.turns, args.concurrency, args.max_tokens)
    check_positive(parser, args.think_s, args.repeats)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: sum(len(run["failures"]) for run in results["runs"]), args.name)


if __name__ == "__main__":
    main()
