"""The loads of benchmarks/encoder.py against a server that answers at a known pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import encoder_load
import pytest
from aiohttp import web
from child import ChildError
from encoder_load import CASES, NEW, Subject, ask_in_all_ways, put_flood
from encoder_wire import Traffic
from load import Target
from pictures import new_picture

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
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": details}
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
    assert [sample["case"] for sample in samples] == [case.name for case in CASES if not case.is_after_forgetting]
    assert all(sample["ttft_ms"] >= 1e3 * GAP_S and "report" not in sample for sample in samples)


async def test_of_triptych_an_answer_of_another_case_ends_the_benchmark() -> None:
    traffic = iter([Traffic(0, 0), Traffic(10, 20), Traffic(10, 20), Traffic(10, 20)])
    async with serving(Server()) as target:
        # The first is what it claims to be, the second was no prefix.
        with pytest.raises(ChildError, match="the same again: the encoder says miss"):
            await ask_in_all_ways(Subject(target, lambda: None, lambda: next(traffic)), new_picture(64), timeout_s=30)
        sample = await encoder_load._sample(Subject(target, lambda: None, None), CASES[0], new_picture(64), timeout_s=30)
    assert (sample["case"], sample["report"]["encoder_cache"]) == (NEW, "miss")


async def test_text_streams_run_before_and_beside_the_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_load, "_SETTLE_S", 0.1)
    server = Server(num_refused=1)
    pictures = [new_picture(64) for _ in range(3)]
    async with serving(server) as target:
        flood = await put_flood(target, pictures, alone_s=0.3, stream_tokens=4, timeout_s=30)
    assert (flood.num_pictures, flood.num_failed, server.num_pictures) == (3, 1, 3)
    assert any("429" in failure for failure in flood.failures)
    assert flood.alone.seconds >= 0.3
    for window in (flood.alone, flood.beside):
        assert window.output_tokens_per_s > 0
        assert window.gap_p50_ms is not None
        assert window.gap_p50_ms >= 1e3 * GAP_S * 0.5
    assert flood.ttft_p50_ms is not None


async def test_a_text_stream_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(ExceptionGroup) as errors:
        await put_flood(Target("t", "http://127.0.0.1:1", "m"), [], alone_s=0.1, stream_tokens=4, timeout_s=30)
    assert isinstance(errors.value.exceptions[0], OSError)
