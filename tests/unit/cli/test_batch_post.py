"""Answers that a batch must not take for a gateway's, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from triptych_cli.batch.post import Client
from triptych_cli.batch.run import check_models
from triptych_cli.errors import CommandError


@asynccontextmanager
async def client(*answers: web.Response, notices: list[str] | None = None) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client of a server that gives these answers in turn, the last one for ever; and the methods of its requests."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        given = answers[min(len(seen), len(answers)) - 1]
        return web.Response(status=given.status, headers=given.headers, body=given.body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        notices = [] if notices is None else notices
        made = Client(str(server.make_url("")).rstrip("/"), None, check=lambda: None, report=notices.append)
        try:
            yield made, seen
        finally:
            await made.close()


def html(status: int = 200, **headers: str) -> web.Response:
    return web.Response(status=status, body=b"<html>", headers={"Content-Type": "text/html", **headers})


async def test_a_redirection_is_not_followed() -> None:
    """A POST that is redirected becomes a GET, whose answer is another one."""
    async with client(html(302, Location="https://elsewhere/v1")) as (made, seen):
        with pytest.raises(CommandError, match="redirects to https://elsewhere/v1; give that address as --url"):
            await made.post("/v1/completions", b"{}")
    assert seen == ["POST"]


async def test_a_key_that_is_refused_ends_the_run() -> None:
    """Otherwise each of the requests would be done, with this error."""
    async with client(web.json_response({"error": {}}, status=401)) as (made, _):
        with pytest.raises(CommandError, match=r"status 401: the key is missing or wrong; .*--api-key-file"):
            await made.post("/v1/completions", b"{}")


async def test_what_is_no_json_is_no_answer() -> None:
    async with client(html()) as (made, _):
        with pytest.raises(CommandError, match="/v1/completions is not answered with JSON"):
            await made.post("/v1/completions", b"{}")
    # The body of an error may be a proxy's.
    async with client(html(413)) as (made, _):
        answer = await made.post("/v1/completions", b"{}")
    assert (answer.status, answer.body) == (413, "<html>")


async def test_a_server_that_is_away_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_common.batch.retries._MAX_PAUSE_S", 0.001)
    notices: list[str] = []
    async with client(html(502), html(503), html(429), web.json_response({}), notices=notices) as (made, seen):
        first, second = await asyncio.gather(made.post("/v1/completions", b"{}"), made.get("/v1/models"))
    assert (first.status, second.status) == (200, 200)
    assert len(seen) == 5
    assert len(notices) == 1
    assert "does not answer (status 502); trying again" in notices[0] or "(status 503)" in notices[0]


async def test_a_get_that_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_cli.batch.post._GET_TIMEOUT_S", 0.05)
    monkeypatch.setattr("triptych_common.batch.retries._MAX_PAUSE_S", 0.001)
    monkeypatch.setattr("triptych_cli.batch.post._MAX_AWAY", 3)
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    made = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, check=lambda: None, report=lambda text: None)
    with pytest.raises(CommandError, match="does not answer: TimeoutError"):
        await made.get("/v1/models")
    await made.close()
    assert len(connections) == 3
    for writer in connections:
        writer.close()
    server.close()


@pytest.mark.parametrize("body", ["<html>", {"hello": 1}, {"data": 3}, {"data": [{"name": "m"}]}, [1]])
async def test_a_list_of_models_that_is_none(body: object) -> None:
    async with client(web.json_response(body)) as (made, _):
        answer = await made.get("/v1/models")
    with pytest.raises(CommandError, match="GET /v1/models is answered without a list of models"):
        check_models({}, answer)
