"""POST /tokenize and /detokenize."""

from __future__ import annotations

from fastapi import Request, Response
from triptych.errors import TriptychError
from triptych.v1 import detokenize_pb2, preprocess_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.dialects import convert
from triptych_gateway.dialects.fields import in_client_terms
from triptych_gateway.dialects.openai.request_fields import FIELD_NAMES, conversation_fields
from triptych_gateway.errors import openapi_responses
from triptych_gateway.routes.json_body import JsonRoute, files_of
from triptych_gateway.schemas.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from triptych_gateway.state import call_context_of, gateway_of, request_id_of

router = AccessRouter(access=Access.KEY, tags=["Tokens"], route_class=JsonRoute, responses=openapi_responses())


@router.post("/tokenize", response_model=TokenizeResponse)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text, or of messages rendered by the model's chat template."""
    answer = await gateway_of(request).until_disconnect(request, _tokenize(request, body))
    # Serialise here and not in FastAPI, which would validate the ids of a long text again.
    return Response(answer.model_dump_json(), media_type="application/json")


async def _tokenize(request: Request, body: TokenizeRequest) -> TokenizeResponse:
    frontend, request_id = gateway_of(request).frontend, request_id_of(request)
    reply: preprocess_pb2.PreprocessResponse | preprocess_pb2.TokenizeResponse
    if body.messages is not None:
        parts = files_of(request)
        chat = await parts.run(lambda: convert.tokenize_chat_request(body, parts))
        asked = preprocess_pb2.PreprocessRequest(chat=chat, context=call_context_of(request.state.principal.tenant))
        try:
            reply = await frontend.preprocess(asked, request_id)
        except TriptychError as error:
            raise in_client_terms(error, FIELD_NAMES | conversation_fields(body.messages, body.tools)) from error
    else:
        text = preprocess_pb2.TokenizeRequest(text=body.prompt, add_special_tokens=body.add_special_tokens, model=body.model or "")
        reply = await frontend.tokenize(text, request_id)
    strings = list(reply.tokens) if body.return_token_strs and isinstance(reply, preprocess_pb2.TokenizeResponse) else None
    tokens = list(reply.token_ids)
    return TokenizeResponse(count=len(tokens), max_model_len=reply.max_model_len, tokens=tokens, token_strs=strings)


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> DetokenizeResponse:
    """The text of token ids."""
    return await gateway_of(request).until_disconnect(request, _detokenize(request, body))


async def _detokenize(request: Request, body: DetokenizeRequest) -> DetokenizeResponse:
    frontend, request_id = gateway_of(request).frontend, request_id_of(request)
    tokens = detokenize_pb2.DetokenizeRequest(token_ids=body.tokens, model=body.model or "")
    reply = await frontend.detokenize(tokens, request_id)
    return DetokenizeResponse(prompt=reply.text)
