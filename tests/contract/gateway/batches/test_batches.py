"""/v1/batches with OpenAI's client: from a file of requests to its files of answers."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batches import CHAT_URL, Answers, chat_line, ended_batch, jsonl, output_of, start_batch, upload
from support.fakes.frontend import MODEL, FakeFrontend, Script, says
from support.fakes.gateway import CHAT, client_of, gateway_app
from support.sdk import openai_client
from support.waiting import until
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych.v1 import generation_pb2
from triptych_common.batch.journal import Journal, JournalError
from triptych_gateway.apis.batches import routes, run, runner
from triptych_gateway.stores.opening import FileStores


async def test_each_line_is_answered_and_refusals_are_apart(tmp_path: Path) -> None:
    frontend = FakeFrontend()

    def play(request: generation_pb2.ChatRequest) -> Script:
        if request.messages[0].content[0].text == "bad":
            return Script([], error=InvalidRequestError("it is refused"))
        return says("yes")

    frontend.script = play  # type: ignore[assignment]
    lines = [chat_line(str(number), "bad" if number == 3 else f"text {number}") for number in range(40)]
    # A line that the route itself refuses.
    lines[5]["body"]["colour"] = "red"
    async with openai_client(frontend, files_dir=tmp_path) as client:
        batch = await start_batch(client, jsonl(lines), metadata={"job": "nightly"})
        assert (batch.status, batch.metadata, batch.expires_at) == ("validating", {"job": "nightly"}, batch.created_at + 86400)
        batch = await ended_batch(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 40, "completed": 38, "failed": 2}
        assert batch.model == MODEL.name
        times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        assert None not in times
        assert times == sorted(times, key=lambda at: at or 0)
        assert batch.usage is not None
        assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (38 * 7, 38 * 3, 38 * 10)
        assert batch.usage.input_tokens_details.cached_tokens == 38 * 2
        output, errors = await output_of(client, batch.output_file_id), await output_of(client, batch.error_file_id)
        assert output.keys() | errors.keys() == {str(number) for number in range(40)}
        assert errors.keys() == {"3", "5"}
        assert errors["3"]["response"]["body"]["error"]["message"] == "it is refused"
        assert errors["5"]["response"]["body"]["error"]["param"] == "colour"
        answer = output["7"]["response"]
        assert (answer["status_code"], output["7"]["error"]) == (200, None)
        assert answer["body"]["choices"][0]["message"]["content"] == "yes"
        assert answer["request_id"] in frontend.request_ids
        file = await client.files.retrieve(batch.output_file_id or "")
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
        assert file.expires_at == file.created_at + 30 * 86400
    assert not [*(tmp_path / "batches").iterdir()]


@pytest.mark.parametrize(
    ("endpoint", "body", "of_answer"),
    [
        ("/v1/completions", {"prompt": "x"}, lambda body: body["choices"][0]["text"]),
        ("/v1/embeddings", {"input": "x"}, lambda body: body["data"][0]["object"]),
        ("/v1/responses", {"input": "x"}, lambda body: body["output"][0]["content"][0]["text"]),
    ],
)
async def test_other_endpoints(tmp_path: Path, endpoint: str, body: dict[str, Any], of_answer: Any) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL.name, **body}}
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as client:
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        batch = await ended_batch(client, await start_batch(client, jsonl([line]), endpoint, output_expires_after=expiry))
        output = await output_of(client, batch.output_file_id)
        assert of_answer(output["a"]["response"]["body"]) in ("Hello", "embedding")
        file = await client.files.retrieve(batch.output_file_id or "")
        assert file.expires_at == file.created_at + 3600


async def test_a_batch_is_cancelled_in_the_middle(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    frontend.script = Answers(5)
    async with openai_client(frontend, files_dir=tmp_path, max_batch_requests=3) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(50)))
        await until(lambda: frontend.num_live == 3)
        # Its input stays until it has ended.
        with pytest.raises(openai.BadRequestError, match=f"this is the input of {batch.id}, which has not ended"):
            await client.files.delete(batch.input_file_id)
        batch = await client.batches.cancel(batch.id)
        assert batch.status == "cancelling"
        assert batch.cancelling_at is not None
        batch = await ended_batch(client, batch)
        await until(lambda: not frontend.num_live)
        assert batch.status == "cancelled"
        assert batch.cancelled_at is not None
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 50, "completed": 5, "failed": 45}
        output, errors = await output_of(client, batch.output_file_id), await output_of(client, batch.error_file_id)
        assert (len(output), len(errors)) == (5, 45)
        assert not output.keys() & errors.keys()
        error = errors["49"]
        assert (error["response"], error["error"]["code"]) == (None, "batch_cancelled")
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        await client.files.delete(batch.input_file_id)
        done = await ended_batch(client, await start_batch(client, b"{"))
        with pytest.raises(openai.BadRequestError, match="a batch that is failed cannot be cancelled"):
            await client.batches.cancel(done.id)
    assert len(frontend.requests) == 8


async def test_what_is_full_or_away_is_tried_again(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    seen: dict[str, int] = {}
    passing = {"0": QueueFullError("full", retry_after_s=0.01), "1": ServiceUnavailableError("away")}

    def play(request: generation_pb2.ChatRequest) -> Script:
        text = request.messages[0].content[0].text
        seen[text] = seen.get(text, 0) + 1
        return Script([], error=passing[text]) if seen[text] == 1 and text in passing else says("yes")

    frontend.script = play  # type: ignore[assignment]
    async with openai_client(frontend, files_dir=tmp_path) as client:
        batch = await ended_batch(client, await start_batch(client, jsonl(chat_line(str(n), str(n)) for n in range(3))))
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 3
    assert seen == {"0": 2, "1": 2, "2": 1}


async def test_what_is_not_answered_in_time_has_expired(tmp_path: Path) -> None:
    """A gateway that starts after the window ends the batch."""
    frontend = FakeFrontend()
    frontend.script = answers = Answers(2)
    async with openai_client(frontend, files_dir=tmp_path, max_batch_requests=1) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(4)))
        await until(lambda: answers.num_left < 0 and frontend.num_live == 1)
    stores = FileStores(tmp_path, 1 << 20, 1 << 20, lambda: 1)
    await stores.batches.update(batch.id, lambda resource: resource | {"expires_at": int(time.time()) - 1})
    await stores.close()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        batch = await ended_batch(client, batch)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        output, errors = await output_of(client, batch.output_file_id), await output_of(client, batch.error_file_id)
        assert (len(output), len(errors)) == (2, 2)
        assert {error["error"]["code"] for error in errors.values()} == {"batch_expired"}


async def test_two_gateways_answer_each_line_once(tmp_path: Path) -> None:
    """One runs the batch, and the other goes on when that one stops in the middle."""
    first, second = FakeFrontend(), FakeFrontend()
    first.script = second.script = answers = Answers(10)
    async with openai_client(second, files_dir=tmp_path, max_batch_requests=4) as other:
        async with openai_client(first, files_dir=tmp_path, max_batch_requests=4) as client:
            batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(30)))
            await until(lambda: answers.num_left < 0 and first.num_live + second.num_live == 4)
            running = first if first.num_live else second
            assert running.num_live == 4
            await asyncio.sleep(2.2)  # the other has looked for work meanwhile
            assert (first.num_live, second.num_live) == ((4, 0) if running is first else (0, 4))
            assert (await other.batches.retrieve(batch.id)).status == "in_progress"
        answers.open()
        batch = await ended_batch(other, batch)
        assert len(await output_of(other, batch.output_file_id)) == 30
    # What was in flight when the first one stopped is answered again.
    assert len(first.requests) + len(second.requests) <= 34


async def test_interactive_requests_go_first_and_find_room(tmp_path: Path) -> None:
    frontend, answers = FakeFrontend(), Answers(0)

    def play(request: generation_pb2.ChatRequest) -> Script:
        return answers(request) if request.options.priority > 0 else says("at once")

    frontend.script = play  # type: ignore[assignment]
    async with openai_client(frontend, files_dir=tmp_path, max_batch_requests=2) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(9)))
        await until(lambda: frontend.num_live == 2)
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "at once"
        assert frontend.num_live == 2
        answers.open()
        await ended_batch(client, batch)
    priorities = [request.options.priority for request in frontend.requests]
    assert sorted(priorities) == [0, *[1000] * 9]


async def test_a_full_disk_pauses_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, is_full = Journal.write, True

    def full(self: Journal, *args: Any) -> None:
        if is_full and len(self.done) >= 2:
            raise JournalError("cannot write: No space left on device")
        write(self, *args)

    monkeypatch.setattr(Journal, "write", full)
    monkeypatch.setattr(runner, "_PAUSE_S", 0.1)
    monkeypatch.setattr(runner, "_LOOK_S", 0.05)
    monkeypatch.setattr(run, "WATCH_S", 0.05)
    async with openai_client(FakeFrontend(), files_dir=tmp_path, max_batch_requests=2) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(6)))
        await asyncio.sleep(0.5)
        batch = await client.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
        assert batch.request_counts is not None
        assert batch.request_counts.completed <= 2
        is_full = False
        batch = await ended_batch(client, batch)
        assert len(await output_of(client, batch.output_file_id)) == 6


async def test_output_that_could_not_be_written_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_output, seen = run.write_output, []

    def failing(*args: Any) -> Any:
        written = write_output(*args)
        seen.append(written)
        if len(seen) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    monkeypatch.setattr(run, "write_output", failing)
    monkeypatch.setattr(runner, "_PAUSE_S", 0.3)
    monkeypatch.setattr(runner, "_LOOK_S", 0.05)
    frontend = FakeFrontend()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        batch = await start_batch(client, jsonl(chat_line(str(number)) for number in range(6)))
        await until(lambda: bool(seen))
        assert (await client.batches.retrieve(batch.id)).status == "finalizing"
        with pytest.raises(openai.BadRequestError, match="a batch that is finalizing cannot be cancelled"):
            await client.batches.cancel(batch.id)
        batch = await ended_batch(client, batch)
        assert batch.status == "completed"
        assert len(await output_of(client, batch.output_file_id)) == 6
        assert len([file async for file in client.files.list(purpose="batch_output")]) == 1
    assert len(frontend.requests) == 6
    assert not [path for folder in ("incoming", "batches") for path in (tmp_path / folder).iterdir()]


async def test_batches_are_listed_in_pages_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    frontend.script = Answers(0)
    monkeypatch.setattr(routes, "MAX_LIVE", 3)
    async with openai_client(frontend, files_dir=tmp_path) as client:
        ids = [(await start_batch(client, jsonl([chat_line("a")]))).id for _ in range(3)]
        assert [batch.id async for batch in client.batches.list(limit=2)] == ids[::-1]
        page = await client.batches.list(limit=1, after=ids[2])
        assert ([batch.id for batch in page.data], page.has_more) == ([ids[1]], True)
        with pytest.raises(openai.BadRequestError, match="after: no batch 'batch_none'"):
            await client.batches.list(after="batch_none")
        with pytest.raises(openai.RateLimitError, match="3 of your batches have not ended"):
            await start_batch(client, jsonl([chat_line("a")]))
        for batch_id in ids:
            await client.batches.cancel(batch_id)
        for batch_id in ids:
            await ended_batch(client, await client.batches.retrieve(batch_id))
        await start_batch(client, jsonl([chat_line("a")]))


async def test_a_batch_that_nobody_ran_is_run_at_the_next_start(tmp_path: Path) -> None:
    stored = None
    async with gateway_app(FakeFrontend(), files_dir=tmp_path) as app:
        stores = app.state.gateway.files
        await app.state.batches.close()
        async with client_of(app) as client:
            file_id = (await client.post("/v1/files", **upload(jsonl([chat_line("a")]), "batch"))).json()["id"]
            body = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
            stored = await stores.batches.get("", (await client.post("/v1/batches", json=body)).json()["id"])
        assert stored is not None
        assert stored.status == "validating"
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as sdk:
        assert (await ended_batch(sdk, await sdk.batches.retrieve(stored.id))).status == "completed"
