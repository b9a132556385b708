"""The calls of Open WebUI's connection to Ollama, as its 0.12.4 makes them: routers/ollama.py and utils/payload.py there.

Its package is too large to be installed for a test, so the calls are written down. What it reads of the answers is checked.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import orjson
from support.drivers.anthropic import answers, call, text, thought
from support.drivers.ollama import WEATHER, able, lines_of, ready_client
from support.fakes.frontend import MODEL
from triptych.v1 import common_pb2, generation_pb2

JSON = {"content-type": "application/json", "authorization": "Bearer key"}
OPTIONS = {"temperature": 0.7, "num_ctx": 2048, "stop": ["###"], "repeat_penalty": 1.1, "seed": 3, "num_predict": 32}
LISTED = f"{MODEL.name}:latest"


def frontend_that_calls() -> Any:
    frontend = able(tools=True, reasoning=True, modalities=[common_pb2.MODALITY_IMAGE])
    frontend.script = answers(thought("Hm."), text("I ", "look."), call(0, "get_weather", '{"city":', '"Oslo"}'))
    frontend.script.timings = common_pb2.Timings(prefill_s=0.001, decode_s=0.002)
    return frontend


async def test_the_connection_is_checked_and_the_models_are_listed() -> None:
    async with ready_client(frontend_that_calls()) as client:
        version = (await client.get("/api/version", headers=JSON)).json()["version"]
        assert tuple(map(int, re.sub(r"^v|-.*", "", version).split("."))) > (0, 12)
        listed = (await client.get("/api/tags", headers=JSON)).json()["models"]
        loaded = (await client.get("/api/ps", headers=JSON)).json()["models"]
        shown = await client.post("/api/show", content=orjson.dumps({"name": LISTED, "model": LISTED}), headers=JSON)
    assert [model["model"] for model in listed] == [LISTED]
    expires = {model["model"]: datetime.fromisoformat(model["expires_at"]).timestamp() for model in loaded if "expires_at" in model}
    assert expires[LISTED] > datetime.now().timestamp()
    assert shown.status_code == 200, shown.text


async def test_a_chat() -> None:
    # What `convert_payload_openai_to_ollama` makes of a chat with a picture, tools, and the settings of a model.
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is this?", "images": ["aGk="]},
        {
            "role": "assistant",
            "thinking": "Hm.",
            "tool_calls": [{"index": 0, "id": "call_9", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
            "content": "",
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "call_9"},
    ]
    payload = {"model": LISTED, "messages": turns, "stream": True, "tools": [WEATHER], "options": OPTIONS}
    payload |= {"keep_alive": "5m", "think": True, "format": {"type": "object"}}
    frontend = frontend_that_calls()
    async with ready_client(frontend) as client:
        response = await client.post("/api/chat", content=orjson.dumps(payload), headers=JSON)
        # For titles and tags.
        title = {"model": LISTED, "messages": turns[:1], "stream": False, "options": {"num_predict": 1000}}
        titled = (await client.post("/api/chat", content=orjson.dumps(title), headers=JSON)).json()
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = lines_of(response.content)
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm."
    assert "".join(line["message"].get("content", "") for line in lines) == "I look."
    (called,) = [one for line in lines for one in line["message"].get("tool_calls", ())]
    assert (called["id"], called["function"]["index"], called["function"]["arguments"]) == ("call_0", 0, {"city": "Oslo"})
    last = lines[-1]
    assert (last["done"], last["done_reason"]) == (True, "stop")
    # It divides by the times.
    assert last["eval_count"] / last["eval_duration"] > 0
    assert last["prompt_eval_count"] / last["prompt_eval_duration"] > 0
    assert titled["message"]["content"] == "I look."
    request = frontend.requests[0]
    assert isinstance(request, generation_pb2.ChatRequest)
    assert [turn.role for turn in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[3].tool_call_id == "call_9"
    assert request.options.sampling.max_tokens == 32


async def test_vectors_and_prompts() -> None:
    async with ready_client(frontend_that_calls()) as client:
        for payload in (
            {"input": ["a", "b"], "model": LISTED, "truncate": True},
            # Of its proxy of OpenAI's embeddings.
            {"model": LISTED, "input": ["a", "b"], "prompt": "a\nb"},
        ):
            answer = (await client.post("/api/embed", content=orjson.dumps(payload), headers=JSON)).json()
            assert len(answer["embeddings"]) == 2
        old = await client.post("/api/embeddings", content=orjson.dumps({"model": LISTED, "prompt": "a"}), headers=JSON)
        assert len(old.json()["embedding"]) == 2
        prompt = {"model": LISTED, "prompt": "Hi", "stream": True, "options": OPTIONS}
        lines = lines_of((await client.post("/api/generate", content=orjson.dumps(prompt), headers=JSON)).content)
        assert "".join(line["response"] for line in lines) == "I look."


async def test_what_the_user_is_told() -> None:
    async with ready_client(frontend_that_calls()) as client:
        for method, path, payload in (
            ("POST", "/api/chat", {"model": "gone", "messages": [], "stream": True}),
            ("POST", "/api/generate", {"model": LISTED, "keep_alive": 0, "prompt": ""}),
            ("POST", "/api/pull", {"model": "x"}),
            ("DELETE", "/api/delete", {"model": LISTED}),
            ("POST", "/api/blobs/sha256:0", {}),
        ):
            refused = await client.request(method, path, content=orjson.dumps(payload), headers=JSON)
            assert refused.status_code == 404, refused.text
            assert isinstance(refused.json()["error"], str)
