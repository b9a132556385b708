"""Converts requests to the contract."""

from __future__ import annotations

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.pooling.schema import (
    ClassifyRequest,
    EmbeddingRequest,
    InputRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    texts_of,
)
from triptych_gateway.file_parts import FileParts
from triptych_gateway.wire.contract import put_files, write_prompt
from triptych_gateway.wire.field_names import FieldNames, conversation_fields

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


def score_request(body: ScoreRequest | RerankRequest, parts: FileParts) -> generation_pb2.ScoreRequest:
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
        chat = generation_pb2.ChatMessages()
        put_files(write_prompt(chat, body, body.messages, parts))
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
