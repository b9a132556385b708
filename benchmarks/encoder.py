"""Time to first token of pictures, text streams during a flood of new pictures, and bytes on the wire per picture.

    python benchmarks/encoder.py MODEL                                    # starts `triptych serve`, measures it, stops it
    python benchmarks/encoder.py MODEL --inside                           # and the same with encoding inside the engine's process
    python benchmarks/encoder.py MODEL --peer http://127.0.0.1:9100 --peer-model llava --peer-name "vLLM 0.32 CPU"
    python benchmarks/encoder.py MODEL --flood 4 --pictures 1 --rounds 1 --alone-s 2 -- --engine.num-threads 1

`make bench ARGS='encoder MODEL ...'` is the same. MODEL takes pictures: a directory, a built-in name or a hub id. What follows `--`
goes to `triptych serve`. A peer is any OpenAI-compatible server that runs already; it gets the same pictures from the same client.
In each round the targets take turns, so that whatever else the machine does meets all of them, and only ratios within one round are
worth quoting. All targets stay loaded, and one at a time is under load.

A turn is --pictures times one new picture that is asked about in several ways one after the other (a streamed chat; TTFT is the
time from sending it to its first text), then four text streams: --alone-s seconds alone, and beside --flood new pictures that come
all at once. Of each of Triptych's answers about one picture it is checked, by what the answer itself tells, that it is the case it
stands for. Bytes on the wire are the encoder's counters. encoder_inside.py says what --inside is.

Results go to benchmarks/results/<date>-<name>.json with the machine's description; --report writes docs/performance.md from it.
The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import uvloop
from child import ChildError
from encoder_load import CASES, Flood, Subject, ask_in_all_ways, put_flood
from encoder_report import INSIDE
from encoder_wire import read_traffic
from load import FAILURES, Target
from pictures import Picture, new_picture
from serving import check_peer
from sitting import describe, hold
from stack import SERVE, Stack, running_stack
from tables import TRIPTYCH
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import WEIGHT_PATTERNS, has_towers, resolve_model, served_name
from triptych_common.pb import control_pb2, control_pb2_grpc
from triptych_common.rpc.errors import StartupError
from triptych_common.settings import DEFAULT_MODEL

T = TypeVar("T")
_LOCAL = "127.0.0.1"
_CONTROL_TIMEOUT_S = 30.0
#: A turn begins with a small flood that is not counted: so many pictures, so long before them, so many tokens of each text.
_WARM_UP_PICTURES, _WARM_UP_S, _WARM_UP_TOKENS = 2, 0.5, 8


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the client's event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def forgetter(control_port: int) -> Callable[[], None]:
    """Has the engine behind this control port forget its prefixes and embeddings."""

    def forget() -> None:
        with grpc.insecure_channel(f"{_LOCAL}:{control_port}", [("grpc.enable_http_proxy", 0)]) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            stub.ResetCache(control_pb2.ResetCacheRequest(), timeout=_CONTROL_TIMEOUT_S)

    return forget


@contextlib.contextmanager
def running_subject(name: str, args: argparse.Namespace) -> Iterator[tuple[Stack, Subject]]:
    """Triptych, as it is or with encoding inside, and how to load it; for the time of the block."""
    control_port, metrics_port = free_port(_LOCAL), free_port(_LOCAL)
    ports = ["--engine.control-port", str(control_port), "--encoder.metrics-port", str(metrics_port)]
    program: Sequence[str] = SERVE
    serve_args = [*args.serve_args, *ports]
    if name == INSIDE:
        program = [str(Path(__file__).with_name("encoder_inside.py"))]
        if args.inside_batch is not None:
            serve_args += ["--encoder.max-batch-embeddings", str(args.inside_batch)]
    with running_stack(args.model, serve_args, program, name) as stack:
        yield stack, Subject(stack.target, forgetter(control_port), lambda: read_traffic(metrics_port))


def measure(subjects: dict[str, Subject], args: argparse.Namespace) -> list[dict]:
    """All rounds; prints each turn as it ends."""
    runs = []
    for repeat in range(args.rounds):
        pictures = [new_picture(args.size) for _ in range(args.pictures)]
        flood = [new_picture(args.size) for _ in range(args.flood)]
        for name, subject in subjects.items():
            warm_up(subject, args)
            samples = [sample for picture in pictures for sample in run_async(ask_in_all_ways(subject, picture, args.timeout_s))]
            figures = run_async(flooded(subject, flood, args))
            print_run(name, repeat, samples, figures)
            runs.append({"target": name, "repeat": repeat, "samples": samples, "flood": dataclasses.asdict(figures)})
    return runs


def warm_up(subject: Subject, args: argparse.Namespace) -> None:
    """Idle since its last turn: systems page idle programs out, and reading them in again is nobody's serving."""
    run_async(ask_in_all_ways(subject, new_picture(args.size), args.timeout_s))
    pictures = [new_picture(args.size) for _ in range(_WARM_UP_PICTURES)]
    run_async(put_flood(subject.target, pictures, alone_s=_WARM_UP_S, stream_tokens=_WARM_UP_TOKENS, timeout_s=args.timeout_s))


async def flooded(subject: Subject, pictures: Sequence[Picture], args: argparse.Namespace) -> Flood:
    """One flood with the options of the command line."""
    return await put_flood(
        subject.target, pictures, alone_s=args.alone_s, stream_tokens=args.stream_tokens, timeout_s=args.timeout_s
    )


