"""Fetching media: a real server on loopback, allowed by setting; and the guard as it is by default."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych_frontend.media import fetch as fetch_module
from triptych_frontend.media.address_guard import ForbiddenAddressError, GuardedResolver, check_url, is_public
from triptych_frontend.media.fetch import MediaFetcher
from triptych_frontend.media.item import AUDIO, IMAGE, VIDEO
from triptych_frontend.settings import FrontendSettings
from yarl import URL

CONTENT = b"\x89PNG" + bytes(5000)


class Server:
    """Answers by path, and counts what it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.headers = request.headers
        kind = request.path.strip("/")
        if kind.startswith("redirect"):
            raise web.HTTPFound(request.query["to"])
        if kind in ("slow", "endless"):
            response = web.StreamResponse(headers={"content-type": "image/png"})
            await response.prepare(request)
            for _ in range(1000):
                await response.write(bytes(10 if kind == "slow" else 100_000))
                await asyncio.sleep(0.1 if kind == "slow" else 0)
            return response
        if kind == "status":
            return web.Response(status=403)
        headers = {"content-encoding": "gzip"} if kind == "gzip" else {}
        return web.Response(body=CONTENT, content_type=request.query.get("type", "image/png"), headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_get("/{tail:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def fetch(url: str, modality: int = IMAGE, **settings: Any) -> bytes:
    fetcher = MediaFetcher(FrontendSettings(**{"allow_private_media_addresses": True, "media_timeout_s": 5} | settings))
    try:
        return await fetcher.fetch(url, modality, "item")
    finally:
        await fetcher.close()


async def refusal(url: str, modality: int = IMAGE, **settings: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await fetch(url, modality, **settings)
    assert caught.value.field == "item.url"
    return caught.value.message


async def test_a_file_is_fetched_as_it_is(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert await fetch(f"{server.url}/a.png") == CONTENT
    assert "Cookie" not in server.headers
    assert server.headers["accept-encoding"] == "identity"


async def test_redirects_are_followed_up_to_a_limit(server: Server) -> None:
    assert await fetch(f"{server.url}/redirect?to=/a.png") == CONTENT
    loop = f"{server.url}/redirect?to=/redirect?to=/redirect"
    server.paths.clear()
    assert "redirects more than 0 times" in await refusal(loop, max_media_redirects=0)
    assert len(server.paths) == 1
    assert "no http: or https: address" in await refusal(f"{server.url}/redirect?to=file:///etc/passwd")


@pytest.mark.parametrize(
    ("path", "settings", "reason"),
    [
        ("slow", {"media_timeout_s": 0.5}, "not read within 0.5 s"),
        ("endless", {"max_media_bytes": 1_000_000}, "larger than 1000000 bytes"),
        ("a.png", {"max_media_bytes": 1000}, "larger than 1000 bytes"),
        ("status", {}, "answers 403"),
        ("gzip", {}, "comes compressed as gzip"),
        ("a?type=text/html", {}, "content type text/html"),
        ("a?type=audio/wav", {}, "content type audio/wav"),
    ],
)
async def test_what_crosses_a_limit_is_refused(server: Server, path: str, settings: dict[str, Any], reason: str) -> None:
    assert reason in await refusal(f"{server.url}/{path}", **settings)


async def test_content_types_by_modality(server: Server) -> None:
    assert await fetch(f"{server.url}/a?type=audio/mpeg", AUDIO)
    assert await fetch(f"{server.url}/a?type=video/mp4", AUDIO)
    assert await fetch(f"{server.url}/a?type=video/mp4", VIDEO)
    assert await fetch(f"{server.url}/a?type=application/octet-stream", VIDEO)


async def test_nobody_there_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "cannot be fetched" in await refusal(f"http://127.0.0.1:{port}/a.png")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::808:808", True),
        ("fec0::1", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("5f00::1", False),
        ("3fff::1", False),
        ("192.0.0.8", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) == public


@pytest.mark.parametrize(
    "host", ["example.org", "example.org.", "a_b.example", "1.example", "127.0.0.1.nip.example", "8.8.8.8", "0x7f.com"]
)
def test_hosts_that_anybody_may_name(host: str) -> None:
    check_url(URL(f"https://{host}:8443/a.png"))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.lists(st.sampled_from(["", "0", "0x", "0X"]), min_size=4, max_size=4))
def test_an_ipv4_address_has_one_spelling(number: int, num_parts: int, bases: list[str]) -> None:
    """Each spelling that inet_aton takes for an address is refused, except the usual one."""
    last_bits = 8 * (5 - num_parts)
    parts = [number >> (24 - 8 * index) & 0xFF for index in range(num_parts - 1)] + [number & (1 << last_bits) - 1]
    host = ".".join(f"{base}{part:{ {'': 'd', '0': 'o'}.get(base, 'x') }}" for base, part in zip(bases, parts, strict=False))
    assert socket.inet_aton(host) == number.to_bytes(4, "big")
    usual = socket.inet_ntoa(number.to_bytes(4, "big"))
    if host == usual and is_public(usual):
        check_url(URL(f"http://{host}/"))
    else:
        with pytest.raises(ForbiddenAddressError):
            check_url(URL(f"http://{host}/"))


async def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = GuardedResolver()

    async def resolve(*_: Any) -> list[dict[str, Any]]:
        return [{"host": "8.8.8.8"}, {"host": "10.0.0.1"}]

    monkeypatch.setattr(resolver._inner, "resolve", resolve)
    with pytest.raises(ForbiddenAddressError, match=r"name.example \(10.0.0.1\)"):
        await resolver.resolve("name.example", 80)
    await resolver.close()


async def test_files_below_the_allowed_directory(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret.png"
    (root / "sub dir").mkdir(parents=True)
    outside.write_bytes(b"secret")
    (root / "sub dir" / "a.png").write_bytes(CONTENT)
    (root / "link.png").symlink_to(outside)
    (root / "inner.png").symlink_to(root / "sub dir" / "a.png")
    assert await fetch(f"file://{root}/sub%20dir/a.png", allowed_media_root=root) == CONTENT
    assert await fetch(f"file://{root}/inner.png", allowed_media_root=root) == CONTENT
    for path in ("link.png", "../secret.png", "%2e%2e/secret.png", "absent.png", "sub%20dir", "a%00b", ""):
        assert "names no file below" in await refusal(f"file://{root}/{path}", allowed_media_root=root)
    assert "larger than" in await refusal(f"file://{root}/inner.png", allowed_media_root=root, max_media_bytes=10)
    assert "does not allow" in await refusal(f"file://{root}/inner.png")
    assert "of this machine" in await refusal(f"file://host{root}/inner.png", allowed_media_root=root)


async def test_data_addresses() -> None:
    assert await fetch("data:image/png;base64,aGVsbG8=") == b"hello"
    assert await fetch("data:,a%20b") == b"a b"
    assert "not base64" in await refusal("data:image/png;base64,?")
    assert "no data: address" in await refusal("data:image/png;base64")
    assert "at most 3 bytes" in await refusal("data:image/png;base64,aGVsbG8=", max_media_bytes=3)
    for url in ("ftp://x/a.png", "a.png", "//x/a.png", "http://", "http:///a.png"):
        assert await refusal(url)


async def test_names_that_nobody_answers_for_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def never(*args: Any, **options: Any) -> Any:
        released.wait(10)
        raise socket.gaierror("nobody answers")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    fetcher = MediaFetcher(FrontendSettings(media_timeout_s=0.3))
    lookups = [asyncio.create_task(fetcher.fetch(f"http://{number}.example/a.png", IMAGE, "item")) for number in range(40)]
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(fetcher.fetch("data:image/png;base64,aGVsbG8=", IMAGE, "item"), 0.2) == b"hello"
    refused = await asyncio.gather(*lookups, return_exceptions=True)
    released.set()
    await fetcher.close()
    assert all(isinstance(error, InvalidRequestError) for error in refused)


async def test_a_tenants_slow_fetches_leave_connections_for_anothers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_MAX_CONNECTIONS", 4)
    fetcher = MediaFetcher(FrontendSettings(allow_private_media_addresses=True, media_timeout_s=20))
    slow = [asyncio.create_task(fetcher.fetch(f"{server.url}/slow", IMAGE, "item", tenant="flood")) for _ in range(8)]
    await until(lambda: server.paths == ["/slow"] * 2)
    async with asyncio.timeout(5):
        assert await fetcher.fetch(f"{server.url}/a.png", IMAGE, "item", tenant="quiet") == CONTENT
    assert server.paths == ["/slow"] * 2 + ["/a.png"]
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await fetcher.close()
    assert fetcher._connections.used == 0
