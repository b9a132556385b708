"""HTTPS at the gateway, and mutual TLS to its frontends."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import httpx
import pytest
from support.certificates import EXPIRED, issue, write, write_all
from support.drivers.https_gateway import https_gateway, trusting
from support.fakes.frontend import MODEL, FakeFrontend, running
from triptych.errors import StartupError
from triptych_common.rpc.security import watched
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_gateway.main import serve
from triptych_gateway.settings import GatewaySettings


async def test_chats_over_https_and_mutual_tls(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    https = write(tmp_path / "https", issue("127.0.0.1", "localhost"))
    async with running(FakeFrontend(), tls=Tls(certs / "frontend", Role.FRONTEND)) as address:
        async with https_gateway(https, frontend_addresses=(address,), tls_dir=certs / "gateway") as client:
            chat = {"model": MODEL.name, "messages": [{"role": "user", "content": "Hi"}]}
            answer = await client.post("/v1/chat/completions", json=chat)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"
            async with client.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as response:
                lines = [line async for line in response.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            texts = [json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
            assert "".join(texts) == "Hello"
            metrics = (await client.get("/metrics")).text
            assert "triptych_gateway_certificate_expiry_timestamp_seconds 3.2" in metrics
            assert "triptych_gateway_https_certificate_expiry_timestamp_seconds 3.2" in metrics
        # Plain text is refused.
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(trust_env=False) as plain:
                await plain.get(str(client.base_url.copy_with(scheme="http")))


async def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "INTERVAL_S", 0.02)
    https = write(tmp_path / "https", issue("127.0.0.1", common_name="first"))
    async with running(FakeFrontend()) as address, https_gateway(https, frontend_addresses=(address,)) as client:
        assert (await client.get("/health")).status_code == 200
        host, port = client.base_url.host, client.base_url.port
        assert await served(host, port) == "first"
        assert await served(host, port, "localhost") == "first", "also to a client that names another server"
        write(https, issue("127.0.0.1", common_name="second"))
        async with asyncio.timeout(10):
            while await served(host, port) != "second":  # noqa: ASYNC110 - the gateway has no event for it
                await asyncio.sleep(0.02)
        assert (await client.get("/health")).status_code == 200, "on the connection from before"


async def test_a_client_that_insists_on_its_protocol_gets_it(tmp_path: Path) -> None:
    https = write(tmp_path / "https", issue("127.0.0.1"))
    async with running(FakeFrontend()) as address, https_gateway(https, frontend_addresses=(address,)) as client:
        context = trusting()
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


async def served(host: str, port: int | None, server_name: str = "") -> str:
    """The common name in the server's certificate."""
    context = trusting()
    context.check_hostname = False
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=server_name)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    await writer.wait_closed()
    return str(next(value for part in subject for kind, value in part if kind == "commonName"))


async def test_tls_before_1_2_is_refused(tmp_path: Path) -> None:
    https = write(tmp_path / "https", issue("127.0.0.1"))
    async with running(FakeFrontend()) as address, https_gateway(https, frontend_addresses=(address,)) as client:
        host, port = client.base_url.host, client.base_url.port
        context = trusting()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, port, ssl=context)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        assert writer.get_extra_info("cipher")[1] == "TLSv1.2"
        writer.close()
        await writer.wait_closed()


async def test_a_gateway_does_not_start_with_an_expired_certificate(tmp_path: Path) -> None:
    https = write(tmp_path / "https", issue("127.0.0.1", **EXPIRED))
    with pytest.raises(StartupError, match=r"https/tls\.crt: peers would refuse this certificate: certificate has expired"):
        await serve(GatewaySettings(port=0, https_dir=https), asyncio.Event())


async def test_a_gateway_does_not_start_with_the_certificate_of_another_role(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    with pytest.raises(StartupError, match=r"the gateway needs a certificate for the DNS name gateway\.triptych\.internal"):
        await serve(GatewaySettings(port=0, tls_dir=certs / "engine"), asyncio.Event())


@pytest.mark.parametrize(
    ("trusted", "told"),
    [(None, "127.0.0.1"), ("127.0.0.1", "203.0.113.9"), ("127.0.0.1,203.0.113.0/24", "1.2.3.4")],
    ids=["nobody by default", "a proxy", "two proxies"],
)
async def test_whose_word_the_audit_log_takes_for_the_client(
    trusted: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted is None:
        monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    else:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    https, log = write(tmp_path / "https", issue("127.0.0.1")), tmp_path / "audit.jsonl"
    settings = {"audit_log": str(log)}
    async with running(FakeFrontend()) as address, https_gateway(https, frontend_addresses=(address,), **settings) as client:
        await client.get("/v1/models", headers={"x-forwarded-for": "1.2.3.4, 203.0.113.9"})
    assert [json.loads(line)["client"] for line in log.read_text().splitlines()] == [told]
