"""The official Ollama client reads answers: whole, streamed, with tools and thinking."""

from __future__ import annotations

import time
from typing import Any

import ollama
import pytest
from support.drivers.anthropic import LENGTH, Delta, answers, call, text, thought
from support.drivers.ollama import HI, WEATHER, async_client, joined, lines_of
from support.fakes.frontend import MODEL, FakeFrontend, Script, fails, says
from support.fakes.gateway import gateway_client
from triptych.errors import ContextLengthError, InternalError
from triptych.v1 import common_pb2, generation_pb2

TIMINGS = common_pb2.Timings(preprocess_s=0.0001, queue_s=0.0002, prefill_s=0.0003, decode_s=0.0004)


async def both(script: Script, **body: Any) -> tuple[ollama.ChatResponse, ollama.ChatResponse]:
    """The whole answer, and the lines of the stream put together."""
    frontend = FakeFrontend()
    frontend.script = script
    async with async_client(frontend) as client:
        whole = await client.chat(**(HI | body))
        lines = [line async for line in await client.chat(**(HI | body), stream=True)]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    return whole, joined(lines)


async def test_text_tokens_and_times() -> None:
    usage = common_pb2.Usage(prompt_tokens=11, cached_tokens=8, completion_tokens=5)
    start_s = time.perf_counter()
    for answer in await both(Script(answers(text("Hel", "lo")).choices, usage, TIMINGS)):
        assert (answer.model, answer.message.role, answer.message.content) == (MODEL.name, "assistant", "Hello")
        assert (answer.done, answer.done_reason) == (True, "stop")
        assert (answer.prompt_eval_count, answer.eval_count) == (11, 5)
        assert (answer.prompt_eval_duration, answer.eval_duration) == (300_000, 400_000)
        assert answer.total_duration is not None
        assert answer.load_duration == max(0, answer.total_duration - 1_000_000)
        assert 0 < answer.total_duration < (time.perf_counter() - start_s) * 1e9
        assert answer.created_at is not None
        assert answer.created_at.endswith("Z")


async def test_thinking_text_and_two_tools() -> None:
    script = answers(thought("h", "m"), text("Let me ", "see."), call(0, "get_weather", '{"city"', ':"Paris"}'), call(1, "now"))
    for answer in await both(script, tools=[WEATHER]):
        message = answer.message
        assert (message.thinking, message.content) == ("hm", "Let me see.")
        assert message.tool_calls is not None
        called = [(one.function.name, one.function.arguments) for one in message.tool_calls]
        assert called == [("get_weather", {"city": "Paris"}), ("now", {})]
        assert answer.done_reason == "stop"


async def test_arguments_that_the_limit_cut_are_as_far_as_they_go() -> None:
    script = answers(call(0, "get_weather", '{"city":"Paris","unit":"cel'), finish_reason=LENGTH)
    for answer in await both(script, tools=[WEATHER]):
        assert answer.done_reason == "length"
        assert answer.message.tool_calls is not None
        assert answer.message.tool_calls[0].function.arguments == {"city": "Paris"}


async def test_log_probabilities() -> None:
    def token(name: str, logprob: float) -> generation_pb2.TokenLogprob:
        top = [generation_pb2.TopLogprob(token="x", utf8=b"x", logprob=-3)]
        return generation_pb2.TokenLogprob(token=name, utf8=name.encode(), logprob=logprob, top=top)

    # The second token is half a character, so that its text comes with the third.
    deltas = [Delta(text="a", logprobs=[token("a", -0.5)]), Delta(logprobs=[token("b", -1)]), Delta(logprobs=[token("c", -2)])]
    for answer in await both(answers(deltas, text("é")), logprobs=True, top_logprobs=1):
        assert answer.logprobs is not None
        assert [(entry.token, entry.logprob) for entry in answer.logprobs] == [("a", -0.5), ("b", -1), ("c", -2)]
        assert answer.logprobs[0].top_logprobs is not None
        assert (answer.logprobs[0].top_logprobs[0].token, answer.logprobs[0].top_logprobs[0].logprob) == ("x", -3)


