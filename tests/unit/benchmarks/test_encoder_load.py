"""The loads of benchmarks.encoder against a server that answers at a known pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from triptych_cli.load.requests import Target

from benchmarks.errors import BenchmarkError
from benchmarks.load import pictures as picture_load
from benchmarks.load.pictures import CASES, NEW, Subject, ask_in_all_ways, new_picture, objection, put_flood

GAP_S = 0.01


class Server:
    """Streams chats; pictures are answered as a Triptych that found them new would."""

    def __init__(self, num_refused: int = 0) -> None:
        self.num_left_to_refuse = num_refused
        self.num_pictures = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        has_picture = not isinstance(body["messages"][-1]["content"], str)
        self.num_pictures += has_picture
        if has_picture and self.num_left_to_refuse:
            self.num_left_to_refuse -= 1
            return web.json_response({"error": {"message": "full"}}, status=429)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events: list[dict] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": " word"}}]}] * body["max_tokens"]
        details = {"cached_media_tokens": 0}
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"], "prompt_tokens_details": details}
        report = {"key": "00", "encoder_cache": "miss", "source": "encoder", "num_tokens": 4}
        events.append({"choices": [], "usage": usage, "triptych": {"media": [report] * has_picture}})
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(GAP_S)
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Target]:
    """The server, for the time of the block."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield Target("test", f"http://{host}:{port}", "model")
    finally:
        await runner.cleanup()


async def test_another_server_is_asked_in_all_ways_that_need_no_help_of_it() -> None:
    server = Server()
    async with serving(server) as target:
        samples = await ask_in_all_ways(Subject(target), new_picture(64), timeout_s=30)
    assert [sample["case"] for sample in samples] == [case.name for case in CASES if not case.is_after_reset]
    assert all(sample["ttft_ms"] >= 1e3 * GAP_S and "report" not in sample for sample in samples)


async def test_of_triptych_an_answer_of_another_case_ends_the_benchmark() -> None:
    async with serving(Server()) as target:
        # The first is what it claims to be, the second was no prefix.
        with pytest.raises(BenchmarkError, match="the same again: the encoder says miss"):
            await ask_in_all_ways(Subject(target, lambda: None), new_picture(64), timeout_s=30)
        sample = await picture_load._sample(Subject(target, lambda: None), CASES[0], new_picture(64), timeout_s=30)
    assert (sample["case"], sample["report"]["encoder_cache"]) == (NEW, "miss")


async def test_text_streams_run_before_and_beside_the_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_load, "_SETTLE_S", 0.1)
    server = Server(num_refused=1)
    pictures = [new_picture(64) for _ in range(3)]
    async with serving(server) as target:
        flood = await put_flood(target, pictures, alone_s=0.3, stream_tokens=4, timeout_s=30)
    assert (flood["num_pictures"], flood["num_failed"], server.num_pictures) == (3, 1, 3)
    assert any("429" in failure for failure in flood["failures"])
    assert flood["alone"]["seconds"] >= 0.3
    for window in (flood["alone"], flood["beside"]):
        assert window["output_tokens_per_s"] > 0
        assert window["gap_p50_ms"] >= 1e3 * GAP_S * 0.5
    assert flood["ttft_p50_ms"] >= 1e3 * GAP_S


async def test_a_text_stream_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(ExceptionGroup) as errors:
        await put_flood(Target("t", "http://127.0.0.1:1", "m"), [], alone_s=0.1, stream_tokens=4, timeout_s=30)
    assert isinstance(errors.value.exceptions[0], OSError)


def test_an_answer_of_another_case_is_objected_to() -> None:
    def of(encoder_cache: str | None, source: str, cached: int) -> tuple[dict, dict]:
        report = {"encoder_cache": encoder_cache, "source": source, "num_tokens": 196}
        return report, {"prompt_tokens_details": {"cached_media_tokens": cached}}

    cases = {case.name: case for case in CASES}
    alone = cases["held by the encoder alone"]
    assert objection(alone, *of("hit", "encoder", 0)) is None
    assert "not hit" in (objection(alone, *of("miss", "encoder", 0)) or "")
    assert "engine, not encoder" in (objection(alone, *of("hit", "engine", 0)) or "")
    assert "192 of its 196" in (objection(alone, *of("hit", "encoder", 192)) or "")
    assert objection(cases[NEW], *of("miss", "encoder", 0)) is None
    assert objection(cases["the same again"], *of(None, "prefix_cache", 196)) is None
