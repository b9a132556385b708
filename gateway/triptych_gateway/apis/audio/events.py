"""Writes the answers of both routes: a text, events, or a transcript with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.audio.cutting import Speech
from triptych_gateway.apis.audio.formats import Header, TimedText, srt, verbose_json, vtt
from triptych_gateway.apis.audio.schema import AudioRequest
from triptych_gateway.apis.audio.segments import joined, segments_of, separator
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.logprobs import token_json


class TranscriptWriter:
    """Writes a transcript or translation, streamed or whole. What a model thinks is no part of it.

    The pieces of a long file are generated at the same time, and each is a choice. Events tell them in order: what comes early
    waits.
    """

    def __init__(self, body: AudioRequest) -> None:
        self._is_text = body.is_text
        self._with_logprobs = body.with_logprobs
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        #: The choice that is being told, and whether some of its text was.
        self._told, self._is_begun = 0, False
        #: Choice -> text and log probabilities that wait.
        self._waiting: dict[int, list[tuple[str, list[dict[str, Any]]]]] = {}
        self._ended: set[int] = set()

    def opening(self, num_choices: int) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The transcript.text.delta events of what can be told."""
        logprobs = list(map(token_json, delta.logprobs)) if self._with_logprobs else []
        if delta.text or logprobs:
            self._waiting.setdefault(index, []).append((delta.text, logprobs))
        if delta.finish_reason:
            self._ended.add(index)
        return self._tell()

    def _tell(self) -> bytes:
        events = b""
        while True:
            for text, logprobs in self._waiting.pop(self._told, ()):
                events += self._event(text, logprobs)
            if self._told not in self._ended:
                return events
            self._told, self._is_begun = self._told + 1, False

    def _event(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        if self._told and not self._is_begun:
            text = text.lstrip()
            text = separator(self._text, text) + text
        if not text and not logprobs:
            return b""
        self._is_begun = self._is_begun or bool(text)
        self._text += text
        self._logprobs += logprobs
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        return _sse(event | {"logprobs": logprobs} if self._with_logprobs else event)

    def closing(self, cost: Cost) -> bytes:
        """The transcript.text.done event."""
        done = {"type": "transcript.text.done", "text": self._text, "usage": _usage_json(cost.usage)}
        return _sse(done | {"logprobs": self._logprobs} if self._with_logprobs else done)

    def failure(self, error: ApiError) -> bytes:
        """An event with the error's body."""
        return b"data: " + error.body + b"\n\n"

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer as JSON or as text."""
        text = joined([choice.text for choice in choices])
        if self._is_text:
            return text.encode()
        answer: dict[str, Any] = {"text": text, "usage": _usage_json(cost.usage)}
        logprobs = [token_json(entry) for choice in choices for entry in choice.logprobs]
        return orjson.dumps(answer | {"logprobs": logprobs} if self._with_logprobs else answer)


class TimedWriter(TranscriptWriter):
    """Writes a transcript with times, whole: each choice is of a piece of the speech."""

    def __init__(self, body: AudioRequest, speech: Speech) -> None:
        super().__init__(body)
        self._format = body.response_format
        # Without the sound, which is freed as soon as a frontend has it.
        self._pieces = [replace(piece, wav=b"") for piece in speech.pieces]
        self._header = Header(body.task, body.language_of_text, speech.duration_s, body.temperature or 0.0)

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer in the format that was asked for."""
        parts = [
            TimedText(segments_of(piece, choice.text), choice.logprobs, choice.token_ids)
            for piece, choice in zip(self._pieces, choices, strict=True)
        ]
        if self._format == "verbose_json":
            return orjson.dumps(verbose_json(self._header, parts))
        return (srt if self._format == "srt" else vtt)(parts).encode()


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"audio_tokens": usage.audio_tokens, "text_tokens": usage.prompt_tokens - usage.audio_tokens},
    }
