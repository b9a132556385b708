"""Converts requests of both routes to the contract: a chat model that takes audio is told what to do with it, in words; a model
that only writes down speech (Whisper) in fields."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.audio.cutting import Piece
from triptych_gateway.apis.audio.schema import AudioRequest, TranscriptionRequest
from triptych_gateway.frontends.calls import FrontendCall, MediaFile, numbered
from triptych_gateway.wire.contract import output_mode

FIELD_NAMES = {
    "messages[0].content[0]": "file",
    "messages[0].content[0].media": "file",
    "messages[0].content[0].media.format": "file",
    "messages[0].content[1]": "prompt",
    "options": "",
    "options.sampling": "",
    "sampling": "",
    "transcription.languages": "language",
    "transcription.prompt": "prompt",
    "transcription.translate": "model",
    "transcription": "model",
}
#: Endings of file names that say what a sound file is.
_FORMATS = frozenset({"flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm"})


def audio_calls(body: AudioRequest, request_id: str, pieces: Sequence[Piece]) -> list[FrontendCall]:
    """The calls that transcribe or translate a file: one for each piece, or one for the whole if there are none."""
    if not pieces:
        ending = body.file.name.rpartition(".")[2].lower()
        return [_audio_call(body, request_id, body.file.content, ending if ending in _FORMATS else "")]
    ids = numbered(request_id, len(pieces))
    return [_audio_call(body, one_id, piece.wav, "wav") for one_id, piece in zip(ids, pieces, strict=True)]


def _audio_call(body: AudioRequest, request_id: str, content: bytes, kind: str) -> FrontendCall:
    chat = generation_pb2.ChatRequest(model=body.model)
    # Transcribing is no matter of taste: by default the likeliest tokens are taken, as OpenAI does.
    chat.options.sampling.temperature = body.temperature or 0.0
    if body.with_logprobs:
        chat.options.sampling.logprobs = 0
    if body.response_format == "verbose_json":
        chat.options.return_token_ids = True
    turn = chat.messages.add(role="user")
    item = turn.content.add().media
    item.modality = common_pb2.MODALITY_AUDIO
    if kind:
        item.format = kind
    turn.content.add(text=_instruction(body))
    chat.transcription.CopyFrom(_transcription(body))
    return FrontendCall(chat, request_id, output_mode(body.is_stream), [MediaFile(item, content)])


def _transcription(body: AudioRequest) -> generation_pb2.Transcription:
    """The same for a model that does nothing else."""
    if not isinstance(body, TranscriptionRequest):
        return generation_pb2.Transcription(translate=True, prompt=body.prompt, timestamps=body.is_timed)
    languages = [body.language] if body.language is not None else body.languages or ()
    # Whisper takes words over from what is said to come before.
    texts = [", ".join(body.keywords or ()), body.prompt]
    prompt = " ".join(filter(None, texts)) or None
    return generation_pb2.Transcription(languages=languages, prompt=prompt, timestamps=body.is_timed)


def _instruction(body: AudioRequest) -> str:
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
