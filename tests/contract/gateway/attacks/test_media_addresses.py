"""Clients that name media addresses of this network get a 400 with the rule, and nothing here is connected to."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.drivers.media_frontend import PICTURE, media_bench
from support.fakes.gateway import client_of, until_connected
from triptych_frontend.media import address_guard
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

#: Loopback to the kernel, and to the guard of these tests an address on the internet.
OUTSIDE = "127.0.0.2"
INSIDE = "127.0.0.1"
RULE = "private, loopback, link-local or otherwise special address (allow_private_media_addresses)"
NUMBER = "which is a number; an IPv4 address must be four decimal numbers"


class WebServer:
    """The same files on two addresses, outside and inside."""

    def __init__(self) -> None:
        self.port = 0
        #: Address that each connection came to, and path of each request.
        self.connections: list[str] = []
        self.paths: list[str] = []
        self.location = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer.get_extra_info("sockname")[0])
        while line := await reader.readline():
            path = line.split()[1].decode()
            self.paths.append(path)
            while (await reader.readline()).strip():
                pass
            if path == "/redirect":
                writer.write(f"HTTP/1.1 302 Found\r\nlocation: {self.location}\r\ncontent-length: 0\r\n\r\n".encode())
            else:
                head = f"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: {len(PICTURE)}\r\n\r\n"
                writer.write(head.encode() + PICTURE)
        writer.close()


@pytest.fixture
async def web(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebServer]:
    is_public = address_guard.is_public
    monkeypatch.setattr(address_guard, "is_public", lambda address: address == OUTSIDE or is_public(address))
    web = WebServer()
    async with await asyncio.start_server(web.answer, OUTSIDE, 0) as outside:
        web.port = outside.sockets[0].getsockname()[1]
        async with await asyncio.start_server(web.answer, INSIDE, web.port):
            yield web


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with media_bench() as bench:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.bench.frontend.server.port}",)))
        async with app.router.lifespan_context(app):
            await until_connected(app)
            async with client_of(app) as client:
                yield client


async def model_of(client: httpx.AsyncClient) -> str:
    return str((await client.get("/v1/models")).json()["data"][0]["id"])


async def chat(client: httpx.AsyncClient, url: str) -> httpx.Response:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": await model_of(client), "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    return await client.post("/v1/chat/completions", json=body)


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Each look-up of a name gives the next address, and the last one for ever. Returns the names that were looked up."""
    names: list[str] = []
    lookup = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return lookup(host, port, *args, **options)
        names.append(host)
        address = addresses[min(len(names), len(addresses)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


def refusal(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


async def test_a_picture_from_outside_is_fetched(web: WebServer, client: httpx.AsyncClient) -> None:
    assert (await chat(client, f"http://{OUTSIDE}:{web.port}/a.png")).status_code == 200
    assert web.connections == [OUTSIDE]


NUMBERS = [
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "0x7f.1",
    "0x7f.0.0.0x1",
    "0",
    "127.0.0.1.",
    "2130706433.",
    "4294967297",
    "①②⑦.1",
    "8.8.8.8.",
]


async def test_hosts_that_are_numbers(web: WebServer, client: httpx.AsyncClient) -> None:
    for host in NUMBERS:
        assert NUMBER in refusal(await chat(client, f"http://{host}:{web.port}/a.png")), host
    assert web.connections == []


PRIVATE = [
    INSIDE,
    "localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:ffff:7f00:0001]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::127.0.0.1]",
    "[2002:7f00:1::]",
    "１２７.0.0.1",
    "127。0。0。1",
    "169.254.169.254",
    "10.0.0.1",
]


async def test_private_addresses(web: WebServer, client: httpx.AsyncClient) -> None:
    for host in PRIVATE:
        assert RULE in refusal(await chat(client, f"http://{host}:{web.port}/a.png")), host
    assert web.connections == []


OTHERS = [
    ("user:password@127.0.0.2", "has a user name or a password"),
    ("user@2130706433", "has a user name or a password"),
    ("%31%32%37.1", "neither a zone nor a percent sign"),
    ("127%2e0%2e0%2e1", "neither a zone nor a percent sign"),
    ("[::1%25lo]", "neither a zone nor a percent sign"),
    ("[fe80::1%eth0]", "neither a zone nor a percent sign"),
    ("127.0.0.1 .example", "neither a name nor an IP address"),
]


async def test_other_hosts_that_programs_disagree_on(web: WebServer, client: httpx.AsyncClient) -> None:
    for host, rule in OTHERS:
        message = refusal(await chat(client, f"http://{host}:{web.port}/a.png"))
        assert rule in message
        assert "password@" not in message
    assert web.connections == []


REDIRECTS = [(INSIDE, RULE), ("2130706433", NUMBER), ("user@127.1", "user name"), ("inside.example", RULE)]


async def test_redirects_inside(web: WebServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, INSIDE)
    for host, rule in REDIRECTS:
        web.location = f"http://{host}:{web.port}/secret"
        assert rule in refusal(await chat(client, f"http://{OUTSIDE}:{web.port}/redirect"))
    assert set(web.paths) == {"/redirect"}


async def test_a_name_that_is_private_on_the_second_look_up(
    web: WebServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = resolving(monkeypatch, OUTSIDE, INSIDE)
    url = f"http://rebinding.example:{web.port}/a.png"
    assert (await chat(client, url)).status_code == 200
    assert (names, web.connections) == (["rebinding.example"], [OUTSIDE]), "the address that was checked is connected to"
    # The first connection is kept and may be used again. Another port needs another one.
    web.connections.clear()
    assert RULE in refusal(await chat(client, f"http://rebinding.example:{web.port + 1}/a.png"))
    assert web.connections == []


async def test_a_name_that_is_private_at_its_redirect(
    web: WebServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, OUTSIDE, INSIDE)
    web.location = "http://other.example:" + f"{web.port}/secret"
    assert RULE in refusal(await chat(client, f"http://rebinding.example:{web.port}/redirect"))
    assert web.paths == ["/redirect"]


async def test_a_connection_that_ended_elsewhere(
    web: WebServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was checked before: nothing is sent to a peer inside."""
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def elsewhere(sock: socket.socket, address: Any) -> None:
        await connect(sock, (INSIDE, address[1]) if address[0] == OUTSIDE else address)

    monkeypatch.setattr(loop, "sock_connect", elsewhere)
    message = refusal(await chat(client, f"http://{OUTSIDE}:{web.port}/a.png"))
    assert f"leads to {OUTSIDE} ({INSIDE}), which is a {RULE}" in message
    assert web.connections == [INSIDE]
    assert web.paths == []


def picture_in_responses(model: str, url: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_image", "image_url": url}]
    return "/v1/responses", {"model": model, "input": [{"role": "user", "content": content}]}


def picture_in_messages(model: str, url: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "image", "source": {"type": "url", "url": url}}]
    return "/v1/messages", {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": content}]}


def picture_in_tool_result(model: str, url: str) -> tuple[str, dict[str, Any]]:
    result = [{"type": "image", "source": {"type": "url", "url": url}}]
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": result}]},
    ]
    return "/v1/messages", {"model": model, "max_tokens": 4, "messages": messages}


async def test_every_route_that_takes_an_address(web: WebServer, client: httpx.AsyncClient) -> None:
    ways = (picture_in_responses, picture_in_messages, picture_in_tool_result)
    for way, (host, rule) in itertools.product(ways, (("127.1", NUMBER), (INSIDE, RULE))):
        path, body = way(await model_of(client), f"http://{host}:{web.port}/a.png")
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert rule in answer.text
    assert web.connections == []
