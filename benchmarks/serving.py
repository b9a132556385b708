"""Output tokens/s, time to first token, gaps, memory and cold start of Triptych under load, alone or beside another server.

    python benchmarks/serving.py                                          # starts `triptych serve`, measures it, stops it
    python benchmarks/serving.py --engine-alone                           # and the engine without services around it
    python benchmarks/serving.py --peer http://127.0.0.1:9100 --peer-model smollm2 --peer-name "vLLM 0.32 CPU"
    python benchmarks/serving.py --concurrency 1 8 --max-tokens 32 --repeats 1 -- --engine.num-threads 1

`make bench ARGS='serving ...'` is the same. What follows `--` goes to `triptych serve`. A peer is any OpenAI-compatible server that
runs already; it gets the same prompts from the same client. For each concurrency the targets take turns (Triptych, engine alone,
peer; again; ...), so that whatever else the machine does meets all of them, and only ratios within one turn are worth quoting. All
targets stay loaded, and one at a time is under load.

A load is a closed loop: so many streams of /v1/completions, each sending its next request as its last one ends; greedy, end tokens
ignored, so that every answer has --max-tokens tokens. No two prompts of a sitting begin alike. TTFT is the time from sending a
request to its first text, a gap that between two pieces of text.

Results go to benchmarks/results/<date>-<name>.json with the machine's description; --report writes docs/performance.md from it.
The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import time
import urllib.request
from collections.abc import Callable, Sequence

import uvloop
from child import ChildError
from engine_alone import running_engine_alone
from figures import Figures
from load import Prompts, Target, put_load
from serving_report import ENGINE_ALONE, ratios
from sitting import describe, hold
from stack import MemoryPeak, Stack, running_stack
from tables import TRIPTYCH
from triptych_common.model.store import TEXT_MODEL

#: A warm-up lets each target meet its largest batch once.
WARM_UP_TOKENS = 8
#: A single stream shall not be judged by fewer requests.
MIN_REQUESTS = 4
PEER_TIMEOUT_S = 10.0
#: Before each run. vLLM's workers keep a core busy for a second after their last request; whoever came next paid for it.
REST_S = 2.0

#: Puts prompts on one target: prompts, concurrency, max_tokens.
PutLoad = Callable[[Sequence[str], int, int], Figures]


def over_rest(target: Target, timeout_s: float) -> PutLoad:
    """A load over HTTP."""

    def put(prompts: Sequence[str], concurrency: int, max_tokens: int) -> Figures:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(put_load(target, prompts, concurrency, max_tokens, timeout_s))

    return put


def check_peer(peer: Target) -> None:
    """Raises ChildError when the peer does not answer, or does not serve the model."""
    try:
        with urllib.request.urlopen(f"{peer.url}/v1/models", timeout=PEER_TIMEOUT_S) as response:  # noqa: S310
            names = [model["id"] for model in json.load(response)["data"]]
    except (OSError, ValueError, KeyError) as error:
        raise ChildError(f"the peer {peer.url} does not answer: {error}") from error
    if peer.model not in names:
        raise ChildError(f"the peer {peer.url} serves {', '.join(names)}, not {peer.model} (--peer-model)")


def measure(targets: dict[str, PutLoad], stack: Stack, peak: MemoryPeak, args: argparse.Namespace) -> list[dict]:
    """All rounds; prints each as it ends."""
    prompts = Prompts(args.prompt_words, args.seed)
    for put in targets.values():
        put(prompts.take(max(args.concurrency)), max(args.concurrency), WARM_UP_TOKENS)
    print(f"{'streams':>7} {'round':>5}  {'target':<16} {'tok/s':>8}  TTFT p50/p99 ms   gap p50/p99 ms   ok/failed", flush=True)
    runs = []
    for concurrency in args.concurrency:
        for repeat in range(args.repeats):
            batch = prompts.take(max(concurrency * args.requests_per_stream, MIN_REQUESTS))
            for name, put in targets.items():
                time.sleep(REST_S)
                # Idle since its last turn: systems page idle programs out, and reading them in again is nobody's serving.
                put(prompts.take(1), 1, WARM_UP_TOKENS)
                watching = name == TRIPTYCH and concurrency == max(args.concurrency)
                with peak.watching(stack) if watching else contextlib.nullcontext():
                    figures = put(batch, concurrency, args.max_tokens)
                print_run(name, concurrency, repeat, figures)
                run = {"target": name, "concurrency": concurrency, "repeat": repeat}
                runs.append({**run, "figures": dataclasses.asdict(figures)})
    return runs


def print_run(name: str, concurrency: int, repeat: int, figures: Figures) -> None:
    """One line, and why requests failed."""
    ttft, gap = (
        "/".join("-" if value is None else f"{value:.1f}" for value in values)
        for values in ((figures.ttft_p50_ms, figures.ttft_p99_ms), (figures.gap_p50_ms, figures.gap_p99_ms))
    )
    counts = f"{figures.num_ok}/{figures.num_failed}"
    print(
        f"{concurrency:7d} {repeat:5d}  {name:<16.16} {figures.output_tokens_per_s:8.1f}  {ttft:>15}  {gap:>15}   {counts:>9}",
        flush=True,
    )
    for reason, count in figures.failures.items():
        print(f"        {count} failed: {reason}", flush=True)


def print_ratios(runs: Sequence[dict], others: Sequence[str]) -> None:
    """Triptych over each other target, one ratio per round."""
    for other in others:
        for concurrency in dict.fromkeys(run["concurrency"] for run in runs):
            line = []
            for label, figure in (("tok/s", "output_tokens_per_s"), ("TTFT p50", "ttft_p50_ms"), ("TTFT p99", "ttft_p99_ms")):
                values = " ".join(f"{value:.2f}" for value in ratios(runs, other, figure, concurrency))
                line.append(f"{label} {values or '-'}")
            print(f"Triptych / {other}, {concurrency} streams: {'; '.join(line)}")


def run(args: argparse.Namespace) -> dict:
    """Start what is needed, measure, stop it; returns the results."""
    peer = Target(args.peer_name, args.peer.rstrip("/"), args.peer_model) if args.peer else None
    if peer is not None:
        check_peer(peer)
    with contextlib.ExitStack() as exits:
        stack = exits.enter_context(running_stack(args.model, args.serve_args))
        idle = stack.resident()
        targets: dict[str, PutLoad] = {TRIPTYCH: over_rest(stack.target, args.timeout_s)}
        if args.engine_alone:
            engine = exits.enter_context(running_engine_alone(stack.engine_args))
            targets[ENGINE_ALONE] = lambda prompts, streams, tokens: engine.put_load(prompts, streams, tokens, args.timeout_s)
        if peer is not None:
            targets[peer.name] = over_rest(peer, args.timeout_s)
        described, peak = describe("serving", stack.services.values()), MemoryPeak()
        runs = measure(targets, stack, peak, args)
        print_ratios(runs, [name for name in targets if name != TRIPTYCH])
        limits = stack.memory_limits()
        memory = {name: {"idle": idle[name], "peak": peak.resident[name], "limit": limits[name]} for name in limits}
        for name, sizes in memory.items():
            print(f"{name}: " + ", ".join(f"{key} {size / 1e6:.0f} MB" for key, size in sizes.items()))
        print(f"ready after {stack.cold_start.ready_s:.1f} s, first chat answered after {stack.cold_start.first_answer_s:.1f} s")
        load_keys = ("model", "concurrency", "max_tokens", "prompt_words", "requests_per_stream", "repeats", "seed", "serve_args")
        return {
            **described,
            "load": {key: getattr(args, key) for key in load_keys},
            "peer": dataclasses.asdict(peer) if peer is not None else None,
            "cold_start": dataclasses.asdict(stack.cold_start),
            "memory": memory,
            "runs": runs,
        }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TEXT_MODEL, help="what `triptych serve` shall serve")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64], metavar="N", help="streams at once")
    parser.add_argument("--max-tokens", type=int, default=128, help="output tokens of each request")
    parser.add_argument("--prompt-words", type=int, default=20)
    parser.add_argument("--requests-per-stream", type=int, default=3, help=f"but at least {MIN_REQUESTS} requests in all")
    parser.add_argument("--repeats", type=int, default=2, help="rounds per concurrency")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts; a server that ran with it before has their prefixes")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of one round of one target")
    parser.add_argument("--engine-alone", action="store_true", help="measure the engine in a process without services, too")
    parser.add_argument("--peer", metavar="URL", help="another server, already running")
    parser.add_argument("--peer-model", default="", help="the name of the model there")
    parser.add_argument("--peer-name", default="peer", help="what to call it")
    parser.add_argument("--name", default="serving", help="of the results file")
    parser.add_argument("--report", action="store_true", help="write the tables of docs/performance.md from the results")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    counts = [*args.concurrency, args.max_tokens, args.prompt_words, args.requests_per_stream, args.repeats]
    if min(counts) < 1 or args.timeout_s <= 0:
        parser.error("all counts and times must be positive")
    if args.peer_name in (TRIPTYCH, ENGINE_ALONE):
        parser.error(f"--peer-name: {args.peer_name} is the name of another target")
    return args


def main() -> None:
    args = parse_args()
    hold(
        lambda: run(args),
        lambda results: sum(each["figures"]["num_failed"] for each in results["runs"]),
        args.name,
        report=args.report,
    )


if __name__ == "__main__":
    main()
