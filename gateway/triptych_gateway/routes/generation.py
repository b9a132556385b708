"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.answers.answer import Answer
from triptych_gateway.answers.stream import EventStreamResponse
from triptych_gateway.answers.whole import WholeResponse
from triptych_gateway.dialects.dialect import Dialect, GenerationBody
from triptych_gateway.dialects.openai.chat import ChatDialect
from triptych_gateway.dialects.openai.completions import CompletionDialect
from triptych_gateway.errors import openapi_responses
from triptych_gateway.routes.json_body import JsonRoute, files_of, take_hold
from triptych_gateway.schemas.chat.answers import ChatCompletion
from triptych_gateway.schemas.chat.request import ChatCompletionRequest
from triptych_gateway.schemas.completions import Completion, CompletionRequest
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], route_class=JsonRoute)
_EVENTS = "One JSON object; or, when stream is true, server-sent events with chunks of it, and data: [DONE] at the end."
#: A streamed answer, for the OpenAPI document, whose schema is that of each event.
EVENT_STREAM: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]."}},
            "required": ["data"],
        }
    }
}


def responses(model: type, description: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a generation route, for the OpenAPI document.

    Args:
        model: schema of an answer that is not streamed.
    """
    return {200: {"model": model, "description": description, "content": EVENT_STREAM}, **openapi_responses()}


@router.post("/v1/chat/completions", response_class=Response, responses=responses(ChatCompletion, _EVENTS))
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation."""
    return await answer(request, body, ChatDialect())


@router.post("/v1/completions", response_class=Response, responses=responses(Completion, _EVENTS))
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue one or several prompts."""
    return await answer(request, body, CompletionDialect())


async def answer(request: Request, body: GenerationBody, dialect: Dialect[Any]) -> Response:
    """Answer a generation request in its dialect."""
    gateway, request_id = gateway_of(request), request_id_of(request)
    call = await dialect.parse(body, request_id, files_of(request))
    await grant_of(request).admit(call.calls)
    # The body is no longer needed. Reserve memory for its files only, until a frontend has answered.
    release = take_hold(request, call.num_file_bytes)
    context = call_context_of(request.state.principal.tenant)
    encoder = dialect.encoder(body, request_id, gateway.frontend.fingerprint(body.model))
    made = Answer(gateway.router.generate(call.calls, context, release), call, encoder, gateway.meter(request))
    if call.is_stream:
        return EventStreamResponse(made.events(), encoder, gateway.stopping, release)
    return WholeResponse(made.whole(), gateway.stopping, release)
