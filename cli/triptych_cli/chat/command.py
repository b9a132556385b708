"""`triptych chat` with a gateway that runs, and `triptych run` with a model that may have to be started first."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from triptych import Client, LocalServer, TLSConfig
from triptych.client.config import addresses_of
from triptych.errors import DeadlineExceededError, ServiceUnavailableError, StartupError, TriptychError, UnauthenticatedError
from triptych_common.model.store import served_name
from triptych_common.rpc.security.certificates import AUTHORITIES, CHAIN, KEY
from triptych_common.rpc.security.roles import Role

from triptych_cli.api_key import read_api_key
from triptych_cli.chat.conversation import Attachment, Conversation
from triptych_cli.chat.terminal import Terminal
from triptych_cli.errors import CommandError
from triptych_cli.models.fetch import fetch
from triptych_cli.printable import printable

#: Longest wait for the answer to the first, small call, in seconds.
_CONNECT_TIMEOUT_S = 5.0


def chat(
    address: str | None = None,
    *,
    system: str | None = None,
    parameters: dict[str, Any] | None = None,
    tls_dir: Path | None = None,
    cacert: Path | None = None,
    api_key_file: Path | None = None,
    stdin: TextIO = sys.stdin,
    stdout: TextIO = sys.stdout,
) -> None:
    """Read turns and write answers until the input ends.

    Args:
        address: of a gateway or a frontend; None for that of the environment.
        parameters: of the answers, see `Conversation`.
        tls_dir: directory with a client's certificate, in the layout of the services' `tls_dir`; None for no mutual TLS.
        cacert: the authority of a gateway with TLS.
        api_key_file: None for the key of the environment, if it has one.

    Raises:
        CommandError: nobody answers at the address, or a file cannot be read.
    """
    tls = TLSConfig(root_certificates=cacert) if cacert is not None else None
    try:
        connection = Client(address, tls=_tls(tls_dir) if tls_dir is not None else tls, api_key=read_api_key(api_key_file))
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error
    with connection as client:
        where = ", ".join(addresses_of(address))
        served = _served_models(client, where)
        if served is None:
            raise CommandError(f"nobody answers at {where}; start one with `triptych serve`, or give --address")
        terminal = Terminal(Conversation(client, system, dict(parameters or {})), stdout)
        if stdin.isatty():
            _talk(terminal, (parameters or {}).get("model") or ", ".join(served), stdout)
        else:
            for line in stdin:
                if line.strip() and not terminal.answer(line.strip()):
                    raise CommandError("no answer")


def run(
    model: str,
    prompt: str | None = None,
    *,
    attachments: Sequence[Attachment] = (),
    system: str | None = None,
    parameters: dict[str, Any] | None = None,
    address: str | None = None,
    api_key_file: Path | None = None,
    stdin: TextIO = sys.stdin,
    stdout: TextIO = sys.stdout,
) -> None:
    """Answer one prompt, or talk if there is none. Uses a gateway that serves the model, or else starts the model until the end.

    Args:
        prompt: what the input has, if it is no terminal, follows it.
        attachments: files that go with the prompt.
        address: of the gateway that may serve the model; None for that of the environment.

    Raises:
        CommandError: the model cannot be started, or there is no answer.
    """
    if not stdin.isatty():
        prompt = "\n\n".join(filter(None, (prompt, stdin.read().strip())))
        if not prompt:
            raise CommandError("there is no prompt: the input is empty", exit_code=2)
    with _client_of(model, address, read_api_key(api_key_file)) as (client, name):
        terminal = Terminal(Conversation(client, system, {**(parameters or {}), "model": name}), stdout)
        if prompt is None:
            _talk(terminal, name, stdout)
        elif not terminal.answer(prompt, attachments):
            raise CommandError("no answer")


def _talk(terminal: Terminal, model: str, stdout: TextIO) -> None:
    Console(file=stdout).print(
        f"[bold]{escape(printable(model))}[/] — Ctrl-C stops an answer, Ctrl-D ends, /help lists what else there is"
    )
    terminal.talk()


@contextlib.contextmanager
def _client_of(model: str, address: str | None, api_key: str | None) -> Iterator[tuple[Client, str]]:
    """A client of a gateway that serves the model, and the model's name there."""
    name = served_name(model)
    with Client(address, api_key=api_key) as client:
        served = _served_models(client, ", ".join(addresses_of(address)))
        if served and name in served:
            yield client, name
            return
        if served is not None and address is not None:
            raise CommandError(f"{address} does not serve {name}, but {', '.join(served) or 'no model'}")
    console = Console(stderr=True, highlight=False)
    fetch(model, console)
    try:
        with console.status(escape(f"starting {name}; `triptych serve {model}` keeps it running")):
            server = LocalServer(model)
    except StartupError as error:
        raise CommandError(str(error)) from error
    with server, Client(server.addresses.grpc) as client:
        yield client, server.addresses.model


def _tls(directory: Path) -> TLSConfig:
    return TLSConfig(
        root_certificates=directory / AUTHORITIES,
        certificate=directory / CHAIN,
        private_key=directory / KEY,
        server_name=Role.FRONTEND.dns_name,
    )


def _served_models(client: Client, address: str) -> list[str] | None:
    """The models of a gateway, without adapters; None if nobody answers. Raises CommandError if it refuses."""
    try:
        response = client.list_models(timeout_s=_CONNECT_TIMEOUT_S)
    except (ServiceUnavailableError, DeadlineExceededError):
        return None
    except UnauthenticatedError as error:
        raise CommandError(f"{address}: {error}; give it in TRIPTYCH_API_KEY, or as --api-key-file FILE") from error
    except TriptychError as error:
        raise CommandError(f"{address}: {error}") from error
    return [info.name for info in response.models if not info.parent]
