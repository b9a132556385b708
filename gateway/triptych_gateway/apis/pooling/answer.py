"""Answers as JSON."""

from __future__ import annotations

import base64
import time
from array import array
from typing import Any

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.pooling.schema import RerankRequest
from triptych_gateway.wire.vectors import rows


def embeddings_json(response: generation_pb2.EmbedResponse, encoding: str | None) -> dict[str, Any]:
    """OpenAI's list of vectors."""
    vectors = rows(response.packed, response.packed_vectors)
    data = [{"object": "embedding", "index": i, "embedding": _encoded(one, encoding)} for i, one in enumerate(vectors)]
    return {"object": "list", "data": data, "model": response.model, "usage": usage_json(response.usage)}


def pooled_json(response: generation_pb2.EmbedResponse, encoding: str | None, per_token: bool) -> dict[str, Any]:
    """vLLM's list of pooled data."""
    values: list[Any] = [_encoded(one, encoding) for one in rows(response.packed, response.packed_vectors)]
    if per_token and encoding != "base64":
        size = response.packed.shape[1]
        values = [[of_text[start : start + size] for start in range(0, len(of_text), size)] for of_text in values]
    return _list(response, [{"object": "pooling", "index": i, "data": one} for i, one in enumerate(values)])


def classified_json(response: generation_pb2.ClassifyResponse) -> dict[str, Any]:
    """vLLM's list of classifications."""
    data = []
    for index, one in enumerate(response.classifications):
        values = list(one.values)
        label = response.labels[values.index(max(values))]
        data.append({"index": index, "label": label, "probs": values, "num_classes": len(values)})
    return _list(response, data)


def pooled_classes_json(response: generation_pb2.ClassifyResponse, encoding: str | None) -> dict[str, Any]:
    """vLLM's list of pooled data, of a classifier."""
    values = [_encoded(memoryview(array("f", one.values)), encoding) for one in response.classifications]
    return _list(response, [{"object": "pooling", "index": i, "data": one} for i, one in enumerate(values)])


def scores_json(response: generation_pb2.ScoreResponse) -> dict[str, Any]:
    """vLLM's list of scores."""
    return _list(response, [{"object": "score", "index": i, "score": score} for i, score in enumerate(response.scores)])


def ranking_json(response: generation_pb2.ScoreResponse, body: RerankRequest, *, with_documents: bool) -> dict[str, Any]:
    """The documents, most relevant first."""
    texts, scores = body.texts, list(response.scores)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if with_documents:
        results = [{**one, "document": {"text": texts[one["index"]]}} for one in results]
    return {"id": response.request_id, "model": response.model, "results": results, "usage": usage_json(response.usage)}


def usage_json(usage: common_pb2.Usage) -> dict[str, int]:
    """Tokens of all inputs."""
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}


def _encoded(values: memoryview[float], encoding: str | None) -> str | list[float]:
    return base64.b64encode(values).decode() if encoding == "base64" else list(values)


def _list(
    response: generation_pb2.EmbedResponse | generation_pb2.ClassifyResponse | generation_pb2.ScoreResponse,
    data: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "id": response.request_id,
        "object": "list",
        "created": int(time.time()),
        "model": response.model,
        "data": data,
        "usage": usage_json(response.usage),
    }
