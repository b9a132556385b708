"""Headers have a limit, whether they end or not, and trailers have it too."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client, gateway_server
from triptych_gateway.connections.http_protocol import MAX_HEADER_BYTES

BODY = json.dumps({"model": MODEL.name, "prompt": "Once"}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/live"])
async def test_headers_that_are_too_large_are_refused_in_the_shape_of_the_route(path: str) -> None:
    async with gateway_client(api_key="secret") as client:
        refused = await client.get(path, headers={"x-large": "x" * MAX_HEADER_BYTES})
        fits = await client.get("/live", headers={"x-large": "x" * (MAX_HEADER_BYTES - 1000)})
    assert refused.status_code == 431
    assert refused.headers["x-request-id"]
    assert f"larger than {MAX_HEADER_BYTES} bytes" in refused.json()["error"]["message"]
    assert ("code" in refused.json()["error"]) == (path != "/v1/messages")
    assert fits.status_code == 200


async def flood(host: str, port: int, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send a start, then pieces without an end. Returns how many bytes were sent, and the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    sent = 0
    try:
        writer.write(start)
        async with asyncio.timeout(30):
            while sent < 64 * MAX_HEADER_BYTES and not reader.at_eof():
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
    except ConnectionError:
        pass
    try:
        answer = await reader.read()
    except ConnectionError:
        answer = b""
    writer.close()
    return sent, answer


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD, b"x-more: " + b"y" * 4000 + b"\r\n"),
        (HEAD + b"x-more: ", b"y" * 4000),
        (b"GET /" + b"a" * 100, b"a" * 4000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY), b"x-trailer: " + b"y" * 4000 + b"\r\n"),
    ],
    ids=["headers", "a header", "the path", "trailers"],
)
async def test_what_does_not_end_is_not_kept(start: bytes, piece: bytes) -> None:
    async with gateway_server(FakeFrontend()) as (host, port):
        sent, answer = await flood(host, port, start, piece)
    # Buffers of the system take some more.
    assert sent < 32 * MAX_HEADER_BYTES, "all was taken"
    assert b"431" in answer or b"400" in answer or answer == b"", answer[:200]


async def post(host: str, port: int, pieces: list[bytes]) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(host, port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.002)
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    return {"status": int(head.split(b" ")[1]), **answer}


async def test_large_bodies_in_any_framing_are_no_headers() -> None:
    filler = BODY[:-1] + b" " * (4 * MAX_HEADER_BYTES) + b"}"
    chunks = [filler[start : start + 3000] for start in range(0, len(filler), 3000)]
    chunked = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    async with gateway_server(FakeFrontend()) as (host, port):
        plain = await post(host, port, [HEAD + b"content-length: %d\r\n\r\n" % len(filler), *chunks])
        framed = await post(host, port, [HEAD + b"transfer-encoding: chunked\r\n\r\n", *chunked, b"0\r\nx-trailer: 1\r\n\r\n"])
        # A head that comes byte by byte.
        slow = [bytes([one]) for one in HEAD + b"content-length: %d\r\n\r\n" % len(BODY)]
        dripped = await post(host, port, [*slow, BODY])
    assert [answer["status"] for answer in (plain, framed, dripped)] == [200, 200, 200]
