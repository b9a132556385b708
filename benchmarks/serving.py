"""Output tokens/s, time to first token, gaps, memory and cold start of servers under load, by turns.

    python -m benchmarks.serving                                   # starts `triptych serve`, measures it, stops it
    python -m benchmarks.serving --engine-alone                    # and the engine without services around it
    python -m benchmarks.serving --grpc                            # and the same over gRPC
    python -m benchmarks.serving --fake-engine                     # and gateway and frontend with a fake engine behind them
    python -m benchmarks.serving --baseline ../before              # and another checkout, for ratios before and after
    python -m benchmarks.serving --peer http://127.0.0.1:9100 --peer-model smollm2 --peer-name "vLLM 0.32 CPU" \\
        --peer-command "$(cat vllm-command.txt)"                   # and a server that runs already
    python -m benchmarks.serving --concurrency 1 8 --max-tokens 32 --repeats 1 -- --engine.num-threads 1

What follows `--` goes to `triptych serve`. All targets get the same requests from the same client. For each concurrency they take
turns (Triptych, engine alone, baseline, peer; again; ...), so that whatever else the machine does meets all of them, and only
ratios within one turn are worth quoting. All targets stay loaded, and one at a time is under load.

A load is a closed loop: so many streams of /v1/completions (of chats, with --pictures), each sending its next request as its
last one ends; greedy, end tokens ignored, so that every answer has --max-tokens tokens. Prompt lookup is off, unless the
environment sets TRIPTYCH_ENGINE_PROMPT_LOOKUP: such answers repeat themselves more than real ones. No two prompts of a sitting
begin alike. TTFT is the time from sending a request to its first text, a gap that between two pieces of text. Beside what the
client sees, the processor time of each service that runs here is taken before and after, and divided by the output tokens.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from triptych_cli.load.client import put_load, run_async
from triptych_cli.load.figures import Figures
from triptych_cli.load.requests import Prompts, Request, Target, chat, completion
from triptych_common.host.open_files import raise_open_files_limit
from triptych_common.model.store import TEXT_MODEL

from benchmarks.engine.alone import ENGINE_ALONE, running_engine_alone
from benchmarks.engine.fake import FAKE_ENGINE, running_without_model
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.harness.stack import Stack
from benchmarks.harness.targets import (
    TRIPTYCH,
    add_target_arguments,
    check_target_arguments,
    describe_load,
    running_servers,
)
from benchmarks.load.grpc import put_grpc_load
from benchmarks.load.pictures import new_picture
from benchmarks.report.hold import hold

#: A warm-up lets each target meet its largest batch once.
WARM_UP_TOKENS = 8
#: As many as the engine's default computes at once.
MAX_WARM_UP = 256
#: Before each run. vLLM's workers keep a core busy for a second after their last request, which would slow the next target down.
REST_S = 2.0

#: Puts requests on one target, so many at a time.
PutLoad = Callable[[Sequence[Request], int], Figures]
Watching = contextlib.AbstractContextManager[dict[str, dict]]


def over_rest(target: Target, timeout_s: float) -> PutLoad:
    """A load over HTTP."""
    return lambda requests, concurrency: run_async(put_load(target, requests, concurrency, timeout_s))


def over_grpc(stack: Stack, timeout_s: float) -> PutLoad:
    """A load over gRPC, at the address that `triptych serve` tells."""
    address, target = stack.grpc_address, stack.target
    return lambda requests, concurrency: run_async(put_grpc_load(address, target, requests, concurrency, timeout_s))


class Requests:
    """Requests of a sitting, as the command line has them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._prompts = args, Prompts(args.prompt_words, args.seed)

    def take(self, count: int, max_tokens: int) -> list[Request]:
        prompts = self._prompts.take(count)
        if not self._args.pictures:
            return [completion(prompt, max_tokens) for prompt in prompts]
        size, num_pictures = self._args.picture_size, self._args.pictures
        return [chat(prompt, max_tokens, [new_picture(size) for _ in range(num_pictures)]) for prompt in prompts]


def measure(targets: dict[str, PutLoad], stacks: dict[str, Stack], args: argparse.Namespace) -> list[dict]:
    """All rounds, each printed as it ends."""
    requests, most = Requests(args), min(max(args.concurrency), MAX_WARM_UP)
    for put in targets.values():
        put(requests.take(most, WARM_UP_TOKENS), most)
    print(f"{'streams':>7} {'round':>5}  {'target':<16} {'tok/s':>8}  TTFT p50/p99 ms   gap p50/p99 ms   ok/failed", flush=True)
    runs = []
    for concurrency in args.concurrency:
        for repeat in range(args.repeats):
            batch = requests.take(max(concurrency * args.requests_per_stream, args.min_requests), args.max_tokens)
            for name, put in targets.items():
                time.sleep(REST_S)
                # Idle since its last turn: systems page idle programs out, and reading them in again is nobody's serving.
                put(requests.take(1, WARM_UP_TOKENS), 1)
                watching: Watching = stacks[name].watching() if name in stacks else contextlib.nullcontext({})
                with watching as seen:
                    figures = put(batch, concurrency)
                print_run(name, concurrency, repeat, figures)
                run = {"target": name, "concurrency": concurrency, "repeat": repeat, "figures": dataclasses.asdict(figures)}
                cpu_s: dict[str, float] = seen.pop("cpu_s", {})
                costs = {service: seconds * 1e6 / max(1, figures.num_output_tokens) for service, seconds in cpu_s.items()}
                runs.append(run | seen | {"cpu_us_per_token": costs})
    return runs


