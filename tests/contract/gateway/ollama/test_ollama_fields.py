"""Every field of Ollama's requests has its effect, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ollama
import ollama._types as types
import pytest
from pydantic import BaseModel
from support.drivers.ollama import HI, WEATHER, able
from support.fakes.frontend import MODEL
from support.fakes.gateway import gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.ollama import schema
from triptych_gateway.apis.ollama.options import OllamaOptions
from triptych_gateway.wire.schema import NoOp

Chat = generation_pb2.ChatRequest
GENERATE = {"model": MODEL.name, "prompt": "Hi"}
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
#: Field -> a value, and what the frontend's request shows of it. `None`: accepted, without an effect on the request.
Honoured = dict[str, tuple[Any, Callable[[Chat], bool] | None]]
BOTH: Honoured = {
    "model": (f"{MODEL.name}:latest", lambda request: request.model == MODEL.name),
    "options": ({"num_predict": 3}, lambda request: request.options.sampling.max_tokens == 3),
    "keep_alive": ("5m", None),
    "format": (SCHEMA, lambda request: request.options.constraint.json_schema == '{"type":"object","properties":{"b":{},"a":{}}}'),
    "think": (False, lambda request: request.reasoning.effort == "none"),
    "logprobs": (True, lambda request: request.options.sampling.HasField("logprobs")),
    "top_logprobs": (None, lambda request: not request.options.sampling.HasField("logprobs")),
    "stream": (False, None),
}
CHAT: Honoured = BOTH | {
    "messages": (HI["messages"], lambda request: request.messages[0].content[0].text == "Hi"),
    "tools": ([WEATHER], lambda request: request.tools[0].name == "get_weather"),
    "truncate": (False, lambda request: not request.drop_oldest_messages),
}
GENERATION: Honoured = BOTH | {
    "prompt": ("Hi", lambda request: request.messages[0].content[0].text == "Hi"),
    "system": ("s", lambda request: [turn.role for turn in request.messages] == ["system", "user"]),
    "images": (["aGk="], lambda request: request.messages[0].content[0].media.data == b"hi"),
    "raw": (False, None),
    "truncate": (True, lambda request: request.options.truncate_prompt_tokens == -1),
    "suffix": ("", None),
}
OPTIONS: Honoured = {
    "num_predict": (3, lambda request: request.options.sampling.max_tokens == 3),
    "temperature": (0, lambda request: request.options.sampling.HasField("temperature")),
    "top_k": (5, lambda request: request.options.sampling.top_k == 5),
    "top_p": (0.5, lambda request: request.options.sampling.top_p == 0.5),
    "min_p": (0.5, lambda request: request.options.sampling.min_p == 0.5),
    "seed": (7, lambda request: request.options.sampling.seed == 7),
    "stop": (["a", "b"], lambda request: list(request.options.stop) == ["a", "b"]),
    "repeat_penalty": (1.5, lambda request: request.options.sampling.repetition_penalty == 1.5),
    "presence_penalty": (1.5, lambda request: request.options.sampling.presence_penalty == 1.5),
    "frequency_penalty": (1.5, lambda request: request.options.sampling.frequency_penalty == 1.5),
    "repeat_last_n": (64, None),
    "num_ctx": (2048, None),
    "num_keep": (24, None),
    "mirostat_tau": (5.0, None),
    "mirostat_eta": (0.1, None),
}
REFUSED_OPTIONS: dict[str, Any] = {
    "mirostat": 2,
    "tfs_z": 2.0,
    "typical_p": 0.5,
    "penalize_newline": False,
    "numa": True,
    "num_batch": 512,
    "num_gpu": 1,
    "main_gpu": 1,
    "num_thread": 4,
    "low_vram": True,
    "f16_kv": False,
    "use_mmap": True,
    "use_mlock": True,
    "logits_all": True,
    "vocab_only": True,
    "embedding_only": True,
}
#: Path, needed fields, and field -> a value that is refused.
REFUSED = [
    *(("/api/chat", HI, name, value) for name, value in {"shift": True, "system": "s", "template": "{{ .Prompt }}"}.items()),
    *(
        ("/api/generate", GENERATE, name, value)
        for name, value in {
            "shift": True,
            "template": "{{ .Prompt }}",
            "context": [1, 2],
            "width": 512,
            "height": 512,
            "steps": 4,
        }.items()
    ),
    *(
        ("/api/show", {"model": MODEL.name}, name, value)
        for name, value in {"verbose": True, "system": "s", "template": "t", "options": {"seed": 1}}.items()
    ),
]


def refused_of(model: type[BaseModel]) -> set[str]:
    return {name for name, info in model.model_fields.items() if any(isinstance(one, NoOp) for one in info.metadata)}


def test_the_tables_name_every_field() -> None:
    refused = {path: {name for at, _, name, _ in REFUSED if at == path} for path in ("/api/chat", "/api/generate", "/api/show")}
    assert set(schema.ChatRequest.model_fields) == CHAT.keys() | refused["/api/chat"]
    assert set(schema.GenerateRequest.model_fields) == GENERATION.keys() | refused["/api/generate"]
    assert set(OllamaOptions.model_fields) == OPTIONS.keys() | REFUSED_OPTIONS.keys()
    assert refused_of(schema.ChatRequest) == refused["/api/chat"]
    assert refused_of(schema.GenerateRequest) == refused["/api/generate"]
    assert refused_of(schema.ShowRequest) == refused["/api/show"]
    assert refused_of(OllamaOptions) == REFUSED_OPTIONS.keys()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (types.ChatRequest, schema.ChatRequest),
        (types.GenerateRequest, schema.GenerateRequest),
        (types.EmbedRequest, schema.EmbedRequest),
        (types.EmbeddingsRequest, schema.EmbeddingsRequest),
        (types.ShowRequest, schema.ShowRequest),
        (ollama.Message, schema.OllamaMessage),
        (ollama.Options, OllamaOptions),
    ],
)
def test_no_field_of_the_client_is_unknown(theirs: type[BaseModel], ours: type[BaseModel]) -> None:
    assert theirs.model_fields.keys() <= ours.model_fields.keys()


@pytest.mark.parametrize(
    ("path", "needed", "field", "value", "shows"),
    [
        *(("/api/chat", HI, field, *row) for field, row in CHAT.items()),
        *(("/api/generate", GENERATE, field, *row) for field, row in GENERATION.items()),
        *(("/api/chat", HI, "options", {field: row[0]}, row[1]) for field, row in OPTIONS.items()),
    ],
)
async def test_honoured(path: str, needed: dict[str, Any], field: str, value: Any, shows: Callable[[Chat], bool] | None) -> None:
    frontend = able()
    async with gateway_client(frontend) as client:
        plain = await client.post(path, json=needed)
        before = frontend.request
        response = await client.post(path, json=needed | {field: value})
    assert (plain.status_code, response.status_code) == (200, 200), response.text
    assert isinstance(frontend.request, Chat)
    if shows is None:
        assert frontend.request == before
    else:
        assert shows(frontend.request)


@pytest.mark.parametrize(("path", "needed", "field", "value"), REFUSED)
async def test_refused(path: str, needed: dict[str, Any], field: str, value: Any) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json=needed | {field: value})
        taken = await client.post(path, json=needed | {field: None})
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{field}: not supported")
    assert taken.status_code == 200


@pytest.mark.parametrize("field", REFUSED_OPTIONS)
async def test_refused_options(field: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/api/chat", json=HI | {"options": {field: REFUSED_OPTIONS[field]}})
        taken = await client.post("/api/chat", json=HI | {"options": {field: None}})
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"options.{field}: not supported")
    assert taken.status_code == 200


#: Bodies that are refused, and the beginning of what is said.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", {"nonsense": 1}, "nonsense: unknown field"),
    ("/api/chat", {"options": {"nonsense": 1}}, "options.nonsense: unknown field"),
    ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict: must be at least 1, or -1 or -2"),
    ("/api/chat", {"options": {"num_ctx": 2049}}, "options.num_ctx: this model's context is 2048 tokens; given: 2049"),
    (
        "/api/chat",
        {"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}},
        "options.repeat_last_n: must be -1 with repeat_penalty",
    ),
    ("/api/chat", {"options": {"temperature": "warm"}}, "options.temperature: "),
    ("/api/chat", {"format": "yaml"}, "format: "),
    ("/api/chat", {"think": "hard"}, "think: "),
    ("/api/chat", {"think": True}, "think: this model does not think"),
    ("/api/chat", {"think": "high"}, "think: this model does not think"),
    ("/api/chat", {"keep_alive": 0}, "keep_alive: not supported"),
    ("/api/chat", {"keep_alive": "0s"}, "keep_alive: not supported"),
    ("/api/chat", {"keep_alive": "soon"}, "keep_alive: must be seconds, or a duration such as 5m"),
    ("/api/chat", {"top_logprobs": 3}, "top_logprobs: only allowed when logprobs is true"),
    ("/api/chat", {"model": ""}, "model: "),
    ("/api/chat", {"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role: "),
    ("/api/chat", {"messages": [{"role": "user", "images": ["?"]}]}, "messages[0].images[0]: must be a string in base64"),
    (
        "/api/chat",
        {"messages": [{"role": "user", "images": ["http://127.0.0.1/a.png"]}]},
        "messages[0].images[0]: must be a string",
    ),
    ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}, "system: not with raw"),
    ("/api/generate", {"prompt": "x", "raw": True, "think": True}, "think: not with raw"),
    ("/api/generate", {"prompt": "x", "suffix": "y", "system": "s"}, "system: not with a suffix"),
    ("/api/generate", {"prompt": "x", "suffix": "y", "images": ["aGk="]}, "images: not with a suffix"),
    ("/api/generate", {"prompt": "x", "suffix": "y", "truncate": True}, "truncate: not with a suffix"),
    ("/api/generate", {"prompt": "x", "images": ["?"]}, "images[0]: must be a string in base64"),
    ("/api/embed", {}, "input: this field is required"),
    ("/api/embeddings", {}, "prompt: this field is required"),
    ("/api/show", {"name": "another"}, "name: is the older name of model; they differ"),
]


@pytest.mark.parametrize(("path", "fields", "said"), WRONG)
async def test_wrong(path: str, fields: dict[str, Any], said: str) -> None:
    needed = HI if path == "/api/chat" else {"model": MODEL.name}
    async with gateway_client() as client:
        response = await client.post(path, json=needed | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"].startswith(said), response.text


@pytest.mark.parametrize("value", [-1, 0.5, 3600, "-1", "-1s", "1h30m", "300ms"])
async def test_times_to_keep_a_model(value: Any) -> None:
    async with gateway_client() as client:
        response = await client.post("/api/chat", json=HI | {"keep_alive": value})
    # "-1" lacks its unit, also for Ollama.
    assert response.status_code == (400 if value == "-1" else 200), response.text
