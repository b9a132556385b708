"""`triptych serve`: fetches the model, checks the ports, then runs all services until told to stop."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from rich.console import Console
from triptych.errors import StartupError
from triptych_common.model.pooling import pooling_model
from triptych_common.model.store import served_name

from triptych_cli.errors import CommandError
from triptych_cli.models.fetch import fetch
from triptych_cli.stack.launcher import check_ready_fd, stop_with_parent, write_addresses
from triptych_cli.stack.plan import ServeOptions, Service, needs_encoder, plan, port_claims, spec
from triptych_cli.stack.ports import check_ports
from triptych_cli.stack.service_flags import ServiceArgs, has_flag
from triptych_cli.stack.supervisor import ServiceFailedError, supervise
from triptych_cli.terminal import TerminalReporter


def serve(options: ServeOptions, service_args: ServiceArgs) -> None:
    """Run all services on this machine. Raises CommandError when they cannot start or cannot be kept running."""
    if options.parent_pid is not None:
        stop_with_parent(options.parent_pid)
    if options.ready_fd is not None:
        check_ready_fd(options.ready_fd)
    services = plan(options, service_args, with_encoder=False)
    check_ports(port_claims(services))
    console = Console(stderr=True, highlight=False)
    if has_flag(service_args.get("gateway", ()), "--api-key"):
        console.print(
            "every user of this machine can see a key on a command line; set TRIPTYCH_GATEWAY_API_KEY instead", soft_wrap=True
        )
    path, _ = fetch(options.model, console)
    try:
        pooling = pooling_model(path, options.task or "auto")
    except StartupError as error:
        raise CommandError(str(error)) from error
    # Bidirectional models read text alone.
    if not (pooling and pooling.is_bidirectional) and needs_encoder(path, options, service_args):
        services = plan(options, service_args, with_encoder=True)
        check_ports(port_claims(services))
    # JSON lines name their service, and with a prefix they would not be JSON.
    prefix_lines = options.log_format != "json"
    reporter = TerminalReporter(
        console,
        [service.name for service in services],
        prefix_lines,
        lambda elapsed_s: announce(services, elapsed_s, options.ready_fd, generates=pooling is None),
    )
    try:
        with reporter:
            supervise([spec(service) for service in services], reporter)
    except ServiceFailedError as error:
        reporter.failed(f"{error}; its last lines:")
        reporter.show_last_lines(error.last_lines)
        raise CommandError(str(error)) from error


def announce(services: list[Service], elapsed_s: float, ready_fd: int | None = None, *, generates: bool) -> None:
    """Print the addresses, and a command to paste. Write them to `ready_fd` as well."""
    frontend, gateway = (next(service for service in services if service.kind == kind) for kind in ("frontend", "gateway"))
    # These fields belong to the settings classes of frontend and gateway, not to their base class.
    model = getattr(frontend.settings, "served_model_name", None) or served_name(getattr(frontend.settings, "model", ""))
    print(file=sys.stdout)
    print(f"Triptych serves {model} at {gateway.url} (ready after {elapsed_s:.1f} s)")
    if generates and getattr(gateway.settings, "playground", False):
        print(f"  open {gateway.url} in a browser to chat")
    print(f"  documentation {gateway.url}/docs · gRPC {gateway.grpc_address} · Ctrl-C stops it")
    has_key = bool(getattr(gateway.settings, "has_keys", False))
    https_dir = getattr(gateway.settings, "https_dir", None)
    # `triptych certs` writes the authority beside the certificate.
    authority = https_dir / "ca.crt" if https_dir is not None and (https_dir / "ca.crt").is_file() else None
    print(f"  {curl_line(gateway.url, model, has_key, authority, generates=generates)}", flush=True)
    if ready_fd is not None:
        write_addresses(ready_fd, model, services)


def curl_line(url: str, model: str, has_key: bool = False, authority: Path | None = None, *, generates: bool = True) -> str:
    """A first request, as a shell command.

    Args:
        authority: the file of an authority that machines do not know.
    """
    question, route = "What is the capital of France?", "chat/completions" if generates else "embeddings"
    body: dict[str, object] = {"model": model, "input": [question]}
    if generates:
        body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
    key = ' -H "Authorization: Bearer $TRIPTYCH_GATEWAY_API_KEY"' if has_key else ""
    trust = f"--cacert {shlex.quote(str(authority))} " if authority is not None else ""
    return f"curl {trust}{url}/v1/{route} -H 'Content-Type: application/json'{key} -d '{json.dumps(body)}'"
