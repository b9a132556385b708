"""Whatever is sent, the gateway answers in its own shape and never with a 500."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes.frontend import MODEL
from support.fakes.gateway import CHAT, COMPLETION, running_gateway
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.apis.responses.schema import ResponseRequest

TOKENS = {"tokens": [72, 105]}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/render": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": {"model": MODEL.name, "input": [{"role": "user", "content": "Hi"}]},
    "/v1/responses/compact": {"model": MODEL.name, "input": "Hi"},
    "/v1/responses/input_tokens": {"model": MODEL.name, "input": "Hi"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": TOKENS,
    "/v1/embeddings": {"model": CHAT["model"], "input": "x"},
    "/pooling": {"input": ["x"]},
    "/classify": {"input": [1, 2]},
    "/v1/score": {"text_1": "x", "text_2": ["y", "z"]},
    "/v1/rerank": {"query": "x", "documents": ["y", "z"]},
    "/v2/rerank": {"query": "x", "documents": [{"text": "y"}]},
}
numbers = (
    st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-1, 0, 1, 2**31, 2**32])
)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12)
names = (
    st.sampled_from(
        sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *ResponseRequest.model_fields, "tokens"})
    )
    | texts
)
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "input_audio", "video_url"]) | texts}) | values
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]) | scalars,
        "content": texts | st.lists(parts, max_size=3) | values,
    }
)
changes = st.dictionaries(names, values | st.lists(messages, max_size=3), max_size=5)
# Numbers and near misses of types, where they might be taken: these reach the conversion to the contract.
plausible = st.fixed_dictionaries(
    {}, optional={name: scalars | st.lists(scalars, max_size=3) for name in ChatCompletionRequest.model_fields}
)


Post = Callable[[str, bytes], httpx.Response]


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    with running_gateway() as post:
        yield post


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


@pytest.mark.parametrize("path", VALID)
@given(data=st.data())
@settings(max_examples=60)
def test_json_objects(path: str, post: Post, data: st.DataObject) -> None:
    change = data.draw(changes | plausible)
    check(post(path, orjson.dumps(data.draw(st.sampled_from([{}, VALID[path]])) | change)))


@pytest.mark.parametrize("path", VALID)
@given(body=st.binary(max_size=40) | values.map(orjson.dumps))
@settings(max_examples=30)
def test_other_bodies(path: str, post: Post, body: bytes) -> None:
    check(post(path, body))
