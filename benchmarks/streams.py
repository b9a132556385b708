"""What a token costs as concurrent streams grow from one to a thousand, and whether all of them come to their end.

    python benchmarks/streams.py                                       # starts `triptych serve`, measures it, stops it
    python benchmarks/streams.py --streams 1 64 --max-tokens 16 --repeats 1 --no-fakes -- --engine.num-threads 1

`make bench ARGS=streams` is the same. What follows `--` goes to `triptych serve`, which runs with its defaults: requests beyond
what the engine computes at once wait, and none is refused.

For each number of streams a closed loop of /v1/completions as in serving.py, with short prompts. Beside what the client sees, the
processor time of each service is taken before and after, and divided by the output tokens; so is the wall time. What a request
costs at its begin is in it: all have the same number of tokens.

Then gateway and frontend each by itself, with a fake in place of what is behind it that brings --tokens-per-s in all (see
gateway_overhead.py and frontend_overhead.py): so fast no engine on this machine feeds them.

Results go to benchmarks/results/<date>-<name>.json with the machine's description; --report writes docs/performance.md from it.
The exit code is 1 when a stream was lost.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import frontend_overhead
import gateway_overhead
import psutil
import uvloop
from load import Prompts
from machine import BusyMeter, cpu_s
from overhead import TOKENS, TOKENS_PER_S, Overhead, interval_s
from serving import WARM_UP_TOKENS, over_rest
from sitting import describe, hold
from stack import Stack, running_stack
from tables import TRIPTYCH
from triptych_common.host.open_files import raise_open_files_limit
from triptych_common.model.store import TEXT_MODEL

#: As many as the engine's default computes at once.
_WARM_UP_STREAMS = 256


def measure(stack: Stack, prompts: Prompts, streams: int, args: argparse.Namespace) -> dict:
    """One closed loop over REST."""
    put = over_rest(stack.target, args.timeout_s)
    batch = prompts.take(max(streams, args.min_requests))
    meter = BusyMeter([*stack.services.values(), psutil.Process()])
    before_s = {name: cpu_s(service) for name, service in stack.services.items()}
    started_s = time.perf_counter()
    figures = put(batch, streams, args.max_tokens)
    elapsed_s = time.perf_counter() - started_s
    spent_s = {name: cpu_s(service) - before_s[name] for name, service in stack.services.items()}
    num_tokens = max(1, figures.num_output_tokens)
    return {
        "num_lost": len(batch) - figures.num_ok,
        "wall_us_per_token": elapsed_s * 1e6 / num_tokens,
        "cpu_us_per_token": {name: seconds * 1e6 / num_tokens for name, seconds in spent_s.items()},
        "resident": stack.resident(),
        "busy_percent": meter.percent(),
        "figures": dataclasses.asdict(figures),
    }


def measure_stack(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """What describes the sitting, and all rounds; prints each as it ends."""
    prompts, runs = Prompts(args.prompt_words, args.seed), []
    with running_stack(args.model, args.serve_args) as stack:
        described = describe("streams", stack.services.values())
        warm_up = min(max(args.streams), _WARM_UP_STREAMS)
        over_rest(stack.target, args.timeout_s)(prompts.take(warm_up), warm_up, WARM_UP_TOKENS)
        for repeat in range(args.repeats):
            for streams in args.streams:
                run = {"target": TRIPTYCH, "streams": streams, "repeat": repeat, **measure(stack, prompts, streams, args)}
                runs.append(run)
                costs = ", ".join(f"{name} {cost:.0f}" for name, cost in run["cpu_us_per_token"].items())
                print(f"{streams:5d} streams, round {repeat}: {run['num_lost']} lost; us per token: wall"
                      f" {run['wall_us_per_token']:.0f}; of CPU {costs}; others had {run['busy_percent']['others']:.0f} % of the"
                      " cores", flush=True)  # fmt: skip
                for reason, count in run["figures"]["failures"].items():
                    print(f"        {count} failed: {reason}", flush=True)
    return described, runs


def measure_fakes(args: argparse.Namespace) -> list[dict]:
    """Gateway and frontend alone."""
    overheads = []
    for streams in args.streams:
        pace = streams, args.fake_tokens, interval_s(streams, args.tokens_per_s)
        found: dict[str, Overhead] = {"gateway": uvloop.run(gateway_overhead.measure(*pace))}
        found["frontend"] = uvloop.run(frontend_overhead.measure(*pace, args.model))
        for service, one in found.items():
            print(f"{service}: {one}", flush=True)
            overheads.append({"service": service, **dataclasses.asdict(one)})
    return overheads


def run(args: argparse.Namespace) -> dict:
    """Start what is needed, measure, stop it; returns the results."""
    raise_open_files_limit()
    described, runs = measure_stack(args)
    load_keys = ("model", "streams", "max_tokens", "prompt_words", "min_requests", "repeats", "seed", "serve_args", "tokens_per_s")
    return {
        **described,
        "load": {**{key: getattr(args, key) for key in load_keys}, "fake_tokens": args.fake_tokens},
        "others_percent": max(run["busy_percent"]["others"] for run in runs),
        "runs": runs,
        "overheads": measure_fakes(args) if args.fakes else [],
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TEXT_MODEL, help="what `triptych serve` shall serve")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 250, 1000], metavar="N", help="at once")
    parser.add_argument("--max-tokens", type=int, default=64, help="output tokens of each stream")
    parser.add_argument("--prompt-words", type=int, default=5)
    parser.add_argument("--min-requests", type=int, default=16, help="a few streams send several requests, one after the other")
    parser.add_argument("--repeats", type=int, default=1, help="rounds")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="of one round of one number of streams")
    parser.add_argument(
        "--fakes", action=argparse.BooleanOptionalAction, default=True, help="measure gateway and frontend alone, too"
    )
    parser.add_argument("--fake-tokens", type=int, default=TOKENS, help="there, tokens of each stream")
    parser.add_argument("--tokens-per-s", type=float, default=TOKENS_PER_S, help="there, tokens of all streams together")
    parser.add_argument("--name", default="streams", help="of the results file")
    parser.add_argument("--report", action="store_true", help="write tables and charts of docs/performance.md from the results")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    counts = [*args.streams, args.max_tokens, args.prompt_words, args.min_requests, args.repeats, args.fake_tokens]
    if min(counts) < 1 or min(args.timeout_s, args.tokens_per_s) <= 0:
        parser.error("all counts and times must be positive")
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: sum(each["num_lost"] for each in results["runs"]), args.name, report=args.report)


if __name__ == "__main__":
    main()
