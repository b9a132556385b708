"""Options of vLLM that need more than a field: usage so far, log probabilities of prompts, several candidates, image detail."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.fakes.frontend import FakeFrontend, Script, text_deltas
from support.fakes.gateway import CHAT, COMPLETION, events_of, gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.chat.schema import ChatCompletion
from triptych_gateway.apis.completions.schema import Completion

CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def counted(index: int, num_echoed: int = 0) -> list[generation_pb2.ChoiceDelta]:
    """Deltas of two tokens and of one, the first with the prompt's length."""
    deltas = text_deltas("a", "b", index=index)
    deltas[0].prompt_tokens = 7
    deltas[0].token_ids.extend([1] * (2 + num_echoed))
    deltas[1].token_ids.append(3)
    return deltas


@pytest.mark.parametrize(
    ("path", "body", "num_echoed"),
    [
        ("/v1/chat/completions", CHAT, 0),
        ("/v1/completions", COMPLETION, 0),
        ("/v1/completions", COMPLETION | {"echo": True}, 7),
    ],
)
async def test_each_chunk_has_the_usage_of_its_choice_so_far(path: str, body: dict[str, Any], num_echoed: int) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([counted(0, num_echoed), counted(1, num_echoed)])
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=body | CONTINUOUS | {"n": 2})
    *chunks, last = [orjson.loads(event) for event in events_of(response.content)[:-1]]
    said: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for chunk in chunks:
        if chunk["usage"] is not None:
            assert chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]
            usage = (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"])
            said[chunk["choices"][0]["index"]].append(usage)
        assert "token_ids" not in chunk["choices"][0]
    assert said == {0: [(7, 2), (7, 3)], 1: [(7, 2), (7, 3)]}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


async def test_continuous_usage_needs_include_usage() -> None:
    """As in vLLM: without include_usage it asks for nothing."""
    frontend = FakeFrontend()
    options = {"stream_options": {"continuous_usage_stats": True}}
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True} | options)
    assert all("usage" not in orjson.loads(event) for event in events_of(response.content)[:-1])
    assert not frontend.request.options.return_token_ids


def entries() -> list[generation_pb2.TokenLogprob]:
    top = [generation_pb2.TopLogprob(token_id=8, token="o", logprob=-0.5)]
    top.append(generation_pb2.TopLogprob(token_id=9, token="i", logprob=float("-inf")))
    known = generation_pb2.TokenLogprob(token_id=9, token="i", logprob=float("-inf"), rank=2, top=top)
    return [generation_pb2.TokenLogprob(token_id=4, token="H"), known]


EXPECTED = [
    None,
    {
        "9": {"logprob": -9999.0, "rank": 2, "decoded_token": "i"},
        "8": {"logprob": -0.5, "rank": 1, "decoded_token": "o"},
    },
]


async def test_prompt_logprobs_of_a_chat() -> None:
    frontend = FakeFrontend()
    deltas = text_deltas("a")
    deltas[0].prompt_logprobs.extend(entries())
    frontend.script = Script([deltas])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"prompt_logprobs": 2})
    assert response.json()["prompt_logprobs"] == EXPECTED
    assert frontend.request.options.sampling.prompt_logprobs == 2
    ChatCompletion.model_validate_json(response.content, strict=True, extra="forbid")


async def test_prompt_logprobs_of_completions_are_on_each_choice_of_their_prompt() -> None:
    frontend = FakeFrontend()

    def script(request: generation_pb2.CompleteRequest) -> Script:
        choices = [text_deltas("a"), text_deltas("b", index=1)]
        choices[0][0].prompt_logprobs.extend(entries() if request.text == "two" else entries()[:1])
        return Script(choices)

    frontend.script = script
    async with gateway_client(frontend) as client:
        body = COMPLETION | {"prompt": ["one", "two"], "n": 2, "prompt_logprobs": 0}
        response = await client.post("/v1/completions", json=body)
    assert [choice["prompt_logprobs"] for choice in response.json()["choices"]] == [[None], [None], EXPECTED, EXPECTED]
    Completion.model_validate_json(response.content, strict=True, extra="forbid")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_refused(path: str, fields: dict[str, Any], param: str) -> None:
    base = CHAT if "chat" in path else COMPLETION
    async with gateway_client() as client:
        response = await client.post(path, json=base | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"best_of": 2, "stream": True}, {"best_of": 2}], ids=str)
async def test_best_of_equal_to_n_asks_for_nothing(fields: dict[str, Any]) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("a"), text_deltas("b", index=1)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/completions", json=COMPLETION | {"n": 2} | fields)
    assert response.status_code == 200
    assert not frontend.request.options.HasField("best_of")


async def test_prompt_logprobs_with_echo_are_those_of_the_echo() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/completions", json=COMPLETION | {"echo": True, "prompt_logprobs": 1})
    assert response.json()["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize("detail", ["low", "high", "auto", None])
async def test_image_detail(detail: str | None) -> None:
    frontend = FakeFrontend()
    part = {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": detail}}
    async with gateway_client(frontend) as client:
        body = CHAT | {"messages": [{"role": "user", "content": [part]}]}
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    media = frontend.request.messages[0].content[0].media
    assert (media.detail if media.HasField("detail") else None) == detail


async def test_a_refusal_is_text_for_the_model() -> None:
    frontend = FakeFrontend()
    messages = [
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "text", "text": "Sorry. "}, {"type": "refusal", "refusal": "No."}]},
    ]
    async with gateway_client(frontend) as client:
        await client.post("/v1/chat/completions", json=CHAT | {"messages": messages})
    texts = [[part.text for part in message.content] for message in frontend.request.messages]
    assert texts == [["I will not."], ["Sorry. ", "No."]]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
@pytest.mark.parametrize(
    ("key", "headers", "expected"),
    [
        ({}, {}, ""),
        ({"prompt_cache_key": "k"}, {}, "k"),
        ({}, {"x-session-id": "s"}, "s"),
        ({"prompt_cache_key": "k"}, {"x-session-id": "s"}, "k"),
        ({}, {"x-session-id": "s" * 600}, "s" * 512),
    ],
)
async def test_what_requests_belong_to(
    path: str, body: dict[str, Any], key: dict[str, str], headers: dict[str, str], expected: str
) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=body | key, headers=headers)
    assert response.status_code == 200, response.text
    assert frontend.request.options.affinity_key == expected
