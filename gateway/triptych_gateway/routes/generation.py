"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from triptych_gateway import convert
from triptych_gateway.errors import openapi_responses
from triptych_gateway.formats.chat import ChatFormat
from triptych_gateway.formats.common import AnswerFormat
from triptych_gateway.formats.completions import CompletionFormat
from triptych_gateway.frontend_session import Request as FrontendRequest
from triptych_gateway.generation import Generation
from triptych_gateway.routes.json_body import JsonRoute
from triptych_gateway.schemas.chat import ChatCompletion, ChatCompletionRequest
from triptych_gateway.schemas.completions import MAX_PROMPTS, Completion, CompletionRequest
from triptych_gateway.sse import EventStreamResponse
from triptych_gateway.state import gateway_of, request_id_of

#: Longer ids are replaced by the frontend, as the contract has it.
_MAX_REQUEST_ID_CHARS = 128

router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)
_EVENTS = "One JSON object; or, when stream is true, server-sent events with chunks of it, and data: [DONE] at the end."


def _responses(model: type) -> dict[int | str, dict[str, Any]]:
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": model, "description": _EVENTS, "content": content}, **openapi_responses()}


@router.post("/v1/chat/completions", response_class=Response, responses=_responses(ChatCompletion))
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation."""
    return await _answer(request, body, ChatFormat, [convert.chat_request(body)], [request_id_of(request)])


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
    generation = Generation(responses, len(calls), body.num_choices, answer_format, gateway.meter(request))
    if body.stream:
        return EventStreamResponse(generation.events(body.include_usage), gateway.stopping)
    answer = await gateway.until_disconnect(request, generation.whole())
    return Response(answer, media_type="application/json")
