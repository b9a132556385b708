"""What tracing costs: output tokens/s without it, with one request in ten traced, and with all of them, by turns in one sitting.

    python -m benchmarks.telemetry.tracing
    python -m benchmarks.telemetry.tracing --streams 32 --rounds 7 --baseline ../before
    python -m benchmarks.telemetry.tracing --streams 8 -- --engine.num-threads 1

What follows `--` are flags of `triptych serve`. One stack of services runs per kind; an idle one costs the others nothing but
memory. The traced ones send their spans to a collector in a process of its own, which counts them and goes last on the cores. With
--baseline, another checkout, e.g. the commit before tracing, takes turns too, without tracing: the ratio to it is what tracing
costs while it is off.

A round sends the same requests to each kind, as many at a time as there are streams; the order changes from round to round. Ratios
are of one round, and their median counts. A traced tenth should keep at least 0.98 of the tokens/s.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a request failed or spans are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from triptych_cli.load.client import put_load, run_async
from triptych_cli.load.requests import Prompts, completion
from triptych_common.model.store import TEXT_MODEL

from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.machine import REPOSITORY
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.stack import Stack, checkout_env, running_stack
from benchmarks.harness.targets import BASELINE, describe_load
from benchmarks.report.telemetry import OFF, cpu_per_token

#: Kind -> share of the requests that are traced.
RATIOS = {"10 %": 0.1, "all": 1.0}
#: Longest time for the last spans to arrive, in seconds: they are sent every second.
_SPANS_S = 3.0
#: Without media: gateway, frontend with preprocessing and its time at the engine, engine with queue, prefill and decode.
SPANS_PER_TRACE = 8


def serve_flags(kind: str, endpoint: str) -> list[str]:
    """The flags of `triptych serve` for a kind."""
    if kind not in RATIOS:
        return []
    return ["--otlp-traces-endpoint", endpoint, "--gateway.trace-sampling-ratio", str(RATIOS[kind])]


def counted(collector: Child) -> dict[str, int]:
    """What the collector got since the last call."""
    time.sleep(_SPANS_S)
    collector.send("count")
    found = collector.wait_for(r"got (\d+) spans of (\d+) traces", 10)
    return {"spans": int(found[1]), "traces": int(found[2])}


def measure(stacks: Mapping[str, Stack], collector: Child, args: argparse.Namespace) -> list[dict]:
    """The rounds: kind -> its figures, and what the collector got of it. The first round warms up and is left out."""
    prompts, rounds = Prompts(args.prompt_words, args.seed), []
    for number in range(args.rounds + 1):
        one: dict[str, dict] = {}
        requests = [completion(prompt, args.max_tokens) for prompt in prompts.take(args.streams * args.requests_per_stream)]
        for kind in list(stacks) if number % 2 == 0 else list(stacks)[::-1]:
            with stacks[kind].watching() as seen:
                figures = run_async(put_load(stacks[kind].target, requests, args.streams, args.timeout))
            one[kind] = dataclasses.asdict(figures) | {"cpu_s": seen["cpu_s"]} | counted(collector)
        if number:
            rounds.append(one)
            rates = {kind: f"{each['output_tokens_per_s']:.0f} tok/s, {each['spans']} spans" for kind, each in one.items()}
            print(f"round {number}: {rates}", flush=True)
    return rounds


def ratios(rounds: list[dict], to: str) -> dict[str, dict[str, float]]:
    """Each kind in relation to another one, medians of the rounds: `speed` (tokens/s), and `cpu`, the processor time per token."""

    def median(kind: str, value: Callable[[dict], float]) -> float:
        return statistics.median(value(one[kind]) / value(one[to]) for one in rounds)

    return {
        kind: {"speed": median(kind, lambda each: each["output_tokens_per_s"]), "cpu": median(kind, cpu_per_token)}
        for kind in rounds[0]
        if kind != to
    }


def check(rounds: list[dict]) -> None:
    """Raise BenchmarkError if a request failed, or if the collector did not get the spans of the sampled requests."""
    for one in rounds:
        for kind, each in one.items():
            if each["num_failed"]:
                raise BenchmarkError(f"{kind}: {each['num_failed']} requests failed: {each['failures']}")
            if each["spans"] != each["traces"] * SPANS_PER_TRACE:
                raise BenchmarkError(f"{kind}: {each['spans']} spans of {each['traces']} traces, not {SPANS_PER_TRACE} of each")
    traced = {kind: sum(one[kind]["traces"] for one in rounds) for kind in rounds[0]}
    sent = sum(one[OFF]["num_ok"] for one in rounds)
    if traced["all"] != sent or traced[OFF] or not traced["10 %"] < sent / 2:
        raise BenchmarkError(f"{sent} requests of each kind, traced were {traced}")


def run(args: argparse.Namespace) -> dict:
    """Start everything and measure; returns the results."""
    with contextlib.ExitStack() as running:
        collector = running.enter_context(Child([sys.executable, "-m", "benchmarks.telemetry.collector"], checkout_env()))
        endpoint = collector.wait_for(r"collector at (\S+)", 60)[1]
        checkouts = {OFF: REPOSITORY, **dict.fromkeys(RATIOS, REPOSITORY)} | ({BASELINE: args.baseline} if args.baseline else {})
        stacks = {
            kind: running.enter_context(
                running_stack(args.model, [*args.serve_args, *serve_flags(kind, endpoint)], name=kind, checkout=checkout)
            )
            for kind, checkout in checkouts.items()
        }
        # The first answers, at the start of each stack, were traced too. Meanwhile the last engine touches its memory.
        counted(collector)
        described = describe("telemetry.tracing", [service for stack in stacks.values() for service in stack.services.values()])
        rounds = measure(stacks, collector, args)
    check(rounds)
    to_off = ratios(rounds, OFF)
    told = [f"{kind} {each['speed']:.3f}, processor time per token {each['cpu']:.3f}" for kind, each in to_off.items()]
    print(f"{args.streams} streams; tokens/s in relation to no tracing: " + "; ".join(told))
    keys = ("streams", "requests_per_stream", "max_tokens", "prompt_words", "rounds", "seed")
    servers = [{"name": kind, "command": stack.command} for kind, stack in stacks.items()]
    return {**described, "load": describe_load(args, *keys), "servers": servers, "rounds": rounds, "ratio_to_off": to_off}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="at once")
    parser.add_argument("--requests-per-stream", type=int, default=4, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--prompt-words", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="for the requests of one kind in one round")
    parser.add_argument("--baseline", type=Path, metavar="DIRECTORY", help="another checkout of Triptych, e.g. from before tracing")
    parser.add_argument("--name", default="tracing", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    check_positive(parser, args.streams, args.requests_per_stream, args.max_tokens, args.rounds, args.timeout)
    return args


def main() -> None:
    args = parse_args()
    try:
        results = run(args)
    except BenchmarkError as error:
        sys.exit(str(error))
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
