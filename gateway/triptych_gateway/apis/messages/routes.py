"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from fastapi import Request, Response

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import EVENT_STREAM, answer, preprocess
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.apis.messages.answer import AnthropicErrorResponse, MessageAnswer, TokenCount, error_body
from triptych_gateway.apis.messages.events import MessageWriter
from triptych_gateway.apis.messages.request import chat_request, set_options
from triptych_gateway.apis.messages.schema import CountTokensRequest, MessagesRequest
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import request_id_of
from triptych_gateway.wire.contract import output_mode
from triptych_gateway.wire.errors import openapi_responses

_ANSWER = {
    "model": MessageAnswer,
    "description": "A message; or, when stream is true, server-sent events from message_start to message_stop.",
    "content": EVENT_STREAM,
}
router = AccessRouter(
    access=Access.KEY,
    tags=["Anthropic"],
    route_class=JsonRoute,
    responses=openapi_responses(AnthropicErrorResponse),
    error_body=error_body,
)


@router.post("/v1/messages", response_class=Response, responses={200: _ANSWER})
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation."""
    parts, request_id = files_of(request), request_id_of(request)
    chat, files, names = await parts.run(lambda: chat_request(body, parts))
    set_options(chat, body)
    call = FrontendCall(chat, request_id, output_mode(body.stream), files)
    return await answer(request, GenerationCall([call], MessageWriter(request_id, body), bool(body.stream), names))


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: CountTokensRequest) -> TokenCount:
    """The number of tokens of a conversation, without answering it."""
    parts = files_of(request)
    reply = await preprocess(request, lambda: parts.run(lambda: chat_request(body, parts)))
    return TokenCount(input_tokens=len(reply.token_ids))
