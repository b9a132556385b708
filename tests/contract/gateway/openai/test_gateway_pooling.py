"""Embeddings, pooling, classify, score and rerank in front of a fake frontend."""

from __future__ import annotations

import asyncio
import base64
from array import array
from typing import Any

import openai
import pytest
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import client_of, gateway_app, gateway_client
from support.waiting import until
from triptych.errors import ContextLengthError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.pooling import schema as answers
from triptych_gateway.frontends.client import EMBED

_EMBED: dict[str, Any] = {"model": MODEL.name, "input": "x"}

_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
_CHAT: dict[str, Any] = {"model": MODEL.name, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, _IMAGE]}]}


@pytest.mark.parametrize(
    ("value", "inputs"),
    [("ab", ["ab"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
    ids=["text", "texts", "token_ids", "token_id_lists"],
)
async def test_four_forms_of_input(value: Any, inputs: list[Any]) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/embeddings", json={**_EMBED, "input": value})
    answer = answers.EmbeddingList.model_validate_json(response.content, strict=True, extra="forbid")
    assert [one.embedding for one in answer.data] == [[index, 0.5] for index in range(len(inputs))]
    assert answer.usage.total_tokens == 5
    (request,) = frontend.pooling_requests
    assert isinstance(request, generation_pb2.EmbedRequest)
    assert [one.text if one.HasField("text") else list(one.token_ids.ids) for one in request.inputs] == inputs


async def test_options_arrive() -> None:
    frontend, options = FakeFrontend(), {"dimensions": 2, "normalize": False, "add_special_tokens": False, "priority": -3}
    async with gateway_client(frontend) as client:
        for tokens, expected in ((-1, 0), (7, 7)):
            response = await client.post("/v1/embeddings", json={**_EMBED, **options, "truncate_prompt_tokens": tokens})
            assert response.status_code == 200
            request = frontend.pooling_requests[-1]
            assert request.HasField("truncate_to")
            assert request.truncate_to == expected
            assert {name: getattr(request, name) for name in options} == options


async def test_every_call_says_who_asks() -> None:
    frontend, text = FakeFrontend(), {"input": "x", "model": MODEL.name}
    bodies = {"/v1/embeddings": text, "/pooling": text, "/classify": text, "/score": {"text_1": "a", "text_2": "b"}}
    async with gateway_client(frontend, api_key="a key") as client:
        for path, body in bodies.items():
            assert (await client.post(path, json=body, headers={"Authorization": "Bearer a key"})).is_success
    assert [one.HasField("context") for one in frontend.pooling_requests] == [True] * 4


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify"])
async def test_conversations_with_pictures(path: str) -> None:
    frontend = FakeFrontend()
    options = {"chat_template_kwargs": {"x": 1}, "mm_processor_kwargs": {"y": 2}, "add_generation_prompt": True}
    async with gateway_client(frontend) as client:
        assert (await client.post(path, json={**_CHAT, **options})).status_code == 200
        remote = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
        assert (await client.post(path, json={"model": MODEL.name, "messages": [{"role": "user", "content": [remote]}]})).is_success
        broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}
        refused = await client.post(path, json={"model": MODEL.name, "messages": [{"role": "user", "content": [broken]}]})
    first, second = (one.inputs[0].messages for one in frontend.pooling_requests)
    media = first.messages[0].content[1].media
    assert (media.modality, media.data, dict(media.processor_options)) == (common_pb2.MODALITY_IMAGE, b"ABC", {"y": 2})
    assert (dict(first.template_kwargs), first.add_generation_prompt) == ({"x": 1}, True)
    assert second.messages[0].content[0].media.url == "http://x/y.png"
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[0].image_url.url")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("inputs[0].messages.messages[0].content[1].media", "messages[0].content[1].image_url"),
        ("inputs[0].messages.template_kwargs", "chat_template_kwargs"),
        ("inputs[0]", "messages"),
    ],
)
async def test_faults_of_a_conversation_name_the_clients_field(field: str, name: str) -> None:
    frontend = FakeFrontend()
    frontend.pooling_error = ContextLengthError(f"{field} is wrong", field=field)
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/embeddings", json=_CHAT)
    assert response.json()["error"]["param"] == name
    assert response.json()["error"]["message"] == f"{name} is wrong"


