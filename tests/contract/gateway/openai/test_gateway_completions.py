"""POST /v1/completions in front of a fake frontend."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from support.fakes.frontend import FakeFrontend, Script, fails, says, text_deltas
from support.fakes.gateway import COMPLETION, events_of, gateway_client
from triptych.errors import QueueFullError
from triptych.v1 import generation_pb2
from triptych_gateway.apis.completions.schema import MAX_PROMPTS, Completion


def echo(request: generation_pb2.CompleteRequest) -> Script:
    """Each choice says its prompt and its number."""
    prompt = request.text or "".join(map(str, request.token_ids.ids))
    return Script([text_deltas(prompt, str(index), index=index) for index in range(max(1, request.options.n))])


async def test_whole_answer() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/completions", json=COMPLETION)
    answer = Completion.model_validate_json(response.content, strict=True, extra="forbid")
    assert answer.id == f"cmpl-{response.headers['x-request-id']}"
    assert answer.choices[0].text == "Hello"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab0", "ab1"]),
        (["a", "b"], ["a0", "a1", "b0", "b1"]),
        ([1, 2], ["120", "121"]),
        ([[1], [2, 3]], ["10", "11", "230", "231"]),
    ],
    ids=["text", "texts", "token_ids", "token_id_lists"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_choice_i_of_prompt_p_has_index_p_n_plus_i(stream: bool, prompt: Any, texts: list[str]) -> None:
    frontend = FakeFrontend()
    frontend.script = echo
    body = COMPLETION | {"prompt": prompt, "n": 2, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/completions", json=body)
    num_prompts = len(texts) // 2
    if stream:
        *chunks, last, done = events_of(response.content)
        written = [""] * len(texts)
        for chunk in chunks:
            (choice,) = orjson.loads(chunk)["choices"]
            written[choice["index"]] += choice["text"]
        usage = orjson.loads(last)["usage"]
        assert done == b"[DONE]"
    else:
        written = [choice["text"] for choice in response.json()["choices"]]
        usage = response.json()["usage"]
    assert written == texts
    assert usage["total_tokens"] == 10 * num_prompts
    assert len(set(frontend.request_ids)) == num_prompts


async def test_the_longest_request_id_stays_recognizable_in_each_prompts_id() -> None:
    frontend, request_id = FakeFrontend(), "x" * 128
    async with gateway_client(frontend) as client:
        body = COMPLETION | {"prompt": ["a"] * 12}
        response = await client.post("/v1/completions", json=body, headers={"x-request-id": request_id})
    assert response.headers["x-request-id"] == request_id
    assert sorted(frontend.request_ids) == sorted(f"{'x' * 125}-{number}" for number in range(12))


async def test_prompts_run_at_the_same_time() -> None:
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(0)
    frontend.script = says("x", gate=gate)
    async with gateway_client(frontend) as client:
        posting = asyncio.create_task(client.post("/v1/completions", json=COMPLETION | {"prompt": ["a", "b", "c"]}))
        async with asyncio.timeout(10):
            for _ in range(3):
                await frontend.arrivals.get()
        for _ in range(6):
            gate.release()
        response = await posting
    assert len(response.json()["choices"]) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_prompt_ends_all(stream: bool) -> None:
    frontend = FakeFrontend()
    never = asyncio.Semaphore(0)
    full = fails(QueueFullError("64 requests wait already", retry_after_s=2.5))
    frontend.script = lambda request: full if request.text == "b" else says("x", gate=never)
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/completions", json=COMPLETION | {"prompt": ["a", "b"], "stream": stream})
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"


async def test_logprobs_with_echo() -> None:
    frontend = FakeFrontend()
    top = [generation_pb2.TopLogprob(token=" you", logprob=-0.5), generation_pb2.TopLogprob(token=" all", logprob=-1.5)]
    entries = [
        generation_pb2.TokenLogprob(token="Hi"),
        generation_pb2.TokenLogprob(token=" there", logprob=-2, top=top, text_offset=2),
    ]
    frontend.script = Script([text_deltas("Hi there", logprobs=entries)])
    async with gateway_client(frontend) as client:
        body = COMPLETION | {"prompt": "Hi", "echo": True, "max_tokens": 0, "logprobs": 2}
        response = await client.post("/v1/completions", json=body)
    assert frontend.request.echo is True
    assert frontend.request.options.sampling.HasField("max_tokens")
    assert response.json()["choices"][0]["logprobs"] == {
        "tokens": ["Hi", " there"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {" you": -0.5, " all": -1.5, " there": -2.0}],
        "text_offset": [0, 2],
    }


async def test_too_many_prompts_are_refused() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/completions", json=COMPLETION | {"prompt": ["x"] * (MAX_PROMPTS + 1)})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert str(MAX_PROMPTS) in response.json()["error"]["message"]
