"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from triptych.errors import InvalidRequestError, ServiceUnavailableError

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.audio.cutting import FOR_TEXT, FOR_TIMES, Speech, can_cut, cut_speech, is_short
from triptych_gateway.apis.audio.events import TimedWriter, TranscriptWriter
from triptych_gateway.apis.audio.form import read_form
from triptych_gateway.apis.audio.request import FIELD_NAMES, audio_calls
from triptych_gateway.apis.audio.schema import (
    AudioRequest,
    Transcription,
    TranscriptionRequest,
    TranslationRequest,
    VerboseTranscription,
)
from triptych_gateway.apis.calls import EVENT_STREAM, answer
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.body_budget import BodyHold
from triptych_gateway.file_process import BusyError, TooLargeError, UnreadableError
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.schema import Schema

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], route_class=JsonRoute, responses=openapi_responses())
_WHOLE = {"text/plain": {"schema": {"type": "string"}}, "text/vtt": {"schema": {"type": "string"}}}
#: Pieces of a file that are generated at the same time. A long film leaves room for other requests.
_AT_ONCE = 16


def _form(schema: type[Schema]) -> dict[str, Any]:
    """The body of a route, for the OpenAPI document. The route reads it by itself."""
    content = {"multipart/form-data": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _answers(content: dict[str, Any], description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": Transcription | VerboseTranscription, "description": description, "content": content}}


@router.post(
    "/v1/audio/transcriptions",
    response_class=Response,
    openapi_extra=_form(TranscriptionRequest),
    responses=_answers(
        _WHOLE | EVENT_STREAM,
        "JSON, text or subtitles; or, when stream is true, server-sent events up to transcript.text.done.",
    ),
)
async def transcribe(request: Request) -> Response:
    """Write down what is said in an audio file."""
    return await _answer(request, await read_form(request, TranscriptionRequest))


@router.post(
    "/v1/audio/translations",
    response_class=Response,
    openapi_extra=_form(TranslationRequest),
    responses=_answers(_WHOLE, "JSON, text or subtitles."),
)
async def translate(request: Request) -> Response:
    """Write down in English what is said in an audio file."""
    return await _answer(request, await read_form(request, TranslationRequest))


async def _answer(request: Request, body: AudioRequest) -> Response:
    speech = await gateway_of(request).until_disconnect(request, _cut(request, body))
    pieces = [] if speech is None else speech.pieces
    writer = TranscriptWriter(body) if speech is None or not body.is_timed else TimedWriter(body, speech)
    calls = audio_calls(body, request_id_of(request), pieces)
    response = await answer(request, GenerationCall(calls, writer, body.is_stream, FIELD_NAMES, at_once=_AT_ONCE))
    if body.is_text and response.media_type is not None:
        response.media_type = "text/vtt" if body.response_format == "vtt" else "text/plain"
    return response


async def _cut(request: Request, body: AudioRequest) -> Speech | None:
    """The pieces of a file that has to be cut; None if it is sent as it is.

    Raises:
        InvalidRequestError: the file is too long, or times are asked for, and it cannot be read.
        QueueFullError: there is no memory for the pieces.
        ServiceUnavailableError: the gateway had no time for the file.
    """
    rule = FOR_TIMES if body.is_timed else FOR_TEXT
    content, gateway = body.file.content, gateway_of(request)
    if not body.is_timed and (is_short(content, rule.longest_s) or not can_cut()):
        return None
    try:
        if not can_cut():
            raise UnreadableError("this gateway cannot decode it: PyAV or NumPy is not installed (triptych-server[speech])")
        async with gateway.speech_cutters.held(request.state.principal.tenant):
            speech = await cut_speech(content, rule)
    except BusyError as error:
        raise ServiceUnavailableError(f"file: {error}; try again later") from None
    except UnreadableError as error:
        if not body.is_timed and not isinstance(error, TooLargeError):
            return None  # the frontend says what is wrong with it
        raise InvalidRequestError(f"file: cannot be cut into pieces: {error}", field="file") from None
    hold: BodyHold = request.state.body_hold
    await hold.grow(speech.num_bytes)
    return speech if speech.pieces else None
