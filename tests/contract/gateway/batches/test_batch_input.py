"""What /v1/batches refuses of its input, and how it is checked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.batches import CHAT_URL, chat_line, ended_batch, error_of, jsonl, start_batch, upload
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client
from support.sdk import openai_client
from support.waiting import until
from triptych_gateway.apis.batches import checking


@pytest.mark.parametrize(
    ("lines", "code", "number", "message"),
    [
        ([chat_line("a"), "{"], "invalid_json_line", 2, "line 2: is not JSON"),
        ([chat_line("a"), "", "[1]"], "invalid_json_line", 3, "line 3: must be an object"),
        ([chat_line("a"), chat_line("a")], "duplicate_custom_id", 2, "custom_id 'a' is that of line 1 already"),
        ([chat_line("a", url="/v1/files")], "invalid_url", 1, "line 1: url must be one of"),
        ([chat_line("a", url="/v1/embeddings")], "invalid_url", 1, f"url must be the endpoint of the batch, {CHAT_URL}"),
        ([chat_line("a", method="GET")], "invalid_method", 1, "method must be POST"),
        ([chat_line("a", colour="red")], "unknown_parameter", 1, "unknown field 'colour'"),
        ([chat_line("a" * 513)], "invalid_value", 1, "custom_id has more than 512 characters"),
        ([chat_line("a", body={"model": "gpt-9"})], "model_not_found", 1, "no model 'gpt-9' here; served are: fake/model"),
        ([chat_line("a", body={"model": "\ud800"})], "model_not_found", 1, "no model '\\ud800' here"),
        ([chat_line("a", **{"\ud800": 1})], "unknown_parameter", 1, "unknown field '\\ud800'"),
        ([chat_line("a", body={})], "missing_required_parameter", 1, "body.model must name a model"),
        ([chat_line("a", body={**CHAT, "stream": True})], "unsupported_parameter", 1, "body.stream must be false"),
        ([chat_line("a", body={**CHAT, "background": True})], "unsupported_parameter", 1, "body.background must be false"),
        ([chat_line("a", body={**CHAT, "stop": [0] * 1_000_001})], "line_too_long", 1, "line 1: has more than 1000000 commas"),
        ([], "empty_file", None, "the input file has no requests"),
    ],
)
async def test_a_wrong_line_fails_the_batch_before_anything_is_sent(
    tmp_path: Path, lines: list[Any], code: str, number: int | None, message: str
) -> None:
    frontend = FakeFrontend()
    content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode() or b"\n\n"
    async with openai_client(frontend, files_dir=tmp_path) as client:
        batch = await ended_batch(client, await start_batch(client, content))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.errors is not None
    (error,) = batch.errors.data or ()
    assert (error.code, error.line) == (code, number)
    assert message in (error.message or "")
    assert not frontend.requests
    assert not [*(tmp_path / "batches").iterdir()]


async def test_a_batch_names_its_first_errors_and_how_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_LINES", 150)
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as client:
        batch = await ended_batch(client, await start_batch(client, b"{\n" * 120 + jsonl(chat_line(str(n)) for n in range(40))))
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.line for error in batch.errors.data] == [*range(1, 101), None]
    # Twenty lines more, and that there are too many.
    assert batch.errors.data[-1].message == "and 21 more errors"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint: '/v1/moderations' is not served in batches; send one of /v1/chat"),
        ({"completion_window": "7d"}, "completion_window: "),
        ({"input_file_id": "file-none"}, "input_file_id: no file 'file-none'"),
        ({"colour": "red"}, "colour: unknown field"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata: "),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds: "),
    ],
)
async def test_what_is_not_served_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    async with gateway_client(files_dir=tmp_path) as client:
        file_id = (await client.post("/v1/files", **upload(b"{}", "batch"))).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h", **fields}
        answer = await client.post("/v1/batches", json=body)
        assert message in error_of(answer, 404 if "no file" in message else 400)


async def test_a_file_of_another_purpose_is_refused(tmp_path: Path) -> None:
    async with gateway_client(files_dir=tmp_path) as client:
        file_id = (await client.post("/v1/files", **upload(b"{}", "vision"))).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
        assert "the purpose of this file is vision; it must be batch" in error_of(await client.post("/v1/batches", json=body), 400)


async def test_other_requests_run_while_models_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen = 0, list[int]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def check(model: str) -> None:
        seen.append(turns)

    async with gateway_app(FakeFrontend(), files_dir=tmp_path) as app, client_of(app) as client:
        monkeypatch.setattr(app.state.gateway.models, "check", check)
        content = jsonl(chat_line(str(number), body={**CHAT, "model": f"m{number}"}) for number in range(50))
        file_id = (await client.post("/v1/files", **upload(content, "batch"))).json()["id"]
        others = asyncio.create_task(take_turns())
        body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
        assert (await client.post("/v1/batches", json=body)).status_code == 200
        await until(lambda: len(seen) >= 50)
        others.cancel()
    assert seen[49] - seen[0] >= 49


async def test_a_batch_is_not_made_of_a_file_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_app(FakeFrontend(), files_dir=tmp_path) as app, client_of(app) as client:
        file_id = (await client.post("/v1/files", **upload(b"{}", "batch"))).json()["id"]
        files = app.state.gateway.files.files
        file = await files.get("", file_id)
        assert await files.delete("", file_id)

        async def found(*of: str) -> object:
            return file

        monkeypatch.setattr(files, "get", found)
        body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
        answer = await client.post("/v1/batches", json=body)
        assert "input_file_id: this file was deleted meanwhile" in error_of(answer, 400)
        assert (await client.get("/v1/batches")).json()["data"] == []
        assert f"no file '{file_id}'" in error_of(await client.get(f"/v1/files/{file_id}/content"), 404)
