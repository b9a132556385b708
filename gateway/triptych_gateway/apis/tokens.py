"""POST /tokenize and /detokenize, in vLLM's format."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import Request, Response
from pydantic import BaseModel, Field, model_validator
from triptych.v1 import detokenize_pb2, generation_pb2, preprocess_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import preprocess
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.client import DETOKENIZE, TOKENIZE
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.contract import ConvertedChat, tool, write_prompt
from triptych_gateway.wire.conversation import ChatPrompt, Message, TextOrMessages
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.field_names import FIELD_NAMES, conversation_fields
from triptych_gateway.wire.schema import Schema, TokenId, at, optional
from triptych_gateway.wire.tools import Tools


class TokenizeRequest(ChatPrompt, TextOrMessages):
    """A text, or messages for the model's chat template."""

    text_field = "prompt"
    chat_fields = (*TextOrMessages.chat_fields, "tools")

    model: str | None = optional("A name from /v1/models; by default the only one.")
    prompt: str | None = None
    return_token_strs: bool | None = optional("Send each token's string too; not with messages.")
    tools: Tools | None = None

    @model_validator(mode="after")
    def _no_strings_of_messages(self) -> Self:
        if self.return_token_strs and self.messages is not None:
            raise at("return_token_strs", "not supported with messages")
        return self


class TokenizeResponse(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Schema):
    """Token ids."""

    model: str | None = optional("A name from /v1/models; by default the only one.")
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The text."""

    prompt: str


router = AccessRouter(access=Access.KEY, tags=["Tokens"], route_class=JsonRoute, responses=openapi_responses())


@router.post("/tokenize", response_model=TokenizeResponse)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text, or of messages rendered by the model's chat template."""
    gateway, parts, strings = gateway_of(request), files_of(request), None
    reply: preprocess_pb2.PreprocessResponse | preprocess_pb2.TokenizeResponse
    if (messages := body.messages) is not None:
        reply = await preprocess(request, lambda: parts.run(lambda: _chat_request(body, messages, parts)))
    else:
        text = preprocess_pb2.TokenizeRequest(text=body.prompt, add_special_tokens=body.add_special_tokens, model=body.model or "")
        reply = tokenized = await gateway.until_disconnect(request, gateway.frontend.call(TOKENIZE, text, request_id_of(request)))
        strings = list(tokenized.tokens) if body.return_token_strs else None
    tokens = list(reply.token_ids)
    answer = TokenizeResponse(count=len(tokens), max_model_len=reply.max_model_len, tokens=tokens, token_strs=strings)
    # Serialise here and not in FastAPI, which would validate the ids of a long text again.
    return Response(answer.model_dump_json(), media_type="application/json")


def _chat_request(body: TokenizeRequest, messages: list[Message], parts: FileParts) -> ConvertedChat:
    chat = generation_pb2.ChatRequest(model=body.model, tools=[tool(given.function, parts) for given in body.tools or ()])
    files = write_prompt(chat, body, messages, parts)
    return chat, files, FIELD_NAMES | conversation_fields(messages, body.tools)


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> DetokenizeResponse:
    """The text of token ids."""
    gateway = gateway_of(request)
    tokens = detokenize_pb2.DetokenizeRequest(token_ids=body.tokens, model=body.model or "")
    reply = await gateway.until_disconnect(request, gateway.frontend.call(DETOKENIZE, tokens, request_id_of(request)))
    return DetokenizeResponse(prompt=reply.text)
