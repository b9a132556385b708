"""Routes of models that generate nothing: embeddings, pooling, classify, score, rerank."""

from __future__ import annotations

from fastapi import Request, Response
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import answer_pooling
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.apis.pooling import answer, schema
from triptych_gateway.apis.pooling.request import (
    RERANK_NAMES,
    classify_request,
    embed_request,
    input_names,
    score_names,
    score_request,
)
from triptych_gateway.frontends.client import CLASSIFY, EMBED, SCORE
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.errors import openapi_responses

router = AccessRouter(access=Access.KEY, tags=["Embeddings"], route_class=JsonRoute, responses=openapi_responses())


@router.post("/v1/embeddings", response_model=schema.EmbeddingList)
async def create_embeddings(request: Request, body: schema.EmbeddingRequest) -> Response:
    """Vectors of texts, or of a conversation, with media where the model takes them."""
    return await answer_pooling(
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
        return await answer_pooling(
            request, body, CLASSIFY, classify_request, names, lambda reply: answer.pooled_classes_json(reply, encoding)
        )
    return await answer_pooling(
        request, body, EMBED, embed_request, names, lambda reply: answer.pooled_json(reply, encoding, per_token)
    )


@router.post("/classify", response_model=schema.ClassificationList)
async def create_classification(request: Request, body: schema.ClassifyRequest) -> Response:
    """Values of a classifier's labels."""
    return await answer_pooling(request, body, CLASSIFY, classify_request, input_names(body), answer.classified_json)


@router.post("/v1/score", response_model=schema.ScoreList)
@router.post("/score", response_model=schema.ScoreList, include_in_schema=False)
async def create_score(request: Request, body: schema.ScoreRequest) -> Response:
    """How well texts fit together, pair by pair."""
    return await answer_pooling(request, body, SCORE, score_request, score_names(body), answer.scores_json)


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
    return await answer_pooling(
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
