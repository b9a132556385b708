"""Whatever is sent to Ollama's routes, the gateway answers in Ollama's shape and never with a 500."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers.ollama import HI, WEATHER
from support.fakes.frontend import MODEL
from support.fakes.gateway import running_gateway
from triptych_gateway.apis.ollama import schema
from triptych_gateway.apis.ollama.options import OllamaOptions

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8)
functions = st.fixed_dictionaries({"name": texts}, optional={"arguments": st.dictionaries(texts, values, max_size=2) | values})
calls = st.fixed_dictionaries({"function": functions}, optional={"id": texts, "index": scalars})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | texts},
    optional={
        "content": texts | values,
        "images": st.lists(texts | st.just("aGk="), max_size=2),
        "thinking": texts,
        "tool_calls": st.lists(calls, max_size=2) | values,
        "tool_name": texts,
        "tool_call_id": texts,
    },
)
options = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(OllamaOptions.model_fields, st.integers(-2, 3) | st.floats(0, 1) | scalars)
)
SCHEMAS = {
    "/api/chat": schema.ChatRequest,
    "/api/generate": schema.GenerateRequest,
    "/api/embed": schema.EmbedRequest,
    "/api/embeddings": schema.EmbeddingsRequest,
    "/api/show": schema.ShowRequest,
}
bodies = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys({name for one in SCHEMAS.values() for name in one.model_fields}, values)
    | {
        "messages": st.lists(messages, max_size=3),
        "tools": st.lists(st.just(WEATHER) | values, max_size=2),
        "options": options | values,
        "images": st.lists(texts | st.just("aGk="), max_size=2),
    },
)
VALID = {"/api/chat": HI, "/api/generate": {"model": MODEL.name, "prompt": "x"}, "/api/embed": {"model": MODEL.name, "input": "x"}}


@pytest.fixture(scope="module")
def post() -> Iterator[Callable[[str, bytes], httpx.Response]]:
    with running_gateway() as post:
        yield post


@given(change=bodies, is_valid=st.booleans())
@settings(max_examples=100)
def test_json_objects(post: Callable[[str, bytes], httpx.Response], change: dict[str, Any], is_valid: bool) -> None:
    for path, fields in SCHEMAS.items():
        known = {name: value for name, value in change.items() if name in fields.model_fields}
        needed = VALID.get(path, {"model": MODEL.name, "prompt": "x"} if path == "/api/embeddings" else {"model": MODEL.name})
        response = post(path, orjson.dumps(needed | known if is_valid else change))
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            error = response.json()
            assert set(error) == {"error"}
            assert error["error"]
