"""Converts requests of both routes to the contract: a chat model that takes audio is told what to do with it."""

from __future__ import annotations

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.audio.schema import AudioRequest, TranscriptionRequest
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.wire.contract import output_mode

FIELD_NAMES = {
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


def audio_call(body: AudioRequest, request_id: str) -> FrontendCall:
    """The call that transcribes or translates a file."""
    chat = generation_pb2.ChatRequest(model=body.model)
    # Transcribing is no matter of taste: by default the likeliest tokens are taken, as OpenAI does.
    chat.options.sampling.temperature = body.temperature or 0.0
    if body.with_logprobs:
        chat.options.sampling.logprobs = 0
    turn = chat.messages.add(role="user")
    item = turn.content.add().media
    item.modality = common_pb2.MODALITY_AUDIO
    ending = body.file.name.rpartition(".")[2].lower()
    if ending in _FORMATS:
        item.format = ending
    turn.content.add(text=_instruction(body))
    return FrontendCall(chat, request_id, output_mode(body.is_stream), [MediaFile(item, body.file.content)])


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
