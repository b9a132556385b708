"""Names of models with and without a tag, what is told of models, and loading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.ollama import HI, able, async_client, ready_client
from support.fakes.frontend import MODEL, FakeFrontend
from support.keys import KeyStore
from triptych.v1 import common_pb2
from triptych_common import __version__
from triptych_gateway.apis.ollama.names import listed_name, served_name

LATEST = f"{MODEL.name}:latest"
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"messages": HI["messages"], "stream": False}),
    ("/api/chat", {"messages": HI["messages"]}),
    ("/api/chat", {}),
    ("/api/generate", {"prompt": "Hi"}),
    ("/api/generate", {}),
    ("/api/embed", {"input": "Hi"}),
    ("/api/embed", {"input": []}),
    ("/api/embeddings", {"prompt": "Hi"}),
    ("/api/show", {}),
]


@given(st.sets(st.sampled_from(["m", "m:latest", "m:one", "n:latest"])), st.sampled_from(["m", "n"]))
def test_what_is_listed_is_found(known: set[str], base: str) -> None:
    for name in known:
        assert served_name(name, known) == name
        assert served_name(listed_name(name), known) in (name, f"{name}:latest")
    if {base, f"{base}:latest"} & known:
        assert {served_name(base, known), served_name(f"{base}:latest", known)} <= known


@pytest.mark.parametrize(
    ("given", "served"),
    [("m", "m"), ("m:latest", "m"), ("m:one", "m:one"), ("m:one:latest", "m:one"), ("n", "n:latest"), ("x", "x")],
)
def test_names(given: str, served: str) -> None:
    assert served_name(given, {"m", "m:one", "n:latest"}) == served


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_model_is_found_with_and_without_its_tag(path: str, body: dict[str, Any]) -> None:
    async with ready_client() as client:
        for name in (MODEL.name, LATEST):
            answer = await client.post(path, json=body | {"model": name})
            assert answer.status_code == 200, answer.text
            assert f'"{name}"' in answer.text or path in ("/api/show", "/api/embeddings")
        for name in ("nope", "nope:latest", f"{MODEL.name}:other"):
            missing = await client.post(path, json=body | {"model": name})
            assert missing.status_code == 404, missing.text
            assert missing.json() == {"error": f'model "{name.removesuffix(":latest")}" not found'}


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_key_for_a_model_is_one_for_its_other_name(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    keys.add("ours", models=[MODEL.name])
    keys.add("other", models=["other/model"])
    async with ready_client(api_keys_file=keys.path) as client:
        for name in (MODEL.name, LATEST):
            ours = await client.post(path, json=body | {"model": name}, headers=keys.headers("ours"))
            other = await client.post(path, json=body | {"model": name}, headers=keys.headers("other"))
            assert (ours.status_code, other.status_code) == (200, 403), ours.text
        assert "does not have access to the model" in other.json()["error"]


async def test_lists(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    keys.add("ours", models=[MODEL.name])
    keys.add("other", models=["other/model"])
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        (listed,) = (await client.list()).models
        (loaded,) = (await client.ps()).models
    assert (listed.model, loaded.model, loaded.name) == (LATEST, LATEST, LATEST)
    assert listed.digest == loaded.digest
    assert listed.digest is not None
    assert len(listed.digest) == 64
    assert loaded.context_length == MODEL.max_model_len
    assert loaded.expires_at is not None
    assert loaded.expires_at.year > 2300
    async with ready_client(api_keys_file=keys.path) as http:
        for path in ("/api/tags", "/api/ps"):
            ours = (await http.get(path, headers=keys.headers("ours"))).json()["models"]
            assert [model["name"] for model in ours] == [LATEST]
            assert (await http.get(path, headers=keys.headers("other"))).json() == {"models": []}


async def test_what_is_told_of_a_model() -> None:
    sampling = common_pb2.SamplingParams(temperature=0.7, repetition_penalty=1.05, top_k=20)
    frontend = able(tools=True, reasoning=True, infill=True, modalities=[common_pb2.MODALITY_IMAGE], default_sampling=sampling)
    frontend.model.architecture, frontend.model.quantization = "LlamaForCausalLM", "int8"
    async with async_client(frontend) as client:
        shown = await client.show(LATEST)
    assert shown.capabilities == ["completion", "insert", "tools", "vision", "thinking"]
    assert shown.parameters is not None
    told = dict(line.split() for line in shown.parameters.splitlines())
    assert told == {"temperature": "0.7", "repeat_penalty": "1.05", "top_k": "20"}
    assert shown.details is not None
    assert (shown.details.family, shown.details.quantization_level) == ("LlamaForCausalLM", "INT8")
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 2048


async def test_a_model_that_embeds() -> None:
    frontend = able(tasks=[common_pb2.TASK_EMBED])
    async with async_client(frontend) as client:
        assert (await client.show(MODEL.name)).capabilities == ["embedding"]


async def test_older_clients_name_a_model_otherwise() -> None:
    async with ready_client() as client:
        answers = [await client.post("/api/show", json=body) for body in ({"name": LATEST}, {"name": LATEST, "model": LATEST}, {})]
    assert [answer.status_code for answer in answers] == [200, 200, 400]


async def test_whether_the_server_is_there() -> None:
    async with ready_client() as client:
        version = await client.get("/api/version")
        heads = [await client.head(path) for path in ("/", "/api/version", "/api/tags")]
    assert version.json()["triptych"] == __version__
    # Clients compare it as numbers.
    assert len([int(part) for part in version.json()["version"].split(".")]) == 3
    assert [(head.status_code, head.content) for head in heads] == [(200, b"")] * 3


async def test_a_request_without_a_prompt_loads_the_model() -> None:
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        whole = await client.generate(MODEL.name)
        (streamed,) = [line async for line in await client.generate(MODEL.name, stream=True)]
        chat = await client.chat(MODEL.name)
    assert (whole.response, streamed.response, chat.message.content) == ("", "", "")
    for answer in (whole, streamed, chat):
        assert (answer.done, answer.done_reason) == (True, "load")
        assert answer.load_duration is not None
        assert answer.total_duration is not None
        assert 0 < answer.load_duration <= answer.total_duration
    assert not frontend.requests


async def unload(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> tuple[int, str]:
    answer = await client.post("/api/generate", json={"model": MODEL.name, "prompt": "", "keep_alive": 0}, headers=headers)
    return answer.status_code, answer.json().get("error", "")


async def test_only_operators_let_a_model_sleep(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    keys.add("tenant")
    keys.add("operator", operator=True)
    async with ready_client(api_keys_file=keys.path) as client:
        assert await unload(client, keys.headers("tenant")) == (
            403,
            "keep_alive: 0 puts the model to sleep, which is for operators' API keys",
        )
        status, error = await unload(client, keys.headers("operator"))
        assert (status, "no model manager" in error) == (404, True)


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy", "delete", "blobs/sha256:0"])
async def test_what_manages_files_is_refused_by_name(name: str) -> None:
    async with ready_client() as client:
        for method in ("POST", "DELETE", "HEAD"):
            answer = await client.request(method, f"/api/{name}")
            assert answer.status_code == 404
            if method != "HEAD":
                assert answer.json().keys() == {"error"}
                assert "triptych serve" in answer.json()["error"]
        other = await client.get("/api/nonsense")
    assert (other.status_code, other.json()) == (404, {"error": "no such path"})


async def test_the_client_tells_of_an_unknown_model() -> None:
    async with async_client(FakeFrontend()) as client:
        with pytest.raises(ollama.ResponseError) as caught:
            await client.chat("nope", HI["messages"])
    assert (caught.value.status_code, caught.value.error) == (404, 'model "nope" not found')
