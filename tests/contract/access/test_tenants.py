"""Whose data a caller of the frontend may see: a gateway speaks for tenants, any other certificate is a tenant of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from support.builders.frontend import Bench, chat_request, frontend_bench, streamed
from support.certificates import write_all
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

_CLAIM = common_pb2.CallContext(tenant="somebody-else", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


async def _session_tenant(bench: Bench, channel: grpc.aio.Channel) -> common_pb2.CallContext:
    """The context that the engine gets for a call on a session that claims a tenant."""
    session = generation_pb2_grpc.GenerationServiceStub(channel).Session()
    await session.read()
    call = generation_pb2.GenerationCall(number=1, request_id="r", chat=chat_request(), context=_CLAIM)
    await session.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
    while not any(response.HasField("usage") for response in (await session.read()).responses):
        pass
    session.cancel()
    return bench.engine.requests[-1].context


@pytest.mark.parametrize(
    ("role", "tenant"),
    [(Role.GATEWAY, "somebody-else"), (Role.CLIENT, "cert:client-1"), (Role.OPERATOR, "cert:operator-1")],
)
async def test_only_a_gateway_speaks_for_a_tenant_on_a_session(tmp_path: Path, role: Role, tenant: str) -> None:
    certs = write_all(tmp_path)
    async with frontend_bench(certs=certs) as bench:
        address = f"127.0.0.1:{bench.frontend.server.port}"
        async with open_channel(address, tls=Tls(certs / role, role)) as channel:
            context = await _session_tenant(bench, channel)
    assert context.tenant == tenant
    assert context.traceparent == _CLAIM.traceparent
    assert bench.engine.requests[-1].cache_salt == f"{len(tenant)}:{tenant}"


async def test_without_tls_the_claim_is_believed() -> None:
    async with frontend_bench() as bench:
        assert (await _session_tenant(bench, bench.channel)).tenant == "somebody-else"


async def test_a_clients_calls_have_its_own_tenant(tmp_path: Path) -> None:
    async with frontend_bench(certs=write_all(tmp_path)) as bench:
        await bench.generation.Chat(chat_request())
        assert [response async for response in bench.generation.ChatStream(streamed(chat_request()))]
        assert [request.context.tenant for request in bench.engine.requests] == ["cert:client-1"] * 2
        assert [request.cache_salt for request in bench.engine.requests] == ["13:cert:client-1"] * 2


async def test_without_tls_a_clients_calls_are_anonymous() -> None:
    async with frontend_bench() as bench:
        await bench.generation.Chat(chat_request())
        assert [(request.context.tenant, request.cache_salt) for request in bench.engine.requests] == [("", "")]


async def test_a_file_belongs_to_the_client_that_sent_it(tmp_path: Path) -> None:
    def parts() -> Any:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=1, context=_CLAIM))
        yield generation_pb2.UploadMediaRequest(data=b"x")

    certs = write_all(tmp_path)
    async with frontend_bench(certs=certs) as bench:
        await bench.generation.UploadMedia(parts())
        address = f"127.0.0.1:{bench.frontend.server.port}"
        async with open_channel(address, tls=Tls(certs / "gateway", Role.GATEWAY)) as channel:
            await generation_pb2_grpc.GenerationServiceStub(channel).UploadMedia(parts())
        tenants = [upload.tenant for upload in bench.frontend._media.uploads._uploads.values()]
    assert tenants == ["cert:client-1", "somebody-else"]