async def test_generate() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(thought("hm"), text("Hel", "lo"))
    async with async_client(frontend) as client:
        whole = await client.generate(MODEL.name, "Hi")
        lines = [line async for line in await client.generate(MODEL.name, "Hi", stream=True)]
    assert (whole.response, whole.thinking, whole.done, whole.done_reason) == ("Hello", "hm", True, "stop")
    assert [(line.response, line.thinking) for line in lines] == [("", "hm"), ("Hel", None), ("lo", None), ("", None)]
    assert (lines[-1].done, lines[-1].eval_count) == (True, 3)


async def test_the_bytes_of_a_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = answers([Delta(text="Hi")], call(0, "f", '{"a":  1}'))
    async with gateway_client(frontend) as client:
        # Without `stream`, the answer is a stream, as in Ollama.
        response = await client.post("/api/chat", json=HI | {"tools": [WEATHER]})
        whole = await client.post("/api/chat", json=HI | {"stream": False})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["x-accel-buffering"] == "no"
    assert whole.headers["content-type"] == "application/json"
    first, second, last = lines_of(response.content)
    assert {first.pop("model"), second.pop("model"), last.pop("model")} == {MODEL.name}
    assert "" not in {first.pop("created_at"), second.pop("created_at"), last.pop("created_at")}
    assert first == {"message": {"role": "assistant", "content": "Hi"}, "done": False}
    called = {"id": "call_0", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    assert second == {"message": {"role": "assistant", "content": "", "tool_calls": [called]}, "done": False}
    assert last.keys() >= {"message", "done", "done_reason", "total_duration", "prompt_eval_count", "eval_count"}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_an_error_is_a_status_or_the_last_line(path: str) -> None:
    body = HI if path == "/api/chat" else {"model": MODEL.name, "prompt": "Hi"}
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        frontend.script = fails(ContextLengthError("too long", field="messages", limit=1, value=2))
        refused = await client.post(path, json=body)
        frontend.script = says("a", "b", error=InternalError("it broke"), error_after=1)
        broken = await client.post(path, json=body)
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
    assert refused.json().keys() == {"error"}
    assert broken.status_code == 200
    *_, before, last = lines_of(broken.content)
    assert before["done"] is False
    assert last == {"error": "it broke"}


async def test_the_client_raises_the_error_of_a_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", error=InternalError("it broke"), error_after=1)
    async with async_client(frontend) as client:
        lines = await client.chat(**HI, stream=True)
        assert (await anext(lines)).message.content == "a"
        with pytest.raises(ollama.ResponseError, match="it broke"):
            await anext(lines)


async def test_embeddings() -> None:
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        several = await client.embed(MODEL.name, ["a", "b"])
        one = await client.embed(MODEL.name, "a", truncate=False, dimensions=2)
        none = await client.embed(MODEL.name, [])
        old = await client.embeddings(MODEL.name, "a")
    assert several.embeddings == [[0, 0.5], [1, 0.5]]
    assert (several.model, several.prompt_eval_count) == (MODEL.name, 5)
    assert several.total_duration is not None
    assert several.total_duration > 0
    assert (one.embeddings, none.embeddings, old.embedding) == ([[0, 0.5]], [], [0, 0.5])
    first, second, third = frontend.pooling_requests
    # Ollama's vectors have length 1; those of the older route are the model's.
    assert (first.normalize, second.normalize, third.HasField("normalize")) == (True, True, False)  # type: ignore[union-attr]
    assert (first.truncate_to, first.HasField("truncate_to"), second.HasField("truncate_to")) == (0, True, False)  # type: ignore[arg-type]
    assert second.dimensions == 2  # type: ignore[union-attr]
