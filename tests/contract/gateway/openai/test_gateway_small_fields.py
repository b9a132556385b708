"""Each field of the routes without generation has its effect, or gets its 400. A field that a schema gains needs a row.

The effect is what the frontend receives, or what the answer has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from openai.types import embedding_create_params
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client
from triptych_gateway.apis.pooling.schema import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from triptych_gateway.apis.tokens import DetokenizeRequest, TokenizeRequest
from triptych_gateway.wire.schema import NoOp, Schema

Json = dict[str, Any]
#: A value, fields that replace those of the route's body, and what shows the effect: in the frontend's request, and the answer.
Row = tuple[Any, Json, Callable[[Any, Any], bool]]
USER = [{"role": "user", "content": "Hi"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/x.png"}}]}]
TALK: Json = {"input": None, "messages": USER}
TOOL = {"type": "function", "function": {"name": "f"}}


def sent(name: str, value: Any) -> Callable[[Any, Any], bool]:
    return lambda request, _: request.HasField(name) and getattr(request, name) == value


#: A label changes nothing.
LABEL: Row = ("u", {}, lambda *_: True)
COMMON: dict[str, Row] = {
    "user": LABEL,
    "truncate_prompt_tokens": (7, {}, sent("truncate_to", 7)),
    "priority": (-3, {}, lambda request, _: request.priority == -3),
}
INPUT: dict[str, Row] = COMMON | {
    "input": ("Other", {}, lambda request, _: request.inputs[0].text == "Other"),
    "messages": (USER, {"input": None}, lambda request, _: request.inputs[0].messages.messages[0].role == "user"),
    "add_special_tokens": (False, {}, sent("add_special_tokens", False)),
    "cache_salt": ("s", {}, sent("cache_salt", "s")),
    "add_generation_prompt": (True, TALK, lambda request, _: request.inputs[0].messages.add_generation_prompt),
    "continue_final_message": (True, TALK, lambda request, _: request.inputs[0].messages.continue_final_message),
    "chat_template_kwargs": ({"a": "b"}, TALK, lambda request, _: dict(request.inputs[0].messages.template_kwargs) == {"a": "b"}),
    "mm_processor_kwargs": (
        {"fps": 1},
        {"input": None, "messages": PICTURE},
        lambda request, _: dict(request.inputs[0].messages.messages[0].content[0].media.processor_options) == {"fps": 1},
    ),
}
MODEL_ROW: Row = (MODEL.name, {}, lambda request, _: request.model == MODEL.name)
VECTORS: dict[str, Row] = {
    "dimensions": (2, {}, sent("dimensions", 2)),
    "normalize": (False, {}, sent("normalize", False)),
}
ACTIVATION: Row = (False, {}, sent("activation", False))
EMBEDDINGS = (
    INPUT
    | VECTORS
    | {
        "model": MODEL_ROW,
        "encoding_format": ("base64", {}, lambda _, answer: isinstance(answer["data"][0]["embedding"], str)),
    }
)
POOLING = (
    INPUT
    | VECTORS
    | {
        "model": MODEL_ROW,
        "encoding_format": ("base64", {}, lambda _, answer: isinstance(answer["data"][0]["data"], str)),
        "task": ("token_embed", {}, lambda _, answer: isinstance(answer["data"][0]["data"][0], list)),
        "use_activation": (False, {"task": "classify"}, sent("activation", False)),
    }
)
CLASSIFY = INPUT | {"model": MODEL_ROW, "use_activation": ACTIVATION}
NO_SIDES: Json = {"text_1": None, "text_2": None}
SCORE = COMMON | {
    "model": MODEL_ROW,
    "use_activation": ACTIVATION,
    "text_1": ("Other", {}, lambda request, _: request.queries[0].text == "Other"),
    "text_2": (["Other"], {}, lambda request, _: request.documents[0].text == "Other"),
    "queries": ("Other", NO_SIDES | {"documents": "d"}, lambda request, _: request.queries[0].text == "Other"),
    "documents": ("Other", NO_SIDES | {"queries": "q"}, lambda request, _: request.documents[0].text == "Other"),
    "items": ("Other", NO_SIDES | {"queries": "q"}, lambda request, _: request.documents[0].text == "Other"),
}
RERANK = COMMON | {
    "model": MODEL_ROW,
    "use_activation": ACTIVATION,
    "query": ("Other", {}, lambda request, _: request.queries[0].text == "Other"),
    "documents": (["Other"], {}, lambda request, _: request.documents[0].text == "Other"),
    "top_n": (1, {}, lambda _, answer: len(answer["results"]) == 1),
    "return_documents": (False, {}, lambda _, answer: "document" not in answer["results"][0]),
}
CHAT: Json = {"prompt": None, "messages": USER}
TOKENIZE: dict[str, Row] = {
    "model": (MODEL.name, {}, lambda *_: True),
    "prompt": ("abc", {}, lambda _, answer: answer["tokens"] == [0, *b"abc"]),
    "add_special_tokens": (False, {}, lambda _, answer: answer["tokens"] == [*b"x"]),
    "return_token_strs": (True, {}, lambda _, answer: answer["token_strs"] == ["\0", "x"]),
    "messages": (USER, {"prompt": None}, lambda request, _: request.messages[0].role == "user"),
    "add_generation_prompt": (False, CHAT, sent("add_generation_prompt", False)),
    "continue_final_message": (True, CHAT, lambda request, _: request.continue_final_message),
    "chat_template_kwargs": ({"a": "b"}, CHAT, lambda request, _: dict(request.template_kwargs) == {"a": "b"}),
    "mm_processor_kwargs": (
        {"fps": 1},
        {"prompt": None, "messages": PICTURE},
        lambda request, _: dict(request.messages[0].content[0].media.processor_options) == {"fps": 1},
    ),
    "tools": ([TOOL], CHAT, lambda request, _: [tool.name for tool in request.tools] == ["f"]),
}
DETOKENIZE: dict[str, Row] = {
    "model": (MODEL.name, {}, lambda *_: True),
    "tokens": ([97, 98], {}, lambda _, answer: answer["prompt"] == "ab"),
}
_INPUT: Json = {"model": MODEL.name, "input": "x"}
_RERANK: Json = {"query": "q", "documents": ["a", "abc"]}
ROUTES: dict[str, tuple[Json, type[Schema], dict[str, Row]]] = {
    "/v1/embeddings": (_INPUT, EmbeddingRequest, EMBEDDINGS),
    "/pooling": ({"input": "x"}, PoolingRequest, POOLING),
    "/classify": ({"input": "x"}, ClassifyRequest, CLASSIFY),
    "/v1/score": ({"text_1": "q", "text_2": "a"}, ScoreRequest, SCORE),
    "/v1/rerank": (_RERANK, RerankRequest, RERANK),
    "/tokenize": ({"prompt": "x"}, TokenizeRequest, TOKENIZE),
    "/detokenize": ({"tokens": [72]}, DetokenizeRequest, DETOKENIZE),
}
#: Of these one or two must be there, so the request without them is no request.
NEEDED = ("input", "messages", "prompt", "query", "queries", "documents", "items", "text_1", "text_2", "tokens")


def refused_by(schema: type[Schema]) -> set[str]:
    return {name for name, info in schema.model_fields.items() if any(isinstance(mark, NoOp) for mark in info.metadata)}


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_has_a_row(path: str) -> None:
    _, schema, rows = ROUTES[path]
    assert set(schema.model_fields) == rows.keys() | refused_by(schema)


def test_no_field_of_the_client_is_unknown() -> None:
    assert get_type_hints(embedding_create_params.EmbeddingCreateParams).keys() <= EmbeddingRequest.model_fields.keys()


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, (_, _, rows) in ROUTES.items() for name in rows])
async def test_a_field_has_its_effect(path: str, name: str) -> None:
    base, _, rows = ROUTES[path]
    value, others, shows = rows[name]
    request, answer = await asked(path, base | others | {name: value})
    assert shows(request, answer)
    if name == "model":
        async with gateway_client() as client:
            response = await client.post(path, json=base | {"model": "another"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    elif name not in {"user", *NEEDED}:
        assert not shows(*await asked(path, base | others))


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, (_, schema, _) in ROUTES.items() for name in sorted(refused_by(schema))]
)
async def test_a_field_is_refused_by_its_name(path: str, name: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json=ROUTES[path][0] | {name: 5})
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/pooling", {"input": "x", "task": "classify", "dimensions": 2}, "dimensions"),
        ("/pooling", {"input": "x", "task": "classify", "normalize": True}, "normalize"),
        ("/pooling", {"input": "x", "task": "embed", "use_activation": False}, "use_activation"),
        ("/v1/embeddings", {"model": MODEL.name, "messages": USER, "add_special_tokens": True}, "add_special_tokens"),
    ],
)
async def test_fields_that_would_change_nothing(path: str, body: Json, param: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def asked(path: str, body: Json) -> tuple[Any, Any]:
    """What the frontend received last, and the answer."""
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    received = [*frontend.pooling_requests, *(request.chat for request in frontend.preprocessed)]
    return received[-1] if received else None, response.json()
