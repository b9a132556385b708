"""Batches of keys: whose they are, and what their lines may do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batches import CHAT_URL, Answers, chat_line, ended_batch, error_of, jsonl, output_of, start_batch, upload
from support.fakes.frontend import MODEL, FakeFrontend, Script, says
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client
from support.keys import KeyStore
from support.sdk import openai_client
from support.waiting import until
from triptych.v1 import generation_pb2


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    for name in ("one", "other"):
        store.add(name, priority=5)
    store.add("narrow", models=["another/model"])
    store.add("slow", requests_per_minute=600, max_concurrent_requests=4)
    return store


async def test_a_batch_is_its_tenants_and_its_lines_are_its_keys(tmp_path: Path, keys: KeyStore) -> None:
    frontend = FakeFrontend()
    audit = tmp_path / "audit.jsonl"
    settings = {"files_dir": tmp_path / "files", "api_keys_file": keys.path, "audit_log": str(audit)}
    async with gateway_client(frontend, **settings) as client:
        one, other = keys.headers("one"), keys.headers("other")
        file_id = (await client.post("/v1/files", **upload(jsonl([chat_line("a")]), "batch"), headers=one)).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
        assert f"no file '{file_id}'" in error_of(await client.post("/v1/batches", json=body, headers=other), 404)
        batch = (await client.post("/v1/batches", json=body, headers=one)).json()
        path = f"/v1/batches/{batch['id']}"
        for method, target in (("GET", path), ("POST", f"{path}/cancel")):
            assert f"no batch '{batch['id']}'" in error_of(await client.request(method, target, headers=other), 404)
        assert (await client.get("/v1/batches", headers=other)).json()["data"] == []
        while (batch := (await client.get(path, headers=one)).json())["status"] != "completed":  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.02)
        content = f"/v1/files/{batch['output_file_id']}/content"
        assert "no file" in error_of(await client.get(content, headers=other), 404)
        assert (await client.get(content, headers=one)).status_code == 200
        assert [entry["id"] for entry in (await client.get("/v1/batches", headers=one)).json()["data"]] == [batch["id"]]
    assert [context.tenant for context in frontend.contexts] == [keys.id("one")]
    assert [request.options.priority for request in frontend.requests] == [1005]
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    (line,) = [entry for entry in entries if entry.get("route") == CHAT_URL]
    assert (line["key"], line["tenant"], line["model"], line["status"]) == (keys.id("one"), keys.id("one"), MODEL.name, 200)


async def sdk_batch(app: Any, keys: KeyStore, name: str, content: bytes) -> Any:
    """A batch of this key, once it has ended; and its client."""
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key=keys.texts[name], http_client=client_of(app), max_retries=0)
    return client, await ended_batch(client, await start_batch(client, content))


async def test_a_model_that_the_key_does_not_have_is_refused_without_telling_of_others(tmp_path: Path, keys: KeyStore) -> None:
    frontend = FakeFrontend()
    async with gateway_app(frontend, files_dir=tmp_path / "files", api_keys_file=keys.path) as app:
        _, batch = await sdk_batch(app, keys, "narrow", jsonl([chat_line("a"), chat_line("b", body={"model": "none"})]))
    assert batch.status == "failed"
    assert [(error.code, error.line, error.message) for error in batch.errors.data] == [
        ("model_not_found", 1, "line 1: this API key does not have access to the model 'fake/model'"),
        ("model_not_found", 2, "line 2: this API key does not have access to the model 'none'"),
    ]
    assert not frontend.requests


async def test_a_batch_leaves_half_of_its_keys_places_to_others(tmp_path: Path, keys: KeyStore) -> None:
    frontend, most = FakeFrontend(), 0

    def play(request: generation_pb2.ChatRequest) -> Script:
        nonlocal most
        most = max(most, frontend.num_live)
        return says("yes")

    frontend.script = play  # type: ignore[assignment]
    async with gateway_app(frontend, files_dir=tmp_path / "files", api_keys_file=keys.path) as app:
        client, batch = await sdk_batch(app, keys, "slow", jsonl(chat_line(str(number)) for number in range(30)))
        assert batch.request_counts.completed == 30
        # Its requests are counted as its owner's own.
        raw = await client.chat.completions.with_raw_response.create(**CHAT)
        assert 500 < int(raw.headers["x-ratelimit-remaining-requests"]) < 575
    assert most <= 2


async def test_a_key_that_is_revoked_fails_its_batch(tmp_path: Path, keys: KeyStore) -> None:
    frontend = FakeFrontend()
    frontend.script = answers = Answers(3)
    settings = {"files_dir": tmp_path / "files", "api_keys_file": keys.path, "max_batch_requests": 1}
    keys.add("second", tenant=keys.id("one"))
    async with gateway_app(frontend, **settings) as app:
        client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key=keys.texts["one"], http_client=client_of(app))
        second = client.with_options(api_key=keys.texts["second"])
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(9)))
        await until(lambda: answers.num_left < 0 and frontend.num_live == 1)
        keys.change("one", revoked="2026-01-01T00:00:00Z")
        ring = app.state.gateway.access._ring
        await until(lambda: ring.get(keys.id("one")) == "revoked")
        answers.open()
        batch = await ended_batch(second, batch)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [error.code for error in batch.errors.data or ()] == ["invalid_api_key"]
        output, errors = await output_of(second, batch.output_file_id), await output_of(second, batch.error_file_id)
    # The one that was in flight was answered.
    assert (len(output), len(errors)) == (4, 5)
    assert {error["error"]["code"] for error in errors.values()} == {"batch_failed"}


async def test_another_gateway_on_the_directory_leaves_what_it_cannot_answer(tmp_path: Path, keys: KeyStore) -> None:
    """Several `triptych serve` of one machine have one directory, with different models and callers."""
    frontend = FakeFrontend()
    frontend.script = answers = Answers(0)
    directory = tmp_path / "files"
    async with openai_client(frontend, files_dir=directory) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(3)))
        await until(lambda: frontend.num_live == 3)
    other = FakeFrontend()
    other.model = type(MODEL)(name="another/model", max_model_len=2048, vocab_size=100)
    async with openai_client(other, files_dir=directory) as client:
        await asyncio.sleep(0.3)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    assert not other.requests
    answers.open()
    async with openai_client(frontend, files_dir=directory) as client:
        assert (await ended_batch(client, batch)).status == "completed"
