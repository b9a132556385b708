"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.audio.events import TranscriptWriter
from triptych_gateway.apis.audio.form import read_form
from triptych_gateway.apis.audio.request import FIELD_NAMES, audio_call
from triptych_gateway.apis.audio.schema import AudioRequest, Transcription, TranscriptionRequest, TranslationRequest
from triptych_gateway.apis.calls import EVENT_STREAM, answer
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import request_id_of
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.schema import Schema

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], route_class=JsonRoute, responses=openapi_responses())
_WHOLE = {"text/plain": {"schema": {"type": "string"}}}


def _form(schema: type[Schema]) -> dict[str, Any]:
    """The body of a route, for the OpenAPI document. The route reads it by itself."""
    content = {"multipart/form-data": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _answers(content: dict[str, Any], description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": Transcription, "description": description, "content": content}}


@router.post(
    "/v1/audio/transcriptions",
    response_class=Response,
    openapi_extra=_form(TranscriptionRequest),
    responses=_answers(
        _WHOLE | EVENT_STREAM,
        "JSON or text; or, when stream is true, server-sent events up to transcript.text.done.",
    ),
)
async def transcribe(request: Request) -> Response:
    """Write down what is said in an audio file."""
    return await _answer(request, await read_form(request, TranscriptionRequest))


@router.post(
    "/v1/audio/translations",
    response_class=Response,
    openapi_extra=_form(TranslationRequest),
    responses=_answers(_WHOLE, "JSON or text."),
)
async def translate(request: Request) -> Response:
    """Write down in English what is said in an audio file."""
    return await _answer(request, await read_form(request, TranslationRequest))


async def _answer(request: Request, body: AudioRequest) -> Response:
    call = audio_call(body, request_id_of(request))
    response = await answer(request, GenerationCall([call], TranscriptWriter(body), body.is_stream, FIELD_NAMES))
    if body.is_text and response.media_type is not None:
        response.media_type = "text/plain"
    return response
