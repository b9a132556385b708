"""A conversation in the terminal. It calls the frontend over gRPC."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

import grpc
from rich.console import Console
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import CHANNEL_OPTIONS

from triptych_cli.errors import CommandError

#: Longest wait for the frontend's answer to the first, small call, in seconds.
_CONNECT_TIMEOUT_S = 5.0


@dataclass
class Conversation:
    """The turns so far, and the parameters for the next one.

    Args:
        stub: the frontend's GenerationService.
        model: empty for the only served model.
    """

    stub: generation_pb2_grpc.GenerationServiceStub
    model: str = ""
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    _turns: list[tuple[str, str]] = field(default_factory=list)
    _call: grpc.Call | None = None
    _is_stopped: bool = False

    def reset(self) -> None:
        """Forget all turns. The system message stays."""
        self._turns.clear()

    def ask(self, text: str) -> Iterator[str]:
        """Send a user's turn. Yields the answer as it arrives.

        Closing the iterator, or an interrupt inside it, cancels the call; the text so far is then the answer. After an error the
        turn is not kept.

        Raises:
            grpc.RpcError: the frontend refused the request, or the connection was lost.
        """
        sampling = common_pb2.SamplingParams(temperature=self.temperature, max_tokens=self.max_tokens)
        request = generation_pb2.ChatRequest(
            model=self.model,
            messages=[_message(role, content) for role, content in (*self._preamble(), *self._turns, ("user", text))],
            options=generation_pb2.GenerationOptions(sampling=sampling),
        )
        call = self._call = self.stub.ChatStream(generation_pb2.ChatStreamRequest(chat=request))
        if self._is_stopped:  # stopped before there was a call
            call.cancel()
        answer = ""
        try:
            for response in call:
                for choice in response.choices:
                    answer += choice.text
                    yield choice.text
        except grpc.RpcError:
            if not self._is_stopped:
                raise
            self._turns += [("user", text), ("assistant", answer)]
        except BaseException:
            self._turns += [("user", text), ("assistant", answer)]
            raise
        else:
            self._turns += [("user", text), ("assistant", answer)]
        finally:
            call.cancel()
            self._call, self._is_stopped = None, False

    def stop(self) -> None:
        """End the current answer; the text so far is then the answer. May be called by a signal handler."""
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()

    def _preamble(self) -> list[tuple[str, str]]:
        return [("system", self.system)] if self.system else []


def _message(role: str, content: str) -> generation_pb2.ChatMessage:
    return generation_pb2.ChatMessage(role=role, content=[generation_pb2.ContentPart(text=content)])


def chat(
    address: str,
    *,
    model: str = "",
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    stdin: TextIO = sys.stdin,
    stdout: TextIO = sys.stdout,
) -> None:
    """Read turns and write answers until the input ends. Raises CommandError when no frontend answers at the address."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        served = _served_models(stub, address)
        conversation = Conversation(stub, model, system, temperature, max_tokens)
        if stdin.isatty():
            Console(file=stdout).print(f"[bold]{model or served}[/] — Ctrl-C stops an answer, /reset starts anew, Ctrl-D ends")
            _talk(conversation, stdout)
        else:
            for line in stdin:
                if line.strip() and not _answer(conversation, line.strip(), stdout):
                    raise CommandError("no answer")


def _served_models(stub: generation_pb2_grpc.GenerationServiceStub, address: str) -> str:
    try:
        response = stub.ListModels(generation_pb2.ListModelsRequest(), timeout=_CONNECT_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise CommandError(f"no frontend answers at {address}; start one with `triptych serve`, or give --address") from error
        raise CommandError(f"{address}: {error.details()}") from error
    return ", ".join(info.name for info in response.models)


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
    except grpc.RpcError as error:
        print(f"\nerror: {error.details()}", file=sys.stderr)
        return False
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    print(file=stdout, flush=True)
    return True
