"""The health check of containers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.certificates import issue, write, write_all
from support.drivers.https_gateway import https_gateway
from support.fakes.frontend import FakeFrontend, running
from support.mock import mock_server
from triptych_cli.stack import probes


async def exit_code(target: str) -> int:
    return await asyncio.to_thread(probes.main, target)


async def test_a_gateway_is_probed_as_its_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write(tmp_path, issue("127.0.0.1"))
    async with running(FakeFrontend()) as address, https_gateway(directory, frontend_addresses=(address,)) as client:
        monkeypatch.setenv("TRIPTYCH_GATEWAY_HOST", "0.0.0.0")
        monkeypatch.setenv("TRIPTYCH_GATEWAY_PORT", str(client.base_url.port))
        monkeypatch.delenv("TRIPTYCH_GATEWAY_HTTPS_DIR", raising=False)
        assert await exit_code("gateway") == 1
        monkeypatch.setenv("TRIPTYCH_GATEWAY_HTTPS_DIR", str(directory))
        assert await exit_code("gateway") == 0
        assert await exit_code(f"https://127.0.0.1:{client.base_url.port}") == 0


async def test_a_service_is_probed_at_its_health_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mock_server(tls_dir=write_all(tmp_path) / "frontend", control_port=0, health_port=0) as mock:
        monkeypatch.setenv("TRIPTYCH_FRONTEND_HEALTH_PORT", str(mock.server.server.health_port))
        assert await exit_code("frontend") == 0
        await mock.server.server.health.set_ready(False)
        assert await exit_code("frontend") == 1
