"""What constraints cost clients: streams of free, constrained and mixed requests through the whole stack, by turns.

    python -m benchmarks.constraints.streams
    python -m benchmarks.constraints.streams --streams 8 --rounds 5 -- --engine.num-threads 1

What follows `--` are flags of `triptych serve`. Each round sends --streams requests at once, three times: all free, all with a JSON
schema that no output completes, and every other one with it. All sample at temperature 1. Tokens per second are those of the time
in which all streams run. Two speeds are compared within a round: that of all constrained streams with that of all free ones, which
should be at least 0.9, and that of the free streams beside constrained ones with that of the same streams among free ones, which
should be at least 0.98.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a stream was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence

from triptych_cli.load.client import run_async, send
from triptych_cli.load.figures import Answer, in_window
from triptych_cli.load.requests import Request, Target, completion
from triptych_common.model.store import TEXT_MODEL

from benchmarks.constraints.steps import KINDS, SCHEMA
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.stack import running_stack
from benchmarks.harness.targets import describe_load


def make_requests(kind: str, num_streams: int, max_tokens: int) -> list[Request]:
    """One for each stream; those at odd places are constrained in a mixed round."""
    requests = []
    for index in range(num_streams):
        request = completion(f"Story number {index}:", max_tokens)
        request.body.update({"temperature": 1.0, "seed": index})
        if kind == "constrained" or (kind == "mixed" and index % 2):
            request.body["structured_outputs"] = {"json": json.loads(SCHEMA)}
        requests.append(request)
    return requests


async def run_streams(target: Target, requests: Sequence[Request], timeout_s: float) -> list[Answer]:
    """All at once; their whole answers. Raises what a lost stream raised."""
    async with asyncio.timeout(timeout_s):
        return await asyncio.gather(*(send(target, request) for request in requests))


def speeds(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens per second while all streams run: of all, and of those at even places, which are free in a mixed round."""
    start_s, end_s = max(one.pieces_s[0] for one in answers), min(one.pieces_s[-1] for one in answers)
    of_all, of_even = (
        in_window([[one] for one in some], start_s, end_s)["output_tokens_per_s"] for some in (answers, answers[::2])
    )
    assert of_all is not None
    assert of_even is not None
    return {"all": of_all, "even": of_even}


def run(args: argparse.Namespace) -> dict:
    """Start the stack and measure; returns the results."""
    described, rounds = describe("constraints.streams"), []
    with running_stack(args.model, args.serve_args) as stack:
        for number in range(args.rounds + 1):
            one = {}
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                requests = make_requests(kind, args.streams, args.max_tokens)
                one[kind] = speeds(run_async(run_streams(stack.target, requests, args.timeout)))
            if number:  # the first round warms up
                rounds.append(one)
                print({kind: {name: round(speed, 1) for name, speed in each.items()} for kind, each in one.items()}, flush=True)
    ratios = {
        "constrained": statistics.median(one["constrained"]["all"] / one["free"]["all"] for one in rounds),
        "free beside constrained": statistics.median(one["mixed"]["even"] / one["free"]["even"] for one in rounds),
    }
    print(f"{args.streams} streams; speed against free ones: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()))
    keys = ("streams", "max_tokens", "rounds")
    return {**described, "load": describe_load(args, *keys), "rounds": rounds, "speed_of_free": ratios}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="at once")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="for the streams of one kind")
    parser.add_argument("--name", default="constraint-streams", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    check_positive(parser, args.streams, args.max_tokens, args.rounds, args.timeout)
    return args


def main() -> None:
    args = parse_args()
    try:
        results = run(args)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
