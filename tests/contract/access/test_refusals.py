"""What a connection says of a service that does not let it in, so that an operator knows what to do."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.builders.frontend import hello
from support.builders.tokenizer import small_model_dir
from support.certificates import issue, tls, write
from support.fakes.engine import FakeEngine
from support.grpc_server import serving
from support.waiting import until
from triptych_common.cluster import connection as connection_module
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver
from triptych_common.model.store import model_info
from triptych_common.rpc.security.refusal import why_refused
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_frontend.engines.connection import EngineConnection


@asynccontextmanager
async def tried(server: Tls | None, client: Tls | None) -> AsyncIterator[tuple[str, Tls | None]]:
    """Why a frontend's connection to an engine takes no work, after its first attempt."""
    path = small_model_dir()
    model = model_info(path, path.name)
    engine = FakeEngine(model, hello())
    async with serving(engine.register, tls=server) as address:
        pool = Pool("engine", StaticResolver([address]), lambda address: EngineConnection(address, model, client), tls=client)
        task = asyncio.create_task(pool.run())
        try:
            await pool.until_tried(20)
            assert not pool.ready
            assert pool.connections[0].why_away in pool.none_left().message
            yield pool.connections[0].why_away, server
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_certificate_of_another_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Each knows both authorities, so that only the engine has a reason to refuse.
    client = tls(tmp_path, Role.FRONTEND, ca="other")
    client = _that_trusts_everybody(client)
    async with tried(tls(tmp_path, Role.ENGINE), client) as (why, _):
        assert why == "it refused this service's certificate; its log says why, e.g. that its ca.crt has another authority"
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        await asyncio.sleep(1)  # further attempts say nothing
        assert len(errors) == 1
        assert "is away: it refused this service's certificate" in errors[0]


def _that_trusts_everybody(client: Tls) -> Tls:
    directory = client.watched.directory
    own = tls(directory.parent, Role.ENGINE).watched.current.files.authorities
    with (directory / "ca.crt").open("ab") as file:
        file.write(own)
    return Tls(directory, Role.FRONTEND)


async def test_a_service_of_another_authority(tmp_path: Path) -> None:
    async with tried(tls(tmp_path, Role.ENGINE, ca="other"), tls(tmp_path, Role.FRONTEND)) as (why, _):
        assert why == "its certificate is refused: unable to get local issuer certificate"


async def test_a_service_of_another_role(tmp_path: Path) -> None:
    async with tried(tls(tmp_path, Role.ENCODER), tls(tmp_path, Role.FRONTEND)) as (why, _):
        assert why.startswith("its certificate is refused: Hostname mismatch")
        assert "engine.triptych.internal" in why


async def test_a_certificate_of_another_role(tmp_path: Path) -> None:
    async with tried(tls(tmp_path, Role.ENGINE), tls(tmp_path, Role.ENCODER)) as (why, server):
        assert "role must be one of frontend to call triptych.v1.EngineService/Session; it is encoder" in why
        assert server is not None
        assert server.num_refused >= 1


async def test_a_certificate_that_has_expired_since(tmp_path: Path) -> None:
    end_s = int(time.time()) + 2
    end = datetime.datetime.fromtimestamp(end_s, datetime.UTC)
    client = Tls(write(tmp_path / "short", issue(Role.FRONTEND.dns_name, not_after=end)), Role.FRONTEND)
    await until(lambda: time.time() > end_s + 1)
    async with tried(tls(tmp_path, Role.ENGINE), client) as (why, _):
        assert why == f"it refused this service's certificate, which has expired: {end:%Y-%m-%d %H:%M} UTC"


async def test_a_service_with_tls_and_a_caller_without(tmp_path: Path) -> None:
    async with tried(tls(tmp_path, Role.ENGINE), None) as (why, _):
        assert "it closed the connection; it may want TLS (tls_dir)" in why


async def test_a_service_without_tls_and_a_caller_with(tmp_path: Path) -> None:
    async with tried(None, tls(tmp_path, Role.FRONTEND)) as (why, _):
        assert why == "it speaks no TLS, and this service does (tls_dir)"


async def test_a_service_that_lets_it_in_or_is_not_there_is_not_blamed(tmp_path: Path) -> None:
    client = tls(tmp_path, Role.FRONTEND)
    async with serving(lambda server: None, tls=tls(tmp_path, Role.ENGINE)) as address:
        assert await why_refused(address, Role.ENGINE, client) == ""
    assert await why_refused(address, Role.ENGINE, client) == ""


async def test_the_work_of_a_lost_connection_does_not_wait_for_another_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(*_: object) -> str:
        return "asked"

    monkeypatch.setattr(connection_module, "why_refused", ask)
    path = small_model_dir()
    model = model_info(path, path.name)
    client = tls(tmp_path, Role.FRONTEND)
    async with serving(FakeEngine(model, hello()).register, tls=tls(tmp_path, Role.ENGINE)) as address:
        pool = Pool("engine", StaticResolver([address]), lambda address: EngineConnection(address, model, client), tls=client)
        task = asyncio.create_task(pool.run())
        await until(lambda: bool(pool.ready))
    await until(lambda: pool.connections[0].why_away == "asked")
    (loss,) = [record.getMessage() for record in caplog.records if "went away" in record.getMessage()]
    assert "asked" not in loss
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
