"""`triptych serve`: fetches the models, checks the ports, then runs all services until told to stop."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from triptych_common.host.gpus import num_nvidia_gpus
from triptych_common.host.memory import usable_memory
from triptych_common.settings import parse_bytes

from triptych_cli.errors import CommandError
from triptych_cli.manager.prepared import Checkpoint, Prepared, fetched
from triptych_cli.manager.running import Running
from triptych_cli.stack.launcher import check_ready_fd, stop_with_parent, write_addresses
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import plan_gateway, plan_model
from triptych_cli.stack.ports import check_ports
from triptych_cli.stack.service import Service, port_claims, spec
from triptych_cli.stack.service_flags import ServiceArgs, has_flag
from triptych_cli.stack.supervise import supervise
from triptych_cli.stack.supervisor import ServiceFailedError
from triptych_cli.terminal import TerminalReporter

#: Longest path of the folder for temporary files.
_MAX_PATH = 70


def serve(models: Sequence[ServeOptions], service_args: ServiceArgs, memory: str | None = None) -> None:
    """Run all services on this machine.

    Args:
        models: the options of each model. What concerns the gateway is the same in all of them.
        memory: of all models together, as 16G; None is what is free.

    Raises:
        CommandError: they cannot start, or cannot be kept running.
    """
    options = models[0]
    if options.parent_pid is not None:
        stop_with_parent(options.parent_pid)
    if options.ready_fd is not None:
        check_ready_fd(options.ready_fd)
    budget = _bytes(memory)
    # Before models are fetched, which may take long.
    services = [service for one in models for service in plan_model(one, service_args, with_encoder=False)]
    check_ports(port_claims([*services, plan_gateway(options, service_args, services)]))
    console = Console(stderr=True, highlight=False)
    if has_flag(service_args.get("gateway", ()), "--api-key"):
        console.print(
            "every user of this machine can see a key on a command line; set TRIPTYCH_GATEWAY_API_KEY instead", soft_wrap=True
        )
    checkpoints = [fetched(one, service_args, console) for one in models]
    if budget is None and len(checkpoints) == 1 and not num_nvidia_gpus():
        warn_of_little_memory(checkpoints[0], usable_memory().available, console)
    # The path of a socket has 107 characters at most.
    place = None if len(tempfile.gettempdir()) < _MAX_PATH else "/tmp"  # noqa: S108 - a folder of this user alone is made there
    with tempfile.TemporaryDirectory(prefix="triptych-", dir=place) as folder:
        _run(Running(checkpoints, service_args, budget, Path(folder), console), options, console)


def warn_of_little_memory(checkpoint: Checkpoint, available: int, console: Console) -> None:
    """Say, before it is loaded, that a model probably needs more memory than is free, in bytes."""
    least = checkpoint.needs.least
    if least > available:
        needs = (
            f"{escape(checkpoint.options.model)} needs about {least / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free"
        )
        console.print(
            f"[yellow]{needs}[/]: the system may end its services. --quantization int4 or a smaller --engine.kv-cache-memory helps",
            soft_wrap=True,
        )


def _run(running: Running, options: ServeOptions, console: Console) -> None:
    services = [*running.services, running.gateway]
    check_ports(port_claims(services))
    # JSON lines name their service, and with a prefix they would not be JSON.
    prefix_lines = options.log_format != "json"
    reporter = TerminalReporter(
        console,
        [service.name for service in services],
        prefix_lines,
        lambda elapsed_s: announce(running.models, running.gateway, elapsed_s, options.ready_fd),
    )
    try:
        with reporter:
            supervise([spec(running.gateway)], reporter, lambda supervisor: running.main(supervisor, reporter.all_ready))
    except ServiceFailedError as error:
        reporter.failed(f"{error}; its last lines:")
        reporter.show_last_lines(error.last_lines)
        raise CommandError(str(error)) from error


def _bytes(memory: str | None) -> int | None:
    size = None if memory is None else parse_bytes(memory)
    if size is not None and not isinstance(size, int):
        raise CommandError(f"--memory: {memory!r} is not a size, such as 16G", exit_code=2)
    return size


def announce(models: Sequence[Prepared], gateway: Service, elapsed_s: float, ready_fd: int | None = None) -> None:
    """Print the addresses, and a command to paste. Write them to `ready_fd` as well."""
    names = [model.name for model in models]
    first = next((model for model in models if model.generates and not model.transcribes), models[0])
    print(file=sys.stdout)
    print(f"Triptych serves {', '.join(names)} at {gateway.url} (ready after {elapsed_s:.1f} s)")
    if first.generates and not first.transcribes and getattr(gateway.settings, "playground", False):
        print(f"  open {gateway.url} in a browser to chat")
    print(f"  documentation {gateway.url}/docs · gRPC {gateway.grpc_address} · Ctrl-C stops it")
    key = None
    if getattr(gateway.settings, "has_keys", False):  # a key of a file is in no variable yet: this is the one that commands read
        key = "TRIPTYCH_API_KEY" if getattr(gateway.settings, "api_key", None) is None else "TRIPTYCH_GATEWAY_API_KEY"
    https_dir = getattr(gateway.settings, "https_dir", None)
    # `triptych certs` writes the authority beside the certificate.
    authority = https_dir / "ca.crt" if https_dir is not None and (https_dir / "ca.crt").is_file() else None
    kind = "transcribe" if first.transcribes else "generate" if first.generates else "embed"
    print(f"  {curl_line(gateway.url, first.name, key, authority, kind=kind)}", flush=True)
    if ready_fd is not None:
        write_addresses(ready_fd, names, [*(service for model in models for service in model.services), gateway])


def curl_line(url: str, model: str, key: str | None = None, authority: Path | None = None, *, kind: str = "generate") -> str:
    """A first request, as a shell command.

    Args:
        key: the environment variable with the API key; None if callers need none.
        authority: the file of an authority that machines do not know.
        kind: what the model does: generate, embed or transcribe.
    """
    question = "What is the capital of France?"
    header = f' -H "Authorization: Bearer ${key}"' if key is not None else ""
    trust = f"--cacert {shlex.quote(str(authority))} " if authority is not None else ""
    if kind == "transcribe":
        return f"curl {trust}{url}/v1/audio/transcriptions{header} -F model={shlex.quote(model)} -F file=@speech.wav"
    route, body = "embeddings", dict[str, object]({"model": model, "input": [question]})
    if kind == "generate":
        route = "chat/completions"
        body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
    return f"curl {trust}{url}/v1/{route} -H 'Content-Type: application/json'{header} -d '{json.dumps(body)}'"
