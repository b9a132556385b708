"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from triptych.errors import TriptychError
from triptych.v1 import preprocess_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.dialects.fields import in_client_terms
from triptych_gateway.dialects.messages import convert
from triptych_gateway.dialects.messages.dialect import MessagesDialect
from triptych_gateway.dialects.messages.errors import error_body
from triptych_gateway.routes.generation import EVENT_STREAM, answer
from triptych_gateway.routes.json_body import JsonRoute, files_of
from triptych_gateway.schemas.messages.answers import AnthropicErrorResponse, MessageAnswer, TokenCount
from triptych_gateway.schemas.messages.request import CountTokensRequest, MessagesRequest
from triptych_gateway.state import call_context_of, gateway_of, request_id_of

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": AnthropicErrorResponse,
        "description": "The request is at fault, or (429) the queue is full: see Retry-After.",
    },
    "5XX": {"model": AnthropicErrorResponse, "description": "The server is at fault, or (503) not ready: see Retry-After."},
}
_ANSWER = {
    "model": MessageAnswer,
    "description": "A message; or, when stream is true, server-sent events from message_start to message_stop.",
    "content": EVENT_STREAM,
}
router = AccessRouter(access=Access.KEY, tags=["Anthropic"], route_class=JsonRoute, responses=_ERRORS, error_body=error_body)


@router.post("/v1/messages", response_class=Response, responses={200: _ANSWER})
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation."""
    return await answer(request, body, MessagesDialect())


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: CountTokensRequest) -> TokenCount:
    """The number of tokens of a conversation, without answering it."""
    return await gateway_of(request).until_disconnect(request, _count(request, body))


async def _count(request: Request, body: CountTokensRequest) -> TokenCount:
    parts = files_of(request)
    chat, files, names = await parts.run(lambda: convert.chat_request(body, parts))
    for file in files:
        file.item.data = file.content
    asked = preprocess_pb2.PreprocessRequest(chat=chat, context=call_context_of(request.state.principal.tenant))
    try:
        reply = await gateway_of(request).frontend.preprocess(asked, request_id_of(request))
    except TriptychError as error:
        raise in_client_terms(error, names) from error
    return TokenCount(input_tokens=len(reply.token_ids))
