"""Writes the answers of both routes: a text, or events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.audio.schema import AudioRequest
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.logprobs import token_json


class TranscriptWriter:
    """Writes a transcript or translation, streamed or whole. What a model thinks is no part of it."""

    def __init__(self, body: AudioRequest) -> None:
        self._is_text = body.is_text
        self._with_logprobs = body.with_logprobs
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def opening(self, num_choices: int) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """A transcript.text.delta event."""
        logprobs = list(map(token_json, delta.logprobs)) if self._with_logprobs else []
        if not delta.text and not logprobs:
            return b""
        self._texts.append(delta.text)
        self._logprobs += logprobs
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta.text}
        return _event(event | {"logprobs": logprobs} if self._with_logprobs else event)

    def closing(self, cost: Cost) -> bytes:
        """The transcript.text.done event."""
        done = {"type": "transcript.text.done", "text": "".join(self._texts), "usage": _usage_json(cost.usage)}
        return _event(done | {"logprobs": self._logprobs} if self._with_logprobs else done)

    def failure(self, error: ApiError) -> bytes:
        """An event with the error's body."""
        return b"data: " + error.body + b"\n\n"

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer as JSON or as text."""
        choice = choices[0]
        if self._is_text:
            return choice.text.encode()
        answer: dict[str, Any] = {"text": choice.text, "usage": _usage_json(cost.usage)}
        return orjson.dumps(answer | {"logprobs": list(map(token_json, choice.logprobs))} if self._with_logprobs else answer)


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"audio_tokens": usage.audio_tokens, "text_tokens": usage.prompt_tokens - usage.audio_tokens},
    }
