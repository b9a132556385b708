"""`triptych serve all-minilm-l6-v2`: real processes, real weights, unmodified clients."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from support.pooling_reference import sentence_transformer
from support.stack import Stack, running_stack
from triptych_common.model.store import EMBEDDING_MODEL, resolve_model

_SENTENCES = ["A cat sits on a mat.", "The stock market fell.", "A kitten rests on a rug.", "Rain."]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(EMBEDDING_MODEL) as running:
        yield running
        running.wait_until_empty()


@pytest.fixture(scope="module")
def reference() -> Any:
    return sentence_transformer(resolve_model(EMBEDDING_MODEL))


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none") as made:
        yield made


def test_vectors_equal_sentence_transformers(client: openai.OpenAI, reference: Any) -> None:
    answer = client.embeddings.create(model=EMBEDDING_MODEL, input=_SENTENCES)
    np.testing.assert_allclose([one.embedding for one in answer.data], reference.encode(_SENTENCES), atol=1e-5)
    long = client.embeddings.create(model=EMBEDDING_MODEL, input=["b " * 400], extra_body={"truncate_prompt_tokens": -1})
    np.testing.assert_allclose(long.data[0].embedding, reference.encode("b " * 400), atol=1e-5)


def test_many_clients_at_once(client: openai.OpenAI, reference: Any) -> None:
    some = [" ".join(_SENTENCES[: 1 + number % 4]) + f" Number {number}." for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: client.embeddings.create(model=EMBEDDING_MODEL, input=text), some))
    np.testing.assert_allclose([one.data[0].embedding for one in answers], reference.encode(some), atol=1e-5)


@pytest.mark.long
def test_one_too_long_input_of_ten_thousand(stack: Stack) -> None:
    inputs = ["a"] * 10_000
    inputs[7777] = "b " * 400
    body = {"model": EMBEDDING_MODEL, "input": inputs, "encoding_format": "base64"}
    refused = stack.http.post("/v1/embeddings", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input[7777]"
    answered = stack.http.post("/v1/embeddings", json={**body, "truncate_prompt_tokens": 16})
    assert answered.status_code == 200
    assert len(answered.json()["data"]) == 10_000


def test_ranking(stack: Stack) -> None:
    body = {"model": EMBEDDING_MODEL, "query": _SENTENCES[0], "documents": _SENTENCES[1:]}
    assert stack.http.post("/v1/rerank", json=body).json()["results"][0]["index"] == 1


def test_what_the_model_does_not_do_is_refused(stack: Stack) -> None:
    chat = stack.http.post("/v1/chat/completions", json={"model": EMBEDDING_MODEL, "messages": [{"role": "user", "content": "Hi"}]})
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "unsupported")
    classify = stack.http.post("/classify", json={"input": "x"})
    assert "does not classify" in classify.json()["error"]["message"]
