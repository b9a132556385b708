"""Routes of models that generate nothing: embeddings, pooling, classify, score, rerank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.dialects import pooling as convert
from triptych_gateway.dialects.fields import FieldNames, in_client_terms
from triptych_gateway.errors import openapi_responses
from triptych_gateway.routes.json_body import JsonRoute, files_of
from triptych_gateway.schemas.pooling import answers
from triptych_gateway.schemas.pooling.request import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of
from triptych_gateway.tracing import note_call, note_usage

router = AccessRouter(access=Access.KEY, tags=["Embeddings"], route_class=JsonRoute, responses=openapi_responses())
Pooled = TypeVar("Pooled", generation_pb2.EmbedResponse, generation_pb2.ClassifyResponse, generation_pb2.ScoreResponse)
PoolingCall = TypeVar("PoolingCall", generation_pb2.EmbedRequest, generation_pb2.ClassifyRequest, generation_pb2.ScoreRequest)
#: Request -> the operation in traces.
_OPERATIONS: dict[type, str] = {
    generation_pb2.EmbedRequest: "embeddings",
    generation_pb2.ClassifyRequest: "classify",
    generation_pb2.ScoreRequest: "score",
}


@router.post("/v1/embeddings", response_model=answers.EmbeddingList)
async def create_embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """Vectors of texts, or of a conversation, with media where the model takes them."""
    call = gateway_of(request).frontend.embed(await _embed_request(request, body), request_id_of(request))
    return await _answer(
        request, call, convert.input_names(body), lambda response: convert.embeddings_json(response, body.encoding_format)
    )


@router.post("/pooling", response_model=answers.PooledList)
async def create_pooling(request: Request, body: PoolingRequest) -> Response:
    """What the model's pooling gives: vectors, vectors of tokens, or values of labels."""
    frontend, request_id = gateway_of(request).frontend, request_id_of(request)
    names, classifies = convert.input_names(body), await _classifies(request, body)
    for field in ("dimensions", "normalize") if classifies else ("use_activation",):
        if getattr(body, field) is not None:
            raise InvalidRequestError(f"{field}: only for {'vectors' if classifies else 'classes'}; see task", field=field)
    if classifies:
        classify = frontend.classify(await _classify_request(request, body), request_id)
        return await _answer(request, classify, names, lambda response: convert.pooled_classes_json(response, body.encoding_format))
    embed = frontend.embed(await _embed_request(request, body), request_id)
    per_token = body.task == "token_embed"
    return await _answer(request, embed, names, lambda response: convert.pooled_json(response, body.encoding_format, per_token))


@router.post("/classify", response_model=answers.ClassificationList)
async def create_classification(request: Request, body: ClassifyRequest) -> Response:
    """Values of a classifier's labels."""
    call = gateway_of(request).frontend.classify(await _classify_request(request, body), request_id_of(request))
    return await _answer(request, call, convert.input_names(body), convert.classified_json)


@router.post("/v1/score", response_model=answers.ScoreList)
@router.post("/score", response_model=answers.ScoreList, include_in_schema=False)
async def create_score(request: Request, body: ScoreRequest) -> Response:
    """How well texts fit together, pair by pair."""
    call = gateway_of(request).frontend.score(await _score_request(request, body), request_id_of(request))
    return await _answer(request, call, convert.score_names(body), convert.scores_json)


@router.post("/v1/rerank", response_model=answers.Ranking)
@router.post("/rerank", response_model=answers.Ranking, include_in_schema=False)
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Documents in the order of their relevance to a query, as Jina and vLLM answer."""
    return await _rerank(request, body, with_documents=body.return_documents is not False)


@router.post("/v2/rerank", response_model=answers.Ranking)
async def rerank_v2(request: Request, body: RerankRequest) -> Response:
    """The same as Cohere answers, without the documents unless they are asked for."""
    return await _rerank(request, body, with_documents=bool(body.return_documents))


async def _rerank(request: Request, body: RerankRequest, *, with_documents: bool) -> Response:
    call = gateway_of(request).frontend.score(await _score_request(request, body), request_id_of(request))
    return await _answer(
        request, call, convert.RERANK_NAMES, lambda response: convert.ranking_json(response, body, with_documents=with_documents)
    )


async def _embed_request(request: Request, body: EmbeddingRequest | PoolingRequest) -> generation_pb2.EmbedRequest:
    files = files_of(request)
    return await _from_caller(request, await files.run(lambda: convert.embed_request(body, files)))


async def _classify_request(request: Request, body: ClassifyRequest | PoolingRequest) -> generation_pb2.ClassifyRequest:
    files = files_of(request)
    return await _from_caller(request, await files.run(lambda: convert.classify_request(body, files)))


async def _score_request(request: Request, body: ScoreRequest | RerankRequest) -> generation_pb2.ScoreRequest:
    return await _from_caller(request, await files_of(request).run(lambda: convert.score_request(body)))


async def _from_caller(request: Request, message: PoolingCall) -> PoolingCall:
    message.context.CopyFrom(call_context_of(request.state.principal.tenant))
    note_call(_OPERATIONS[type(message)], message.model)
    await grant_of(request).admit_pooling(message)
    return message


async def _classifies(request: Request, body: PoolingRequest) -> bool:
    """Whether the body asks for classes: it says so, or says nothing and the model does not embed."""
    if body.task is not None:
        return body.task == "classify"
    models = await gateway_of(request).frontend.models(request_id_of(request))
    tasks = [task for model in models if body.model in (None, model.name) for task in model.capabilities.tasks]
    return common_pb2.TASK_CLASSIFY in tasks


async def _answer(
    request: Request, call: Coroutine[Any, Any, Pooled], names: FieldNames, to_json: Callable[[Pooled], dict[str, Any]]
) -> Response:
    try:
        response = await gateway_of(request).until_disconnect(request, call)
    except TriptychError as error:
        raise in_client_terms(error, names) from error
    record = request.state.record
    record.usage = response.usage
    gateway_of(request).metrics.tenants.used(record.tenant, response.usage)
    note_usage(response.usage)
    # Ten thousand vectors take a quarter of a second to encode.
    content = await asyncio.to_thread(lambda: _dumps(to_json(response)))
    return Response(content, media_type="application/json")


def _dumps(answer: dict[str, Any]) -> bytes:
    """JSON of an answer, input by input: orjson lets no other thread run while it encodes."""
    name, items = next((key, value) for key, value in answer.items() if isinstance(value, list))
    rest = orjson.dumps({key: value for key, value in answer.items() if key != name})
    return b"%b,%b:[%b]}" % (rest[:-1], orjson.dumps(name), b",".join(map(orjson.dumps, items)))
