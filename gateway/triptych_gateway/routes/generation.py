"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from triptych_common.rpc.errors import TriptychError

from triptych_gateway.dialects import convert
from triptych_gateway.dialects.answer import Generation
from triptych_gateway.dialects.chat import ChatFormat
from triptych_gateway.dialects.common import AnswerFormat
from triptych_gateway.dialects.completions import CompletionFormat
from triptych_gateway.dialects.media import in_rest_terms, rest_fields
from triptych_gateway.dialects.sse import EventStreamResponse
from triptych_gateway.errors import openapi_responses
from triptych_gateway.frontends.session import Request as FrontendRequest
from triptych_gateway.routes.json_body import JsonRoute
from triptych_gateway.schemas.chat import ChatCompletion, ChatCompletionRequest, has_media
from triptych_gateway.schemas.completions import MAX_PROMPTS, Completion, CompletionRequest
from triptych_gateway.state import gateway_of, request_id_of

#: Longer ids are replaced by the frontend, as the contract has it.
_MAX_REQUEST_ID_CHARS = 128

T = TypeVar("T")
router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)
_EVENTS = "One JSON object; or, when stream is true, server-sent events with chunks of it, and data: [DONE] at the end."


def _responses(model: type) -> dict[int | str, dict[str, Any]]:
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": model, "description": _EVENTS, "content": content}, **openapi_responses()}


@router.post("/v1/chat/completions", response_class=Response, responses=_responses(ChatCompletion))
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation."""
    if not has_media(body.messages):
        return await _answer(request, body, ChatFormat, [convert.chat_request(body)], [request_id_of(request)])
    # Files are decoded, which takes milliseconds per megabyte.
    call = await asyncio.to_thread(convert.chat_request, body)
    return await _answer(request, body, ChatFormat, [call], [request_id_of(request)], rest_fields(body.messages))


@router.post("/v1/completions", response_class=Response, responses=_responses(Completion))
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue one or several prompts."""
    request_id = request_id_of(request)
    calls = convert.complete_requests(body)
    # The ids of requests that run at the same time must differ, and one that is too long would be replaced.
    stem = request_id[: _MAX_REQUEST_ID_CHARS - len(f"-{MAX_PROMPTS}")]
    ids = [request_id] if len(calls) == 1 else [f"{stem}-{number}" for number in range(len(calls))]
    return await _answer(request, body, CompletionFormat, calls, ids)


async def _answer(
    request: Request,
    body: ChatCompletionRequest | CompletionRequest,
    format_class: type[AnswerFormat],
    calls: Sequence[FrontendRequest],
    ids: Sequence[str],
    media_fields: Mapping[str, str] | None = None,
) -> Response:
    gateway = gateway_of(request)
    answer_format = format_class(
        request_id_of(request),
        body.model,
        gateway.watch.fingerprint(body.model),
        include_usage=body.include_usage,
        with_logprobs=body.num_logprobs is not None,
        with_token_ids=bool(body.return_token_ids),
    )
    responses = gateway.frontend.generate(calls, ids)
    if media_fields:
        responses = _in_rest_terms(responses, media_fields)
    generation = Generation(responses, len(calls), body.num_choices, answer_format, gateway.meter(request))
    if body.stream:
        return EventStreamResponse(generation.events(body.include_usage), gateway.stopping)
    answer = await gateway.until_disconnect(request, generation.whole())
    return Response(answer, media_type="application/json")


async def _in_rest_terms(responses: AsyncGenerator[T, None], media_fields: Mapping[str, str]) -> AsyncGenerator[T, None]:
    """The same responses, with errors about media parts named as REST names them."""
    async with aclosing(responses):
        try:
            async for response in responses:
                yield response
        except TriptychError as error:
            raise in_rest_terms(error, media_fields) from error