async def test_the_openai_client() -> None:
    async with gateway_app(FakeFrontend()) as app, client_of(app) as http:
        client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", http_client=http)
        answer = await client.embeddings.create(model=MODEL.name, input=["a", "b", "c"])
        numbers = await client.embeddings.create(model=MODEL.name, input="a", encoding_format="float")
        with pytest.raises(openai.NotFoundError) as failure:
            await client.embeddings.create(model="another", input="a")
    assert [one.embedding for one in answer.data] == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert numbers.data[0].embedding == [0, 0.5]
    assert failure.value.code == "model_not_found"


async def test_base64_is_float32() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/embeddings", json={**_EMBED, "encoding_format": "base64"})
    assert array("f", base64.b64decode(response.json()["data"][0]["embedding"])).tolist() == [0, 0.5]


async def test_a_fault_names_the_clients_field() -> None:
    frontend = FakeFrontend()
    frontend.pooling_error = ContextLengthError("inputs[7] is too long; truncate_to cuts it", field="inputs[7]")
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/embeddings", json=_EMBED)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "input[7]", "context_length_exceeded")
    assert error["message"] == "input[7] is too long; truncate_prompt_tokens cuts it"


async def test_pooling_of_texts_and_tokens() -> None:
    async with gateway_client() as client:
        of_texts = await client.post("/pooling", json={"input": ["a", "b"], "task": "embed"})
        of_tokens = await client.post("/pooling", json={"input": ["a", "b"], "task": "token_embed"})
        classes = await client.post("/pooling", json={"input": ["a"], "task": "classify"})
    lists = [answers.PooledList.model_validate_json(one.content, extra="forbid") for one in (of_texts, of_tokens, classes)]
    assert [[one.data for one in each.data] for each in lists] == [
        [[0, 0.5], [1, 0.5]],
        [[[0, 0.5], [0, 0.5]], [[1, 0.5], [1, 0.5]]],
        [[0.25, 0.75]],
    ]


async def test_classify() -> None:
    async with gateway_client() as client:
        response = await client.post("/classify", json={"input": ["a", "b"], "use_activation": False})
    answer = answers.ClassificationList.model_validate_json(response.content, extra="forbid")
    assert [(one.index, one.label, one.probs) for one in answer.data] == [(0, "yes", [0.25, 0.75]), (1, "yes", [0.25, 0.75])]


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_score(path: str, names: tuple[str, str]) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json={names[0]: "q", names[1]: ["a", "abc"]})
        uneven = await client.post(path, json={names[0]: ["q", "r"], names[1]: ["a", "b", "c"]})
    assert [one.score for one in answers.ScoreList.model_validate_json(response.content).data] == [1, 3]
    assert (uneven.status_code, uneven.json()["error"]["param"]) == (400, names[0])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_rerank(path: str) -> None:
    async with gateway_client() as client:
        body = {"query": "q", "documents": ["a", {"text": "abc"}, "ab"], "top_n": 2}
        response = await client.post(path, json=body)
        other = await client.post(path, json={**body, "return_documents": path == "/v2/rerank"})
    answer = answers.Ranking.model_validate_json(response.content, extra="forbid")
    assert [(one.index, one.relevance_score) for one in answer.results] == [(1, 3), (2, 2)]
    assert [("document" in one) for one in response.json()["results"]] == [path != "/v2/rerank"] * 2
    assert [("document" in one) for one in other.json()["results"]] == [path == "/v2/rerank"] * 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"model": MODEL.name}, "input"),
        ("/v1/embeddings", {**_EMBED, "input": []}, "input"),
        ("/v1/embeddings", {**_EMBED, "input": ["a", 1]}, "input"),
        ("/v1/embeddings", {**_EMBED, "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {**_EMBED, "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {**_EMBED, "unknown": 1}, "unknown"),
        ("/v1/embeddings", {**_EMBED, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {**_EMBED, "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ("/v1/embeddings", {**_EMBED, "messages": []}, "messages"),
        ("/v1/embeddings", {**_CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("/v1/embeddings", {**_CHAT, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ("/v1/score", {"text_1": "a", "documents": ["b"]}, "text_1"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ("/pooling", {"input": "a", "task": "score"}, "task"),
    ],
)
async def test_bad_input(path: str, body: dict[str, Any], param: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


async def test_a_client_that_leaves_cancels_its_call() -> None:
    frontend = FakeFrontend()
    frontend.pooling_gate = asyncio.Event()
    async with gateway_app(frontend) as app:
        call = asyncio.create_task(
            app.state.gateway.frontend.call(EMBED, generation_pb2.EmbedRequest(task=common_pb2.TASK_EMBED), "an id")
        )
        async with asyncio.timeout(10):
            await until(lambda: bool(frontend.pooling_requests))
            call.cancel()
            await frontend.was_cancelled.wait()
