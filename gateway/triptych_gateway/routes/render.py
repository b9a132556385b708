"""POST /v1/chat/completions/render: what the model would get for a chat request, without generating."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response
from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import common_pb2, preprocess_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.dialects.convert import render_chat_request
from triptych_gateway.dialects.cost_json import MODALITIES
from triptych_gateway.dialects.fields import in_client_terms
from triptych_gateway.dialects.openai.request_fields import chat_fields
from triptych_gateway.errors import openapi_responses
from triptych_gateway.routes.json_body import JsonRoute, files_of
from triptych_gateway.schemas.chat.request import ChatCompletionRequest
from triptych_gateway.schemas.render import MediaFeatures, Placeholder, RenderResponse
from triptych_gateway.state import call_context_of, gateway_of, request_id_of

router = AccessRouter(access=Access.KEY, tags=["Tokens"], route_class=JsonRoute, responses=openapi_responses())


@router.post("/v1/chat/completions/render", response_model=RenderResponse)
async def render_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """The prompt of a chat request, as text and token ids. Options of generation change nothing."""
    answer = await gateway_of(request).until_disconnect(request, _render(request, body))
    # Serialise here and not in FastAPI, which would validate the ids of a long prompt again.
    return Response(answer.model_dump_json(), media_type="application/json")


async def _render(request: Request, body: ChatCompletionRequest) -> RenderResponse:
    if body.truncate_prompt_tokens is not None:
        field = "truncate_prompt_tokens"
        raise InvalidRequestError(f"{field}: not possible here; the whole prompt is rendered", field=field)
    parts = files_of(request)
    chat = await parts.run(lambda: render_chat_request(body, parts))
    asked = preprocess_pb2.PreprocessRequest(chat=chat, context=call_context_of(request.state.principal.tenant))
    try:
        reply = await gateway_of(request).frontend.preprocess(asked, request_id_of(request))
    except TriptychError as error:
        raise in_client_terms(error, chat_fields(body)) from error
    tokens = list(reply.token_ids)
    return RenderResponse(
        model=body.model,
        prompt=reply.prompt,
        token_ids=tokens,
        count=len(tokens),
        max_model_len=reply.max_model_len,
        features=_features(reply.media, reply.placeholders) if reply.media else None,
    )


def _features(media: Sequence[common_pb2.MediaRef], placeholders: Sequence[common_pb2.PlaceholderRange]) -> MediaFeatures:
    features = MediaFeatures(mm_hashes={}, mm_placeholders={})
    #: Index among all items -> modality, index among those of its modality.
    places = []
    for item in media:
        modality = MODALITIES[item.modality]
        hashes = features.mm_hashes.setdefault(modality, [])
        places.append((modality, len(hashes)))
        hashes.append(item.key.hex())
    for span in placeholders:
        modality, number = places[span.media_index]
        ranges = features.mm_placeholders.setdefault(modality, [])
        ranges.append(Placeholder(offset=span.offset, length=span.length, item=number))
    return features
