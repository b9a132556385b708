"""Whatever is sent to /v1/messages, the gateway answers in Anthropic's shape and never with a 500."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers.anthropic import HI, WEATHER
from support.fakes.gateway import running_gateway
from triptych_gateway.apis.messages.schema import MessagesRequest

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8)
kinds = st.sampled_from(
    ["text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", "base64", "content"]
)
names = st.sampled_from(
    ["text", "source", "id", "name", "input", "tool_use_id", "content", "thinking", "signature", "data", "title"]
)
blocks = st.recursive(
    st.dictionaries(names, scalars, max_size=4),
    lambda inner: st.builds(
        lambda fields, kind, nested: fields | {"type": kind} | nested,
        st.dictionaries(names, scalars, max_size=5),
        kinds,
        st.dictionaries(names, inner | st.lists(inner, max_size=2), max_size=2),
    ),
    max_leaves=4,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"]) | texts, "content": texts | st.lists(blocks, max_size=3) | values}
)
bodies = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(MessagesRequest.model_fields, values)
    | {
        "messages": st.lists(messages, max_size=3),
        "tools": st.lists(st.just(WEATHER) | values, max_size=2),
        "tool_choice": st.fixed_dictionaries({"type": st.sampled_from(["auto", "any", "tool", "none"])}) | values,
        "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled", "adaptive"])}) | values,
    },
)


@pytest.fixture(scope="module")
def post() -> Iterator[Callable[[str, bytes], httpx.Response]]:
    with running_gateway() as post:
        yield post


@given(change=bodies, is_valid=st.booleans())
@settings(max_examples=150)
def test_json_objects(post: Callable[[str, bytes], httpx.Response], change: dict[str, Any], is_valid: bool) -> None:
    body = orjson.dumps(HI | change if is_valid else change)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = post(path, body)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            error = response.json()
            assert set(error) == {"type", "error", "request_id"}
            assert error["error"]["message"]
