"""Requests and answers of the routes that generate nothing: JSON to the contract, and back."""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.dialects.conversation import chat_messages, check_all_taken, template_kwargs
from triptych_gateway.dialects.fields import FieldNames
from triptych_gateway.dialects.openai.request_fields import conversation_fields
from triptych_gateway.file_parts import FileParts
from triptych_gateway.schemas.pooling.request import (
    ClassifyRequest,
    EmbeddingRequest,
    InputRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    texts_of,
)

#: The contract's names of fields -> the client's.
_INPUT_NAMES: FieldNames = {"inputs": "input", "truncate_to": "truncate_prompt_tokens", "activation": "use_activation"}
RERANK_NAMES: FieldNames = {"queries": "query", "truncate_to": "truncate_prompt_tokens", "activation": "use_activation"}
_TASKS = {"embed": common_pb2.TASK_EMBED, "token_embed": common_pb2.TASK_TOKEN_EMBED}


def input_names(body: InputRequest) -> FieldNames:
    """The names of the fields of a request with inputs."""
    if body.messages is None:
        return _INPUT_NAMES
    below, above = "inputs[0].messages", {"inputs[0]": "messages", "inputs[0].messages": ""}
    names = {**above, f"{below}.template_kwargs": "chat_template_kwargs"}
    return {**_INPUT_NAMES, **names, **{f"{below}.{path}": name for path, name in conversation_fields(body.messages, None).items()}}


def score_names(body: ScoreRequest) -> FieldNames:
    """The names of a score request's fields, which the client may choose."""
    first, second = body.sides
    return {"queries": first, "documents": second, "truncate_to": "truncate_prompt_tokens", "activation": "use_activation"}


def embed_request(body: EmbeddingRequest | PoolingRequest, parts: FileParts) -> generation_pb2.EmbedRequest:
    """The request for vectors, which come in one tensor."""
    return generation_pb2.EmbedRequest(
        model=body.model,
        inputs=_inputs(body, parts),
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate_to=_truncate_to(body.truncate_prompt_tokens),
        task=_TASKS[(body.task if isinstance(body, PoolingRequest) else None) or "embed"],
        packed=True,
        add_special_tokens=body.add_special_tokens,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


def classify_request(body: ClassifyRequest | PoolingRequest, parts: FileParts) -> generation_pb2.ClassifyRequest:
    """The request for a classifier's values."""
    return generation_pb2.ClassifyRequest(
        model=body.model,
        inputs=_inputs(body, parts),
        activation=body.use_activation,
        truncate_to=_truncate_to(body.truncate_prompt_tokens),
        add_special_tokens=body.add_special_tokens,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


def score_request(body: ScoreRequest | RerankRequest) -> generation_pb2.ScoreRequest:
    """The request for the scores of pairs."""
    if isinstance(body, RerankRequest):
        queries, documents = [body.query], body.texts
    else:
        queries, documents = (texts_of(getattr(body, name)) for name in body.sides)
    return generation_pb2.ScoreRequest(
        model=body.model,
        queries=[generation_pb2.EmbedInput(text=text) for text in queries],
        documents=[generation_pb2.EmbedInput(text=text) for text in documents],
        truncate_to=_truncate_to(body.truncate_prompt_tokens),
        activation=body.use_activation,
        priority=body.priority,
    )


def _inputs(body: InputRequest, parts: FileParts) -> list[generation_pb2.EmbedInput]:
    if body.messages is not None:
        messages, files = chat_messages(body.messages, parts, body.mm_processor_kwargs)
        check_all_taken(parts)
        chat = generation_pb2.ChatMessages(
            messages=messages,
            template_kwargs=template_kwargs(body.chat_template_kwargs),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        for (number, index), content in files.items():
            chat.messages[number].content[index].media.data = content
        return [generation_pb2.EmbedInput(messages=chat)]
    return [
        generation_pb2.EmbedInput(text=one)
        if isinstance(one, str)
        else generation_pb2.EmbedInput(token_ids=generation_pb2.TokenIds(ids=one))
        for one in body.inputs
    ]


def _truncate_to(tokens: int | None) -> int | None:
    """The contract's 0 is the client's -1: as many as the model takes."""
    return 0 if tokens == -1 else tokens


def embeddings_json(response: generation_pb2.EmbedResponse, encoding: str | None) -> dict[str, Any]:
    """OpenAI's list of vectors."""
    vectors = _rows(response.packed, response.packed_vectors)
    data = [{"object": "embedding", "index": i, "embedding": _encoded(one, encoding)} for i, one in enumerate(vectors)]
    return {"object": "list", "data": data, "model": response.model, "usage": usage_json(response.usage)}


def pooled_json(response: generation_pb2.EmbedResponse, encoding: str | None, per_token: bool) -> dict[str, Any]:
    """vLLM's list of pooled data."""
    values: list[Any] = [_encoded(one, encoding) for one in _rows(response.packed, response.packed_vectors)]
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


def _rows(packed: common_pb2.Tensor, counts: Iterable[int]) -> Iterator[memoryview[float]]:
    """The numbers of each input, from a float32 tensor [number of vectors, dimensions] and each input's number of vectors."""
    values, size, end = memoryview(packed.inline).cast("f"), packed.shape[1], 0
    for count in counts:
        start, end = end, end + count * size
        yield values[start:end]


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
