"""The dialect of /v1/audio/transcriptions and /v1/audio/translations: a chat model that takes audio is told what to do with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.dialects.cost import Cost
from triptych_gateway.dialects.dialect import Call, Choice, Encoder
from triptych_gateway.errors import ApiError
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.schemas.audio.transcriptions import AudioRequest, TranscriptionRequest

_FIELD_NAMES = {
    "messages[0].content[0]": "file",
    "messages[0].content[0].media": "file",
    "messages[0].content[0].media.format": "file",
    "messages[0].content[1]": "prompt",
    "options": "",
    "options.sampling": "",
    "sampling": "",
}
#: Endings of file names that say what a sound file is.
_FORMATS = frozenset({"flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm"})
_LOWEST_LOGPROB = -9999.0


def instruction(body: AudioRequest) -> str:
    """What the model is told to do."""
    if not isinstance(body, TranscriptionRequest):
        lines = ["Translate the speech in the audio into English. Write the translation only, without any comment."]
    else:
        lines = [
            "Transcribe the speech in the audio word for word, in its own language. Write the transcript only, without any comment."
        ]
        languages = [body.language] if body.language is not None else body.languages or ()
        if languages:
            lines.append(f"Language of the audio: {' or '.join(languages)}.")
        if body.keywords:
            lines.append(f"Words and names that may be in it: {', '.join(body.keywords)}.")
    if body.prompt:
        lines.append(f"Context, which is not part of the audio: {body.prompt}")
    return "\n".join(lines)


class AudioDialect:
    """Requests and answers of both routes."""

    async def parse(self, body: AudioRequest, request_id: str, files: FileParts) -> Call:
        chat = generation_pb2.ChatRequest(model=body.model)
        # Transcribing is no matter of taste: by default the likeliest tokens are taken, as OpenAI does.
        chat.options.sampling.temperature = body.temperature or 0.0
        if isinstance(body, TranscriptionRequest) and body.with_logprobs:
            chat.options.sampling.logprobs = 0
        turn = chat.messages.add(role="user")
        item = turn.content.add().media
        item.modality = common_pb2.MODALITY_AUDIO
        ending = body.file.name.rpartition(".")[2].lower()
        if ending in _FORMATS:
            item.format = ending
        turn.content.add(text=instruction(body))
        is_stream = isinstance(body, TranscriptionRequest) and bool(body.stream)
        mode = generation_pb2.OUTPUT_MODE_DELTA if is_stream else generation_pb2.OUTPUT_MODE_FINAL
        call = FrontendCall(chat, request_id, mode, [MediaFile(item, body.file.content)])
        return Call([call], 1, is_stream, _FIELD_NAMES)

    def encoder(self, body: AudioRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return TranscriptEncoder(body.is_text, isinstance(body, TranscriptionRequest) and body.with_logprobs)


class TranscriptEncoder:
    """Writes a transcript or translation, streamed or whole. What a model thinks is no part of it.

    Args:
        is_text: a whole answer is the text itself, and not JSON.
        with_logprobs: whether the client requested log probabilities.
    """

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, is_text: bool = False, with_logprobs: bool = False) -> None:
        self._is_text = is_text
        self._with_logprobs = with_logprobs
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def opening(self, num_choices: int) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """A transcript.text.delta event."""
        logprobs = _logprobs_json(delta.logprobs) if self._with_logprobs else []
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
        return orjson.dumps(answer | {"logprobs": _logprobs_json(choice.logprobs)} if self._with_logprobs else answer)


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _logprobs_json(logprobs: Iterable[generation_pb2.TokenLogprob]) -> list[dict[str, Any]]:
    return [{"token": entry.token, "bytes": list(entry.utf8), "logprob": max(entry.logprob, _LOWEST_LOGPROB)} for entry in logprobs]


def _usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_token_details": {"audio_tokens": usage.audio_tokens, "text_tokens": usage.prompt_tokens - usage.audio_tokens},
    }