def print_run(name: str, repeat: int, samples: Sequence[dict], flood: Flood) -> None:
    """What one turn brought, medians of its pictures."""
    print(f"round {repeat}, {name}")
    for case in dict.fromkeys(sample["case"] for sample in samples):
        of_case = [sample for sample in samples if sample["case"] == case]
        wire = ""
        if "uploaded" in of_case[0]:
            file, uploaded, fetched = (sum(each[key] for each in of_case) for key in ("file_bytes", "uploaded", "fetched"))
            wire = f"; of {file} bytes of files {uploaded} to the encoder, {fetched} bytes of embeddings to the engine"
        print(f"  {case:<27} TTFT {statistics.median(each['ttft_ms'] for each in of_case):6.0f} ms{wire}")
    for label, window in (("alone", flood.alone), (f"beside {flood.num_pictures} pictures", flood.beside)):
        gaps = ", ".join(
            f"{key} {'-' if value is None else f'{value:.0f}'}"
            for key, value in (("p50", window.gap_p50_ms), ("p99", window.gap_p99_ms), ("max", window.gap_max_ms))
        )
        print(f"  text {label:<22} {window.output_tokens_per_s:5.0f} tok/s, gap {gaps} ms, {window.seconds:.1f} s")
    for reason, count in flood.failures.items():
        print(f"  {count} pictures failed: {reason}")
    sys.stdout.flush()


def run(args: argparse.Namespace) -> dict:
    """Start what is needed, measure, stop it; returns the results."""
    peer = Target(args.peer_name, args.peer.rstrip("/"), args.peer_model) if args.peer else None
    if peer is not None:
        check_peer(peer)
    name, names = served_name(args.model), [TRIPTYCH, INSIDE] if args.inside else [TRIPTYCH]
    with contextlib.ExitStack() as exits:
        stacks: dict[str, tuple[Stack, Subject]] = {each: exits.enter_context(running_subject(each, args)) for each in names}
        subjects = {each: subject for each, (_, subject) in stacks.items()}
        if peer is not None:
            subjects[peer.name] = Subject(peer)
        services = [process for stack, _ in stacks.values() for process in stack.services.values()]
        # Where the model lies is this machine's own affair.
        described = describe("encoder", services, [name if arg == args.model else arg for arg in sys.argv[1:]])
        try:
            runs = measure(subjects, args)
        except (*FAILURES, TimeoutError) as error:
            raise ChildError(f"a request failed: {error!r}") from error
        except ExceptionGroup as errors:
            raise ChildError(f"a text stream failed: {errors.exceptions[0]!r}") from errors
    load_keys = ("size", "pictures", "flood", "rounds", "alone_s", "stream_tokens", "inside_batch", "serve_args")
    return {
        **described,
        "load": {"model": name, **{key: getattr(args, key) for key in load_keys}},
        "peer": dataclasses.asdict(peer) if peer is not None else None,
        "cases": [case.name for case in CASES],
        "embedding": describe_embedding(args.model),
        "runs": runs,
    }


def describe_embedding(model: str) -> dict[str, int]:
    """What a token's embedding is: numbers, and bytes of each."""
    import torch  # seconds, and after the measurements
    from triptych_encoder.tower.loading import load_config

    config = load_config(resolve_model(model, WEIGHT_PATTERNS), model)
    text = config.get_text_config()
    dtype = getattr(config, "dtype", None) or getattr(text, "dtype", None) or torch.float32
    return {"hidden_size": text.hidden_size, "itemsize": dtype.itemsize}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="what `triptych serve` shall serve")
    parser.add_argument("--size", type=int, default=512, help="pixels of a picture's edge")
    parser.add_argument("--pictures", type=int, default=5, help="that are asked about one by one, in each turn")
    parser.add_argument("--flood", type=int, default=64, help="new pictures at once beside the text streams")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone-s", type=float, default=8.0, help="how long the text streams run alone, in seconds")
    parser.add_argument("--stream-tokens", type=int, default=200, help="output tokens of each answer in the text streams")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of each request")
    parser.add_argument("--inside", action="store_true", help="measure Triptych with encoding in the engine's process, too")
    parser.add_argument("--inside-batch", type=int, help="there, embeddings per turn of the towers; by default the encoder's")
    parser.add_argument("--peer", metavar="URL", help="another server, already running")
    parser.add_argument("--peer-model", default="", help="the name of the model there")
    parser.add_argument("--peer-name", default="peer", help="what to call it")
    parser.add_argument("--name", default="encoder", help="of the results file")
    parser.add_argument("--report", action="store_true", help="write the tables of docs/performance.md from the results")
    # By hand: argparse takes no positional arguments both before and after options.
    argv = sys.argv[1:]
    end = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:end], argparse.Namespace(serve_args=argv[end + 1 :]))
    counts = [args.size, args.pictures, args.flood, args.rounds, args.stream_tokens, args.inside_batch or 1]
    if min(counts) < 1 or min(args.timeout_s, args.alone_s) <= 0:
        parser.error("all counts and times must be positive")
    if args.peer_name in (TRIPTYCH, INSIDE):
        parser.error(f"--peer-name: {args.peer_name} is the name of another target")
    try:
        path = resolve_model(args.model, WEIGHT_PATTERNS)
    except StartupError as error:
        parser.error(str(error))
    if not has_towers(path):
        parser.error(f"{args.model} takes text only; give the directory of a model that takes pictures")
    return args


def main() -> None:
    args = parse_args()
    hold(
        lambda: run(args),
        lambda results: sum(each["flood"]["num_failed"] for each in results["runs"]),
        args.name,
        report=args.report,
    )


if __name__ == "__main__":
    main()
