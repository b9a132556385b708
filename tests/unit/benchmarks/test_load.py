"""The client against servers that answer well, badly, and not at all."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from PIL import Image
from triptych_cli.load.client import put_load, send
from triptych_cli.load.requests import Target, chat, completion

from benchmarks.load.pictures import new_picture

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Target]:
    """A server with one route, for the time of the block."""
    app = web.Application()
    app.router.add_post("/v1/{route:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield Target("test", f"http://{host}:{port}", "model")
    finally:
        await runner.cleanup()


def answering(*events: dict | str) -> Handler:
    """A handler that sends these events to each request."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
        return response

    return handle


TEXT = {"choices": [{"index": 0, "text": " word"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
TWO = [completion("a", 2), completion("b", 2)]


async def test_every_prompt_is_sent_once_and_never_more_at_a_time_than_asked_for() -> None:
    live, most, prompts = 0, 0, []
    answer = answering(TEXT, TEXT, USAGE, "[DONE]")

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal live, most
        live += 1
        most = max(most, live)
        prompts.append((await request.json())["prompt"])
        try:
            return await answer(request)
        finally:
            live -= 1

    sent = [f"prompt {index}" for index in range(20)]
    async with serving(handle) as target:
        figures = await put_load(target, [completion(prompt, 2) for prompt in sent], concurrency=3, timeout_s=30)
    assert (figures.num_ok, figures.num_failed) == (20, 0)
    assert (figures.num_prompt_tokens, figures.num_output_tokens) == (100, 40)
    assert sorted(prompts) == sorted(sent)
    assert most <= 3


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([TEXT, TEXT, USAGE], r"ended without \[DONE\]"),
        ([TEXT, "[DONE]"], "usage of 2 output tokens expected"),
        ([TEXT, {**USAGE, "usage": {"prompt_tokens": 5, "completion_tokens": 1}}, "[DONE]"], "usage of 2 output tokens expected"),
        ([TEXT, {"error": {"message": "the engine went away"}}, "[DONE]"], "the engine went away"),
        ([USAGE, "[DONE]"], "no text"),
        (["{"], "JSON"),
    ],
)
async def test_an_answer_that_is_not_whole_has_failed(events: list[dict | str], reason: str) -> None:
    async with serving(answering(*events)) as target:
        figures = await put_load(target, TWO, concurrency=1, timeout_s=30)
    assert (figures.num_ok, figures.num_failed, figures.num_output_tokens) == (0, 2, 0)
    assert any(re.search(reason, failure) for failure in figures.failures)


async def test_a_server_that_says_nothing_ends_with_the_time() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hang) as target:
        figures = await put_load(target, [*TWO, completion("c", 2)], concurrency=2, timeout_s=0.2)
    assert figures.num_failed == 3


async def test_a_server_that_is_not_there_fails_each_request() -> None:
    figures = await put_load(Target("test", "http://127.0.0.1:1", "model"), TWO, concurrency=2, timeout_s=30)
    assert (figures.num_ok, figures.num_failed) == (0, 2)


async def test_a_chat_about_pictures_is_sent_as_openai_has_it_and_its_answer_read() -> None:
    bodies = []
    said = {"choices": [{"index": 0, "delta": {"content": "word"}}], "triptych": {"media": [{"source": "encoder"}]}}
    answer_all = answering(said, USAGE, "[DONE]")

    async def handle(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await answer_all(request)

    picture = new_picture(64)
    async with serving(handle) as target:
        answer = await send(target, chat("What?", 2, [picture], ("Hi.", "Hello.")))
    [body] = bodies
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    [image, text] = body["messages"][-1]["content"]
    assert base64.b64decode(image["image_url"]["url"].removeprefix("data:image/jpeg;base64,")) == picture
    assert (text, body["model"], body["max_tokens"]) == ({"type": "text", "text": "What?"}, "model", 2)
    assert (len(answer.pieces_s), answer.num_prompt_tokens, answer.num_output_tokens) == (1, 5, 2)
    assert answer.extension == said["triptych"]


def test_pictures_are_jpegs_of_the_size_and_never_the_same() -> None:
    pictures = [new_picture(64) for _ in range(2)]
    assert pictures[0] != pictures[1]
    image = Image.open(io.BytesIO(pictures[0]))
    assert (image.format, image.size) == ("JPEG", (64, 64))
