"""POST /v1/chat/completions, and below it /render: what the model would get, without generating."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import OPENAI_EVENTS, answer, preprocess, responses
from triptych_gateway.apis.chat.events import ChatWriter
from triptych_gateway.apis.chat.request import chat_request
from triptych_gateway.apis.chat.schema import ChatCompletion, ChatCompletionRequest, MediaFeatures, Placeholder, RenderResponse
from triptych_gateway.apis.file_inputs import FileLoader, document_inputs
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.contract import output_mode
from triptych_gateway.wire.conversation import documents_of
from triptych_gateway.wire.cost import MODALITIES
from triptych_gateway.wire.errors import openapi_responses

router = AccessRouter(access=Access.KEY, route_class=JsonRoute)


@router.post("/v1/chat/completions", response_class=Response, responses=responses(ChatCompletion, OPENAI_EVENTS), tags=["OpenAI"])
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Answer a conversation."""
    parts, request_id = files_of(request), request_id_of(request)
    await _load_documents(request, body, parts)
    chat, files, names = await parts.run(lambda: chat_request(body, parts))
    call = FrontendCall(chat, request_id, output_mode(body.stream), files)
    writer = ChatWriter(request_id, gateway_of(request).frontend.fingerprint(body.model), body)
    return await answer(request, GenerationCall([call], writer, bool(body.stream), names, body.num_choices))


@router.post("/v1/chat/completions/render", response_model=RenderResponse, responses=openapi_responses(), tags=["Tokens"])
async def render_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """The prompt of a chat request, as text and token ids. Options of generation change nothing."""
    if body.truncate_prompt_tokens is not None:
        field = "truncate_prompt_tokens"
        raise InvalidRequestError(f"{field}: not possible here; the whole prompt is rendered", field=field)
    parts = files_of(request)
    await _load_documents(request, body, parts)
    reply = await preprocess(request, lambda: parts.run(lambda: chat_request(body, parts)))
    rendered = RenderResponse(
        model=body.model,
        prompt=reply.prompt,
        token_ids=list(reply.token_ids),
        count=len(reply.token_ids),
        max_model_len=reply.max_model_len,
        features=_features(reply.media, reply.placeholders) if reply.media else None,
    )
    # Serialise here and not in FastAPI, which would validate the ids of a long prompt again.
    return Response(rendered.model_dump_json(), media_type="application/json")


async def _load_documents(request: Request, body: ChatCompletionRequest, parts: FileParts) -> None:
    if documents := document_inputs(documents_of(body.messages)):
        await FileLoader.of(request).load(documents, parts)


def _features(media: Sequence[common_pb2.MediaRef], placeholders: Sequence[common_pb2.PlaceholderRange]) -> MediaFeatures:
    features = MediaFeatures(mm_hashes={}, mm_placeholders={})
    # Index among all items -> modality, index among those of its modality.
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
