"""The servers of a sitting, which take turns under load: Triptych, another checkout of it, a peer that runs already."""

from __future__ import annotations

import argparse
import contextlib
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych_cli.load.requests import Target
from triptych_common.model.store import served_name

from benchmarks.errors import BenchmarkError
from benchmarks.harness.machine import describe_commit
from benchmarks.harness.sitting import without_directories
from benchmarks.harness.stack import Stack, running_stack

#: What they are called in results.
TRIPTYCH, BASELINE = "Triptych", "baseline"
_PEER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Server:
    """A server under load, and what results say of it.

    Attributes:
        stack: its processes; None of a server that this sitting did not start.
        about: name, version, command line, and of Triptych the commit.
    """

    target: Target
    about: dict[str, str]
    stack: Stack | None = None


def add_target_arguments(parser: argparse.ArgumentParser, model: str) -> None:
    """What is served, and beside what. `model` is the default."""
    parser.add_argument("--model", default=model, help="what `triptych serve` serves: directory, built-in name or hub id")
    parser.add_argument("--baseline", type=Path, metavar="DIRECTORY", help="another checkout of Triptych, started beside this one")
    parser.add_argument("--peer", metavar="URL", help="another OpenAI-compatible server, already running")
    parser.add_argument("--peer-model", default="", help="the name of the model there")
    parser.add_argument("--peer-name", default="peer", help="what to call it")
    parser.add_argument("--peer-command", help="the exact command line that it was started with; needed with --peer")
    parser.add_argument("--peer-only", action="store_true", help="start no Triptych")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")


def check_target_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace, taken: Sequence[str] = ()) -> None:
    """End with the parser's error where they make no sense. `taken`: names that the peer must not have."""
    if args.peer and not args.peer_command:
        parser.error("--peer needs --peer-command: figures of a server mean nothing without the command that started it")
    if args.peer_only and (not args.peer or args.baseline):
        parser.error("--peer-only needs --peer, and no --baseline")
    if args.baseline and not (args.baseline / "services").is_dir():
        parser.error(f"--baseline: {args.baseline} is no checkout of Triptych")
    if args.peer_name in (TRIPTYCH, BASELINE, *taken):
        parser.error(f"--peer-name: {args.peer_name} is the name of another target")


@contextlib.contextmanager
def running_servers(args: argparse.Namespace, port_flags: Sequence[str] = ()) -> Iterator[dict[str, Server]]:
    """Name -> server, in the order of their turns, for the time of the block. Raises BenchmarkError where one does not serve.

    Args:
        args: of `add_target_arguments`.
        port_flags: see `running_stack`.
    """
    servers = {}
    if args.peer:
        peer = Target(args.peer_name, args.peer.rstrip("/"), args.peer_model)
        check_peer(peer)
        about = {"name": peer.name, "version": _peer_version(peer), "command": without_directories(args.peer_command)}
        servers[peer.name] = Server(peer, about)
    with contextlib.ExitStack() as exits:
        ours: dict[str, Server] = {}
        checkouts = {} if args.peer_only else {TRIPTYCH: Path(__file__).parents[2]}
        if args.baseline:
            checkouts[BASELINE] = args.baseline
        for name, checkout in checkouts.items():
            stack = exits.enter_context(running_stack(args.model, args.serve_args, port_flags, name=name, checkout=checkout))
            commit = describe_commit(checkout)
            ours[name] = Server(stack.target, {"name": name, "version": commit, "command": stack.command, "commit": commit}, stack)
        yield ours | servers


def check_peer(peer: Target) -> None:
    """Raises BenchmarkError when the peer does not answer, or does not serve the model."""
    try:
        with urllib.request.urlopen(f"{peer.url}/v1/models", timeout=_PEER_TIMEOUT_S) as response:  # noqa: S310
            names = [model["id"] for model in json.load(response)["data"]]
    except (OSError, ValueError, KeyError) as error:
        raise BenchmarkError(f"the peer {peer.url} does not answer: {error}") from error
    if peer.model not in names:
        raise BenchmarkError(f"the peer {peer.url} serves {', '.join(names)}, not {peer.model} (--peer-model)")


def _peer_version(peer: Target) -> str:
    """As vLLM and its like tell it; empty where the server has no such route."""
    try:
        with urllib.request.urlopen(f"{peer.url}/version", timeout=_PEER_TIMEOUT_S) as response:  # noqa: S310
            return str(json.load(response)["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def describe_load(args: argparse.Namespace, *keys: str) -> dict:
    """The options that make up the load, as results keep them."""
    return {"model": served_name(args.model), "serve_args": args.serve_args} | {key: getattr(args, key) for key in keys}
