"""POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

import time
from typing import Any

import orjson
from fastapi import Request, Response
from triptych.errors import InvalidRequestError
from triptych.v1 import generation_pb2, models_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import answer, answer_pooling
from triptych_gateway.apis.json_body import files_of
from triptych_gateway.apis.ollama.answer import (
    ChatAnswer,
    EmbedAnswer,
    EmbeddingAnswer,
    GenerateAnswer,
    OllamaErrorResponse,
    error_body,
)
from triptych_gateway.apis.ollama.events import ChatWriter, GenerateWriter, OllamaWriter, nanoseconds
from triptych_gateway.apis.ollama.names import OllamaRoute, name_of
from triptych_gateway.apis.ollama.request import EMBED_NAMES, chat_request, check_context, embed_request, generate_call, texts_of
from triptych_gateway.apis.ollama.schema import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.frontends.client import EMBED
from triptych_gateway.frontends.manager import administer
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.generation.http import StreamForm
from triptych_gateway.state import gateway_of, grant_of, request_id_of
from triptych_gateway.wire.contract import output_mode
from triptych_gateway.wire.errors import AccessDeniedError, openapi_responses
from triptych_gateway.wire.vectors import rows

_NDJSON = "application/x-ndjson"
_Body = ChatRequest | GenerateRequest | EmbedRequest | EmbeddingsRequest
router = AccessRouter(
    access=Access.KEY,
    tags=["Ollama"],
    route_class=OllamaRoute,
    responses=openapi_responses(OllamaErrorResponse),
    error_body=error_body,
    error_folder="/api/",
)


def _lines(model: type) -> dict[int | str, dict[str, Any]]:
    """The answers of a generation route, for the OpenAPI document."""
    text = "Lines of JSON, of which the last one is done; or, when stream is false, one object."
    return {200: {"model": model, "description": text, "content": {_NDJSON: {"schema": {"type": "string"}}}}}


@router.post("/api/chat", response_class=Response, responses=_lines(ChatAnswer))
async def chat(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    model, writer = _model(request, body), _writer(ChatWriter, request, body)
    if not body.messages:
        return await _load(request, body, model, writer)
    _check_used(request, body, model)
    parts = files_of(request)
    converted, files, names = await parts.run(lambda: chat_request(body, model, parts))
    call = FrontendCall(converted, request_id_of(request), output_mode(body.is_stream), files)
    return await answer(request, GenerationCall([call], writer, body.is_stream, names, form=_form(writer)))


@router.post("/api/generate", response_class=Response, responses=_lines(GenerateAnswer))
async def generate(request: Request, body: GenerateRequest) -> Response:
    """Answer a prompt, or continue it."""
    model, writer = _model(request, body), _writer(GenerateWriter, request, body)
    if not (body.prompt or body.images or body.suffix):
        return await _load(request, body, model, writer)
    _check_used(request, body, model)
    parts, request_id = files_of(request), request_id_of(request)
    call, names = await parts.run(lambda: generate_call(body, model, request_id, parts))
    return await answer(request, GenerationCall([call], writer, body.is_stream, names, form=_form(writer)))


@router.post("/api/embed", response_model=EmbedAnswer)
async def embed(request: Request, body: EmbedRequest) -> Response:
    """Vectors of texts, of length 1."""
    model = _model(request, body)
    _check_used(request, body, model)
    if not texts_of(body):
        await gateway_of(request).until_disconnect(request, gateway_of(request).frontend.load(model, _tenant(request)))
        return Response(orjson.dumps(_embedded(request, body, [], 0)), media_type="application/json")

    def to_json(reply: generation_pb2.EmbedResponse) -> dict[str, Any]:
        vectors = list(map(list, rows(reply.packed, reply.packed_vectors)))
        return _embedded(request, body, vectors, reply.usage.prompt_tokens)

    return await answer_pooling(request, body, EMBED, lambda given, _: embed_request(given, model), EMBED_NAMES, to_json)


@router.post("/api/embeddings", response_model=EmbeddingAnswer)
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """The vector of a text, as the model makes it."""
    model = _model(request, body)
    _check_used(request, body, model)
    names = {**EMBED_NAMES, "inputs[0]": "prompt", "inputs": "prompt"}

    def to_json(reply: generation_pb2.EmbedResponse) -> dict[str, Any]:
        return {"embedding": list(next(rows(reply.packed, reply.packed_vectors)))}

    return await answer_pooling(request, body, EMBED, lambda given, _: embed_request(given, model), names, to_json)


def _model(request: Request, body: _Body) -> str:
    return name_of(request, body.model)


def _tenant(request: Request) -> str:
    return str(request.state.principal.tenant)


def _writer(kind: type[OllamaWriter], request: Request, body: ChatRequest | GenerateRequest) -> OllamaWriter:
    return kind(request_id_of(request), body.model, request.state.record.start_s, body.num_logprobs is not None)


def _form(writer: OllamaWriter) -> StreamForm:
    return StreamForm(_NDJSON.encode(), writer.heartbeat)


def _embedded(request: Request, body: EmbedRequest, vectors: list[list[float]], num_tokens: int) -> dict[str, Any]:
    """The fields of EmbedAnswer, which would take long to validate millions of numbers."""
    total = nanoseconds(time.perf_counter() - request.state.record.start_s)
    return {"model": body.model, "embeddings": vectors, "total_duration": total, "prompt_eval_count": num_tokens}


def _check_used(request: Request, body: _Body, model: str) -> None:
    """Refuse what a model that is used, and not only loaded, cannot do. Raises InvalidRequestError."""
    if body.unloads:
        field = "keep_alive"
        because = "a model sleeps when others need its memory; 0 is for a request without a prompt, of an operator"
        raise InvalidRequestError(f"{field}: not supported ({because}); leave it out or send another time", field=field)
    info = gateway_of(request).frontend.known(model)
    if info is None:  # no frontend of it was reached yet
        return
    check_context(body.options, info.max_model_len)
    if getattr(body, "think", None) and not info.capabilities.reasoning:
        field = "think"
        raise InvalidRequestError(f"{field}: this model does not think; leave it out or send false", field=field)


async def _load(request: Request, body: ChatRequest | GenerateRequest, model: str, writer: OllamaWriter) -> Response:
    """Load a model, or let it give its memory back: what a request without a prompt asks for."""
    gateway, start_s = gateway_of(request), time.perf_counter()
    if not body.unloads:
        await gateway.until_disconnect(request, gateway.frontend.load(model, _tenant(request)))
    elif grant_of(request).key.is_operator:
        named, has_keys = models_pb2.SleepModelRequest(name=model), gateway.settings.has_keys
        # As in /admin/models, it goes on if the client leaves.
        await administer(gateway.model_manager, "SleepModel", named, has_keys=has_keys)
    else:
        refusal = "keep_alive: 0 puts the model to sleep, which is for operators' API keys"
        raise AccessDeniedError(403, refusal, "operator", code="permission_denied", param="keep_alive")
    ended = writer.loaded("unload" if body.unloads else "load", time.perf_counter() - start_s)
    return Response(ended, media_type="application/json")
