"""A conversation over gRPC: its turns, the parameters of the next one, and its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from triptych import ChatStream, Client
from triptych.errors import TriptychError
from triptych.requests.media import Kind
from triptych.v1 import generation_pb2

from triptych_cli.errors import CommandError

#: Parameter of `/set` -> its type.
PARAMETERS: dict[str, type] = {
    "model": str,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "reasoning_effort": str,
}
#: A file that goes with the next turn, by its kind.
Attachment = tuple[Kind, str]
#: A piece of an answer.
Piece = tuple[Literal["text", "reasoning"], str]


@dataclass
class Conversation:
    """The turns so far, and the parameters for the next one.

    Args:
        client: of the gateway.
        parameters: some of PARAMETERS.
    """

    client: Client
    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    #: As OpenAI's messages. Media are parts with a path or an address.
    turns: list[dict[str, Any]] = field(default_factory=list)
    #: What has come of the last answer.
    response: generation_pb2.ChatResponse = field(default_factory=generation_pb2.ChatResponse)
    _stream: ChatStream | None = None
    _is_stopped: bool = False

    def reset(self) -> None:
        """Forget all turns. The system message stays."""
        self.turns.clear()

    def set(self, name: str, value: str) -> None:
        """Set a parameter, or `system`. An empty value takes it back. Raises CommandError if the name or the value is unknown."""
        if name == "system":
            self.system = value or None
            return
        if name not in PARAMETERS:
            raise CommandError(f"there is no parameter {name}; there are system, {', '.join(PARAMETERS)}")
        try:
            self.parameters[name] = PARAMETERS[name](value) if value else None
        except ValueError as error:
            raise CommandError(f"{name} is a number, not {value!r}") from error

    def ask(self, text: str, attachments: tuple[Attachment, ...] = ()) -> Iterator[Piece]:
        """Send a user's turn. Yields the answer as it arrives.

        Closing the iterator, or an interrupt inside it, cancels the call; the text so far is then the answer. After an error the
        turn is not kept.

        Raises:
            TriptychError: the request was refused, or the connection was lost.
            OSError: a file cannot be read.
        """
        turn = {"role": "user", "content": text if not attachments else _parts(text, attachments)}
        preamble = [{"role": "system", "content": self.system}] if self.system else []
        stream = self._stream = self.client.chat_stream([*preamble, *self.turns, turn], **self.parameters)
        if self._is_stopped:  # stopped before there was a call
            stream.close()
        answer, is_kept = "", True
        try:
            for response in stream:
                for delta in response.choices:
                    answer += delta.text
                    if delta.reasoning:
                        yield "reasoning", delta.reasoning
                    if delta.text:
                        yield "text", delta.text
        except TriptychError:
            is_kept = False
            raise
        finally:
            if is_kept:
                self.turns += [turn, {"role": "assistant", "content": answer}]
                self.response = stream.response
            stream.close()
            self._stream, self._is_stopped = None, False

    def stop(self) -> None:
        """End the current answer; the text so far is then the answer. May be called by a signal handler."""
        self._is_stopped = True
        if self._stream is not None:
            self._stream.close()

    def save(self, path: Path) -> None:
        """Write turns and parameters to a file of JSON. Raises CommandError."""
        content = {"system": self.system, "parameters": self.parameters, "messages": self.turns}
        try:
            # What was typed in another encoding has lone surrogates, which are so written as JSON has them.
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Go on with the conversation in a file that `save` wrote. Raises CommandError; then nothing has changed."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            system, parameters, turns = content["system"], dict(content["parameters"]), list(content["messages"])
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CommandError(f"{path} is no saved conversation") from error
        if unknown := parameters.keys() - PARAMETERS:
            raise CommandError(f"{path} has unknown parameters: {', '.join(sorted(unknown))}")
        self.system, self.parameters, self.turns = system, parameters, turns


def _parts(text: str, attachments: tuple[Attachment, ...]) -> list[dict[str, Any]]:
    media: list[dict[str, Any]] = [{"type": kind, kind: source} for kind, source in attachments]
    return [*media, {"type": "text", "text": text}]