def print_run(name: str, concurrency: int, repeat: int, figures: Figures) -> None:
    """One line, and why requests failed."""
    ttft, gap = (
        "/".join("-" if value is None else f"{value:.1f}" for value in values)
        for values in ((figures.ttft_p50_ms, figures.ttft_p99_ms), (figures.gap_p50_ms, figures.gap_p99_ms))
    )
    rate, counts = figures.output_tokens_per_s, f"{figures.num_ok}/{figures.num_failed}"
    print(f"{concurrency:7d} {repeat:5d}  {name:<16.16} {rate:8.1f}  {ttft:>15}  {gap:>15}   {counts:>9}", flush=True)
    for reason, count in figures.failures.items():
        print(f"        {count} failed: {reason}", flush=True)


def run(kind: str, args: argparse.Namespace) -> dict:
    """Start what is needed, measure, stop it; returns the results."""
    raise_open_files_limit()
    with contextlib.ExitStack() as exits:
        servers = exits.enter_context(running_servers(args))
        stacks = {name: server.stack for name, server in servers.items() if server.stack is not None}
        targets = {name: over_rest(server.target, args.timeout_s) for name, server in servers.items()}
        if args.grpc:
            for name, stack in [*stacks.items()]:
                targets[f"{name} gRPC"], stacks[f"{name} gRPC"] = over_grpc(stack, args.timeout_s), stack
        if args.fake_engine:
            stacks[FAKE_ENGINE] = exits.enter_context(running_without_model(args.model))
            targets[FAKE_ENGINE] = over_rest(stacks[FAKE_ENGINE].target, args.timeout_s)
        if args.engine_alone:
            engine = exits.enter_context(running_engine_alone(stacks[TRIPTYCH].engine_args))
            targets[ENGINE_ALONE] = lambda requests, concurrency: engine.put_load(requests, concurrency, args.timeout_s)
        described = describe(kind, list({process for stack in stacks.values() for process in stack.services.values()}))
        idle = {name: {"idle": stack.resident(), "cold_start": stack.cold_start} for name, stack in stacks.items()}
        runs = measure(targets, stacks, args)
    about = [server.about | idle.get(name, {}) for name, server in servers.items()]
    keys = ("concurrency", "max_tokens", "prompt_words", "requests_per_stream", "min_requests", "repeats", "seed", "pictures")
    return {**described, "load": describe_load(args, *keys, "picture_size"), "servers": about, "runs": runs}


def parse_args(document: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line; `defaults` in place of those that stand here."""
    parser = new_parser(document)
    add_target_arguments(parser, TEXT_MODEL)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64], metavar="N", help="streams at once")
    parser.add_argument("--max-tokens", type=int, default=128, help="output tokens of each request")
    parser.add_argument("--prompt-words", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=0, help="new pictures in each request, which is a chat then")
    parser.add_argument("--picture-size", type=int, default=512, help="pixels of a picture's edge")
    parser.add_argument("--requests-per-stream", type=int, default=3)
    parser.add_argument("--min-requests", type=int, default=4, help="a few streams send more, not to be judged by fewer")
    parser.add_argument("--repeats", type=int, default=2, help="rounds per concurrency")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts; a server that ran with it before has their prefixes")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="of one round of one target")
    parser.add_argument("--engine-alone", action="store_true", help="measure the engine in a process without services, too")
    parser.add_argument("--grpc", action="store_true", help="measure the same over gRPC, too; not with pictures")
    parser.add_argument("--fake-engine", action=argparse.BooleanOptionalAction, help="measure without a model, too")
    parser.add_argument("--name", default="serving", help="of the results file")
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    counts = [*args.concurrency, args.max_tokens, args.prompt_words, args.requests_per_stream, args.repeats, args.picture_size]
    check_positive(parser, *counts, args.min_requests, args.timeout_s)
    check_target_arguments(parser, args, taken=(ENGINE_ALONE, FAKE_ENGINE))
    if args.engine_alone and (args.pictures or args.peer_only):
        parser.error("--engine-alone needs Triptych, and takes no pictures")
    return args


def hold_serving(kind: str, args: argparse.Namespace) -> None:
    """Measure, and keep the results."""
    hold(lambda: run(kind, args), lambda results: sum(each["figures"]["num_failed"] for each in results["runs"]), args.name)


if __name__ == "__main__":
    hold_serving("serving", parse_args(__doc__))
