"""Time to first token of pictures, and text streams during a flood of new pictures, by turns.

    python -m benchmarks.encoder --model MODEL                        # starts `triptych serve`, measures it, stops it
    python -m benchmarks.encoder --model MODEL --baseline ../before   # and another checkout
    python -m benchmarks.encoder --model MODEL --peer http://127.0.0.1:9100 --peer-model llava --peer-name "vLLM 0.32 CPU" \\
        --peer-command "$(cat vllm-command.txt)"
    python -m benchmarks.encoder --flood 4 --pictures 1 --rounds 1 --alone-s 2 -- --engine.num-threads 1

MODEL takes pictures. What follows `--` goes to `triptych serve`. In each round the targets take turns with the same pictures, so
that whatever else the machine does meets all of them, and only ratios within one round are worth quoting. All targets stay loaded,
and one at a time is under load.

A turn is --pictures times one new picture that is asked about in several ways one after the other (a streamed chat; TTFT is the
time from sending it to its first text), then four text streams: --alone-s seconds alone, and beside --flood new pictures that come
all at once. Of each of Triptych's answers about one picture it is checked, by what the answer itself tells, that it is the case it
stands for.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import grpc
from triptych.v1 import control_pb2, control_pb2_grpc
from triptych_cli.load.client import FAILURES, run_async
from triptych_common.settings import DEFAULT_MODEL

from benchmarks.errors import BenchmarkError
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.harness.stack import HOST
from benchmarks.harness.targets import Server, add_target_arguments, check_target_arguments, describe_load, running_servers
from benchmarks.load.pictures import CASES, NEW, Subject, ask_in_all_ways, new_picture, put_flood
from benchmarks.report.hold import hold

_CONTROL_PORT = "--engine.control-port"
_CONTROL_TIMEOUT_S = 30.0
#: A turn begins with a small flood that is not counted: so many pictures, so long before them, so many tokens of each text.
_WARM_UP_PICTURES, _WARM_UP_S, _WARM_UP_TOKENS = 2, 0.5, 8


def resetter(control_port: int) -> Callable[[], None]:
    """Has the engine behind this control port forget its prefixes and embeddings."""

    def reset() -> None:
        with grpc.insecure_channel(f"{HOST}:{control_port}", [("grpc.enable_http_proxy", 0)]) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            stub.ResetCache(control_pb2.ResetCacheRequest(), timeout=_CONTROL_TIMEOUT_S)

    return reset


def subject_of(server: Server) -> Subject:
    """How to load a server."""
    if server.stack is None:
        return Subject(server.target)
    return Subject(server.target, resetter(server.stack.ports[_CONTROL_PORT]))


def measure(subjects: dict[str, Subject], args: argparse.Namespace) -> list[dict]:
    """All rounds; prints each turn as it ends."""
    runs = []
    for repeat in range(args.rounds):
        pictures = [new_picture(args.size) for _ in range(args.pictures)]
        flood_pictures = [new_picture(args.size) for _ in range(args.flood)]
        for name, subject in subjects.items():
            warm_up(subject, args)
            samples = [sample for picture in pictures for sample in run_async(ask_in_all_ways(subject, picture, args.timeout_s))]
            options = {"alone_s": args.alone_s, "stream_tokens": args.stream_tokens, "timeout_s": args.timeout_s}
            flood = run_async(put_flood(subject.target, flood_pictures, **options))
            new_ms = statistics.median(sample["ttft_ms"] for sample in samples if sample["case"] == NEW)
            rate = flood["beside"]["output_tokens_per_s"]
            print(
                f"round {repeat}, {name}: TTFT of a new picture {new_ms:.0f} ms, text beside the flood {rate:.0f} tokens/s",
                flush=True,
            )
            for reason, count in flood["failures"].items():
                print(f"  {count} pictures failed: {reason}", flush=True)
            runs.append({"target": name, "repeat": repeat, "samples": samples, "flood": flood})
    return runs


def warm_up(subject: Subject, args: argparse.Namespace) -> None:
    """Idle since its last turn: systems page idle programs out, and reading them in again is nobody's serving."""
    run_async(ask_in_all_ways(subject, new_picture(args.size), args.timeout_s))
    pictures = [new_picture(args.size) for _ in range(_WARM_UP_PICTURES)]
    run_async(put_flood(subject.target, pictures, alone_s=_WARM_UP_S, stream_tokens=_WARM_UP_TOKENS, timeout_s=args.timeout_s))


def run(args: argparse.Namespace) -> dict:
    """Start what is needed, measure, stop it; returns the results."""
    with running_servers(args, (_CONTROL_PORT,)) as servers:
        stacks = [server.stack for server in servers.values() if server.stack is not None]
        described = describe("encoder", [process for stack in stacks for process in stack.services.values()])
        try:
            runs = measure({name: subject_of(server) for name, server in servers.items()}, args)
        except FAILURES as error:
            raise BenchmarkError(f"a request failed: {error!r}") from error
        except ExceptionGroup as errors:
            raise BenchmarkError(f"a text stream failed: {errors.exceptions[0]!r}") from errors
    keys = ("size", "pictures", "flood", "rounds", "alone_s", "stream_tokens")
    return {
        **described,
        "load": describe_load(args, *keys),
        "servers": [server.about for server in servers.values()],
        "cases": [case.name for case in CASES],
        "runs": runs,
    }


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    add_target_arguments(parser, DEFAULT_MODEL)
    parser.add_argument("--size", type=int, default=512, help="pixels of a picture's edge")
    parser.add_argument("--pictures", type=int, default=5, help="that are asked about one by one, in each turn")
    parser.add_argument("--flood", type=int, default=64, help="new pictures at once beside the text streams")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone-s", type=float, default=8.0, help="how long the text streams run alone, in seconds")
    parser.add_argument("--stream-tokens", type=int, default=200, help="output tokens of each answer in the text streams")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of each request")
    parser.add_argument("--name", default="encoder", help="of the results file")
    args = parser.parse_args()
    check_positive(parser, args.size, args.pictures, args.flood, args.rounds, args.stream_tokens, args.timeout_s, args.alone_s)
    check_target_arguments(parser, args)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: sum(each["flood"]["num_failed"] for each in results["runs"]), args.name)


if __name__ == "__main__":
    main()
