"""Routes of models that generate nothing: embeddings, pooling, classify, score, rerank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.apis.pooling import answer, schema
from triptych_gateway.apis.pooling.request import (
    RERANK_NAMES,
    classify_request,
    embed_request,
    input_names,
    score_names,
    score_request,
)
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.client import CLASSIFY, EMBED, SCORE, Method
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of
from triptych_gateway.tracing import note_call
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.field_names import FieldNames, in_client_terms

router = AccessRouter(access=Access.KEY, tags=["Embeddings"], route_class=JsonRoute, responses=openapi_responses())
Pooled = TypeVar("Pooled", generation_pb2.EmbedResponse, generation_pb2.ClassifyResponse, generation_pb2.ScoreResponse)
PoolingCall = TypeVar("PoolingCall", generation_pb2.EmbedRequest, generation_pb2.ClassifyRequest, generation_pb2.ScoreRequest)
Body = TypeVar("Body", bound=schema.Schema)


@router.post("/v1/embeddings", response_model=schema.EmbeddingList)
async def create_embeddings(request: Request, body: schema.EmbeddingRequest) -> Response:
    """Vectors of texts, or of a conversation, with media where the model takes them."""
    return await _answer(
        request, body, EMBED, embed_request, input_names(body), lambda reply: answer.embeddings_json(reply, body.encoding_format)
    )


@router.post("/pooling", response_model=schema.PooledList)
async def create_pooling(request: Request, body: schema.PoolingRequest) -> Response:
    """What the model's pooling gives: vectors, vectors of tokens, or values of labels."""
    names, classifies = input_names(body), await _classifies(request, body)
    for field in ("dimensions", "normalize") if classifies else ("use_activation",):
        if getattr(body, field) is not None:
            raise InvalidRequestError(f"{field}: only for {'vectors' if classifies else 'classes'}; see task", field=field)
    encoding, per_token = body.encoding_format, body.task == "token_embed"
    if classifies:
        return await _answer(
            request, body, CLASSIFY, classify_request, names, lambda reply: answer.pooled_classes_json(reply, encoding)
        )
    return await _answer(request, body, EMBED, embed_request, names, lambda reply: answer.pooled_json(reply, encoding, per_token))


@router.post("/classify", response_model=schema.ClassificationList)
async def create_classification(request: Request, body: schema.ClassifyRequest) -> Response:
    """Values of a classifier's labels."""
    return await _answer(request, body, CLASSIFY, classify_request, input_names(body), answer.classified_json)


@router.post("/v1/score", response_model=schema.ScoreList)
@router.post("/score", response_model=schema.ScoreList, include_in_schema=False)
async def create_score(request: Request, body: schema.ScoreRequest) -> Response:
    """How well texts fit together, pair by pair."""
    return await _answer(request, body, SCORE, score_request, score_names(body), answer.scores_json)


@router.post("/v1/rerank", response_model=schema.Ranking)
@router.post("/rerank", response_model=schema.Ranking, include_in_schema=False)
async def rerank(request: Request, body: schema.RerankRequest) -> Response:
    """Documents in the order of their relevance to a query, as Jina and vLLM answer."""
    return await _rerank(request, body, with_documents=body.return_documents is not False)


@router.post("/v2/rerank", response_model=schema.Ranking)
async def rerank_v2(request: Request, body: schema.RerankRequest) -> Response:
    """The same as Cohere answers, without the documents unless they are asked for."""
    return await _rerank(request, body, with_documents=bool(body.return_documents))


async def _rerank(request: Request, body: schema.RerankRequest, *, with_documents: bool) -> Response:
    return await _answer(
        request,
        body,
        SCORE,
        score_request,
        RERANK_NAMES,
        lambda reply: answer.ranking_json(reply, body, with_documents=with_documents),
    )


async def _classifies(request: Request, body: schema.PoolingRequest) -> bool:
    """Whether the body asks for classes: it says so, or says nothing and the model does not embed."""
    if body.task is not None:
        return body.task == "classify"
    models = await gateway_of(request).frontend.models(request_id_of(request))
    tasks = [task for model in models if body.model in (None, model.name) for task in model.capabilities.tasks]
    return common_pb2.TASK_CLASSIFY in tasks


async def _answer(
    request: Request,
    body: Body,
    method: Method[Pooled],
    convert: Callable[[Body, FileParts], PoolingCall],
    names: FieldNames,
    to_json: Callable[[Pooled], dict[str, Any]],
) -> Response:
    """Convert a body, let the caller's key admit it, ask a frontend, and answer."""
    gateway, files = gateway_of(request), files_of(request)
    message = await files.run(lambda: convert(body, files))
    message.context.CopyFrom(call_context_of(request.state.principal.tenant))
    note_call(method.operation, message.model)
    await grant_of(request).admit_pooling(message)
    call = gateway.frontend.call(method, message, request_id_of(request))
    try:
        reply = await gateway.until_disconnect(request, call)
    except TriptychError as error:
        raise in_client_terms(error, names) from error
    gateway.metrics.pooled(request.state.record, reply.usage)
    # Ten thousand vectors take a quarter of a second to encode.
    content = await asyncio.to_thread(lambda: _dumps(to_json(reply)))
    return Response(content, media_type="application/json")


def _dumps(answer: dict[str, Any]) -> bytes:
    """JSON of an answer, input by input: orjson lets no other thread run while it encodes."""
    name, items = next((key, value) for key, value in answer.items() if isinstance(value, list))
    rest = orjson.dumps({key: value for key, value in answer.items() if key != name})
    return b"%b,%b:[%b]}" % (rest[:-1], orjson.dumps(name), b",".join(map(orjson.dumps, items)))
