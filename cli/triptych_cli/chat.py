"""A conversation in the terminal, over gRPC."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from triptych import ChatStream, Client, TLSConfig
from triptych.client.config import addresses_of
from triptych.errors import DeadlineExceededError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.security.certificates import AUTHORITIES, CHAIN, KEY
from triptych_common.rpc.security.roles import Role

from triptych_cli.api_key import read_api_key
from triptych_cli.errors import CommandError

#: Longest wait for the answer to the first, small call, in seconds.
_CONNECT_TIMEOUT_S = 5.0


@dataclass
class Conversation:
    """The turns so far, and the parameters for the next one.

    Args:
        client: of the gateway.
        model: empty for the only served model.
    """

    client: Client
    model: str = ""
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    _turns: list[tuple[str, str]] = field(default_factory=list)
    _stream: ChatStream | None = None
    _is_stopped: bool = False

    def reset(self) -> None:
        """Forget all turns. The system message stays."""
        self._turns.clear()

    def ask(self, text: str) -> Iterator[str]:
        """Send a user's turn. Yields the answer as it arrives.

        Closing the iterator, or an interrupt inside it, cancels the call; the text so far is then the answer. After an error the
        turn is not kept.

        Raises:
            TriptychError: the request was refused, or the connection was lost.
        """
        turns = [*self._preamble(), *self._turns, ("user", text)]
        stream = self._stream = self.client.chat_stream(
            [{"role": role, "content": content} for role, content in turns],
            model=self.model,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
        )
        if self._is_stopped:  # stopped before there was a call
            stream.close()
        answer, is_kept = "", True
        try:
            for delta in stream.text_deltas():
                answer += delta
                yield delta
        except TriptychError:
            is_kept = False
            raise
        finally:
            if is_kept:
                self._turns += [("user", text), ("assistant", answer)]
            stream.close()
            self._stream, self._is_stopped = None, False

    def stop(self) -> None:
        """End the current answer; the text so far is then the answer. May be called by a signal handler."""
        self._is_stopped = True
        if self._stream is not None:
            self._stream.close()

    def _preamble(self) -> list[tuple[str, str]]:
        return [("system", self.system)] if self.system else []


def chat(
    address: str | None = None,
    *,
    model: str = "",
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tls_dir: Path | None = None,
    cacert: Path | None = None,
    api_key_file: Path | None = None,
    stdin: TextIO = sys.stdin,
    stdout: TextIO = sys.stdout,
) -> None:
    """Read turns and write answers until the input ends.

    Args:
        address: of a gateway or a frontend; None for that of the environment.
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
        served = _served_models(client, ", ".join(addresses_of(address)))
        conversation = Conversation(client, model, system, temperature, max_tokens)
        if stdin.isatty():
            Console(file=stdout).print(f"[bold]{model or served}[/] — Ctrl-C stops an answer, /reset starts anew, Ctrl-D ends")
            _talk(conversation, stdout)
        else:
            for line in stdin:
                if line.strip() and not _answer(conversation, line.strip(), stdout):
                    raise CommandError("no answer")


def _tls(directory: Path) -> TLSConfig:
    return TLSConfig(
        root_certificates=directory / AUTHORITIES,
        certificate=directory / CHAIN,
        private_key=directory / KEY,
        server_name=Role.FRONTEND.dns_name,
    )


def _served_models(client: Client, address: str) -> str:
    try:
        response = client.list_models(timeout_s=_CONNECT_TIMEOUT_S)
    except (ServiceUnavailableError, DeadlineExceededError) as error:
        raise CommandError(f"nobody answers at {address}; start one with `triptych serve`, or give --address") from error
    except TriptychError as error:
        raise CommandError(f"{address}: {error}") from error
    return ", ".join(info.name for info in response.models if not info.parent)


def _talk(conversation: Conversation, stdout: TextIO) -> None:
    import readline  # noqa: F401 - gives input() its line editing and history

    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print(file=stdout)
            return
        except KeyboardInterrupt:
            print(file=stdout)
            continue
        if text == "/reset":
            conversation.reset()
        elif text:
            _answer(conversation, text, stdout)


def _answer(conversation: Conversation, text: str, stdout: TextIO) -> bool:
    """Show one answer as it arrives. Returns False after an error, which is shown."""
    interrupts: list[int] = []

    def stop(number: int, frame: object) -> None:
        interrupts.append(number)
        conversation.stop()

    # No KeyboardInterrupt: it could be raised at any point, even inside gRPC.
    is_main = threading.current_thread() is threading.main_thread()  # only this thread may set signal handlers
    before = signal.signal(signal.SIGINT, stop) if is_main else None
    try:
        for delta in conversation.ask(text):
            stdout.write(delta)
            stdout.flush()
        if interrupts:
            stdout.write(" …")
    except TriptychError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return False
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    print(file=stdout, flush=True)
    return True
