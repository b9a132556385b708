"""Certificates that are replaced while streams are live: nothing is lost, and new connections have the new ones."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from support.builders.frontend import chat_request, frontend_bench, ids, joined
from support.certificates import EXPIRED, issue, write, write_all, write_role
from support.fakes.engine import says
from support.fakes.frontend import FakeFrontend, running
from support.fakes.frontend import says as frontend_says
from support.grpc_server import serving
from support.waiting import until
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security import watched
from triptych_common.rpc.security.roles import Role, current_peer
from triptych_common.rpc.security.tls import Tls
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.router import FrontendRouter

_TEXT = "It goes on and on"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "INTERVAL_S", 0.02)


async def test_a_frontend_moves_to_a_new_session_with_the_engine_and_loses_no_stream(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    async with frontend_bench(says(ids(_TEXT)), certs=certs) as bench:
        (old,) = bench.frontend._engines.ready
        before = [asyncio.create_task(_collect(bench.chat(chat_request()))) for _ in range(20)]
        await bench.engine.pause()
        await bench.engine.until(lambda: len(bench.engine.requests) == 20)
        write_role(certs / "frontend", Role.FRONTEND, number=2)
        await until(lambda: [*bench.frontend._engines.ready] not in ([], [old]))
        (new,) = bench.frontend._engines.ready
        assert old.is_connected, "its streams are live"
        after = [asyncio.create_task(_collect(bench.chat(chat_request()))) for _ in range(20)]
        await bench.engine.until(lambda: len(bench.engine.requests) == 40)
        assert len({sequence.session for sequence in bench.engine.live.values()}) == 2
        await bench.engine.resume()
        answers = await asyncio.gather(*before, *after)
        assert [joined(answer) for answer in answers] == [_TEXT] * 40
        await until(lambda: not old.is_connected)
        assert new.is_connected


async def _collect(call) -> list[generation_pb2.ChatStreamResponse]:  # type: ignore[no-untyped-def]
    return [response async for response in call]


async def test_a_gateway_moves_to_a_new_session_with_the_frontend_and_loses_no_call(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    gate = asyncio.Semaphore(0)
    frontend = FakeFrontend()
    frontend.script = frontend_says(*_TEXT, gate=gate)
    own = Tls(certs / "gateway", Role.GATEWAY)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running(frontend, tls=Tls(certs / "frontend", Role.FRONTEND)))
        pool = Pool("frontend", StaticResolver([address]), lambda address: FrontendConnection(address, own), tls=own)
        tasks = [asyncio.create_task(pool.run()), asyncio.create_task(own.watch())]
        router = FrontendRouter(pool, ServedModels(pool))
        await until(lambda: len(pool.ready) == 1)
        (old,) = pool.ready
        before = [asyncio.create_task(_text_of(router)) for _ in range(20)]
        await until(lambda: frontend.num_live == 20)
        gate.release()
        content = asyncio.create_task(old.upload(b"x" * 300_000, common_pb2.CallContext()))
        write_role(certs / "gateway", Role.GATEWAY, number=2)
        await until(lambda: len(pool.ready) == 1 and pool.ready != (old,))
        after = [asyncio.create_task(_text_of(router)) for _ in range(20)]
        await until(lambda: frontend.num_live == 40)
        assert (old.load, pool.ready[0].load) == (20, 20)
        for _ in range(40 * len(_TEXT) + 40):
            gate.release()
        assert await asyncio.gather(*before, *after) == [_TEXT] * 40
        assert await content == "upload 0"
        await until(lambda: not old.is_connected)
        await router.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _text_of(router: FrontendRouter) -> str:
    request = generation_pb2.CompleteRequest(model="fake/model", text="x")
    text = ""
    async for batch in router.generate([FrontendCall(request, "id")], common_pb2.CallContext()):
        for _, response in batch:
            text += "".join(delta.text for delta in response.choices)
    return text


class WhoAsks(engine_pb2_grpc.EngineServiceServicer):
    """Tells who called."""

    async def Describe(self, request: engine_pb2.EngineServiceDescribeRequest, context):  # type: ignore[no-untyped-def]
        peer = current_peer.get()
        name = peer.common_name if peer is not None else ""
        return engine_pb2.EngineServiceDescribeResponse(model=common_pb2.ModelInfo(name=name))


async def test_a_server_uses_a_new_certificate_for_new_connections_and_keeps_the_others(tmp_path: Path) -> None:
    own = Tls(write_role(tmp_path / "server", Role.ENGINE), Role.ENGINE)
    asker = Tls(write_role(tmp_path / "client", Role.FRONTEND), Role.FRONTEND)
    watch = asyncio.create_task(own.watch())

    def register(server: grpc.aio.Server) -> None:
        engine_pb2_grpc.add_EngineServiceServicer_to_server(WhoAsks(), server)

    async with serving(register, tls=own) as address, open_channel(address, tls=asker, role=Role.ENGINE) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        assert (await stub.Describe(engine_pb2.EngineServiceDescribeRequest())).model.name == "frontend-1"
        assert await _served_name(address, asker) == "engine-1"
        write_role(tmp_path / "server", Role.ENGINE, number=2)
        await asyncio.wait_for(own.changed(), 10)
        assert await _served_name(address, asker) == "engine-2"
        assert (await stub.Describe(engine_pb2.EngineServiceDescribeRequest())).model.name == "frontend-1"
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def _served_name(address: str, asker: Tls) -> str:
    """The common name in the certificate of a server."""
    host, port = address.split(":")
    context = asker.watched.current.client_context
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=Role.ENGINE.dns_name)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(next(value for part in subject for kind, value in part if kind == "commonName"))


async def test_a_secret_that_kubernetes_swaps_by_a_symlink_is_followed(tmp_path: Path) -> None:
    write_role(tmp_path / "..1", Role.ENGINE)
    write_role(tmp_path / "..2", Role.ENGINE, number=2)
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    own = Tls(tmp_path, Role.ENGINE)
    first = own.watched.current
    watch = asyncio.create_task(own.watch())
    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    await asyncio.wait_for(own.changed(), 10)
    assert own.watched.current.files.chain == (tmp_path / "..2" / "tls.crt").read_bytes() != first.files.chain
    watch.cancel()


@pytest.mark.parametrize("fault", ["no pair", "expired", "gone", "other role"])
async def test_files_that_are_no_good_change_nothing_and_are_logged_once(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = Tls(write_role(tmp_path, Role.ENGINE), Role.ENGINE)
    first, credentials = own.watched.current, own.channel_credentials
    watch = asyncio.create_task(own.watch())
    if fault == "no pair":
        (tmp_path / "tls.key").write_bytes(issue(Role.ENGINE.dns_name).private_key_pem.bytes())
    elif fault == "expired":
        write(tmp_path, issue(Role.ENGINE.dns_name, **EXPIRED))
    elif fault == "gone":
        (tmp_path / "tls.crt").unlink()
    else:
        write_role(tmp_path, Role.ENCODER)
    await until(lambda: any(record.levelno == logging.ERROR for record in caplog.records))
    await asyncio.sleep(0.2)
    assert own.watched.current is first
    assert own.channel_credentials is credentials
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the earlier certificate, valid until" in errors[0]
    assert str(tmp_path) in errors[0]
    assert not any(line in "".join(errors) for line in first.files.key.decode().splitlines())
    write_role(tmp_path, Role.ENGINE, number=2)
    await asyncio.wait_for(own.changed(), 10)
    watch.cancel()
