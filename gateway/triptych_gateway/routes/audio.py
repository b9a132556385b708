"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.dialects.openai.transcriptions import AudioDialect
from triptych_gateway.errors import openapi_responses
from triptych_gateway.routes.form_body import read_form
from triptych_gateway.routes.generation import EVENT_STREAM, answer
from triptych_gateway.routes.json_body import JsonRoute
from triptych_gateway.schemas.audio.transcriptions import AudioRequest, Transcription, TranscriptionRequest, TranslationRequest
from triptych_gateway.schemas.common import Schema

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
    response = await answer(request, body, AudioDialect())
    if body.is_text and response.media_type is not None:
        response.media_type = "text/plain"
    return response
