"""Each metric of certificates that docs/metrics.md names moves as it says, and there are no others."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import support.builders.media_files as media
from support import media_stack
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.frontend import frontend_bench
from support.certificates import issue, write, write_all
from support.drivers.encoder import an_encoder
from support.drivers.https_gateway import https_gateway, trusting
from support.fakes.frontend import FakeFrontend, running
from support.metrics import (
    Case,
    Run,
    Snapshot,
    check,
    documented,
    documented_with_certificates,
    gauges,
    parsed,
    run_once,
    scraped,
    several,
)
from triptych.v1 import encoder_pb2, encoder_pb2_grpc, engine_pb2, engine_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security import watched
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

#: When the renewed certificates expire, as Unix time.
RENEWED_S = 2_000_000_000
#: A role that may not make the call, and the call.
STRANGERS: dict[Role, tuple[Role, Callable[[grpc.aio.Channel], Awaitable[Any]]]] = {
    Role.FRONTEND: (
        Role.ENGINE,
        lambda channel: generation_pb2_grpc.GenerationServiceStub(channel).ListModels(generation_pb2.ListModelsRequest()),
    ),
    Role.ENCODER: (
        Role.GATEWAY,
        lambda channel: encoder_pb2_grpc.EncoderServiceStub(channel).Describe(encoder_pb2.DescribeRequest()),
    ),
    Role.ENGINE: (
        Role.GATEWAY,
        lambda channel: engine_pb2_grpc.EngineServiceStub(channel).Describe(engine_pb2.EngineServiceDescribeRequest()),
    ),
}


@contextlib.asynccontextmanager
async def a_frontend(certs: Path) -> AsyncIterator[tuple[int, int | None]]:
    """Its port, and that of its metrics."""
    async with frontend_bench(certs=certs, metrics_port=0) as bench:
        yield bench.frontend.server.port, bench.frontend.server.metrics_port


@contextlib.asynccontextmanager
async def an_encoder_service(certs: Path) -> AsyncIterator[tuple[int, int | None]]:
    """Its port, and that of its metrics."""
    caller = Tls(certs / Role.FRONTEND, Role.FRONTEND)
    async with an_encoder(media.checkpoint("llava_siglip"), caller, tls_dir=certs / Role.ENCODER, metrics_port=0) as encoder:
        yield encoder.service.port, encoder.service.metrics_port


@contextlib.asynccontextmanager
async def an_engine(certs: Path) -> AsyncIterator[tuple[int, int | None]]:
    """Its port, and that of its metrics."""
    path = save_random_model(certs.parent / "model", a_tiny_llama_config())
    async with media_stack.an_engine(path, tls_dir=certs / Role.ENGINE, metrics_port=0) as engine:
        yield engine._server.port, engine.metrics_port


STARTS = {Role.FRONTEND: a_frontend, Role.ENCODER: an_encoder_service, Role.ENGINE: an_engine}


async def two_strangers_and_a_renewal(service: Role) -> Run:
    """A certificate of a wrong role, and a client without one, which never makes a call. Then the service's own is renewed."""
    role, call = STRANGERS[service]
    with tempfile.TemporaryDirectory() as folder, quick_renewal():
        certs = write_all(Path(folder) / "certs")
        async with STARTS[service](certs) as (port, metrics_port):
            before = await scraped(metrics_port)
            async with open_channel(f"127.0.0.1:{port}", tls=Tls(certs / role, role), role=service) as channel:
                for _ in range(2):
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call(channel)
            await connect_without_certificate(port, service)
            renew(certs / service, service.dns_name)
            after = await until_renewed(lambda: scraped(metrics_port), [f"triptych_{service}_certificate"])
    return Run([before, after])


async def connect_without_certificate(port: int, service: Role) -> None:
    context = trusting()
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=service.dns_name)
    writer.close()
    # In TLS 1.3 the server refuses after the client has finished.
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def frontend() -> Run:
    return await two_strangers_and_a_renewal(Role.FRONTEND)


async def encoder() -> Run:
    return await two_strangers_and_a_renewal(Role.ENCODER)


async def engine() -> Run:
    return await two_strangers_and_a_renewal(Role.ENGINE)


async def gateway() -> Run:
    """Both of its certificates are renewed."""
    with tempfile.TemporaryDirectory() as folder, quick_renewal():
        certs = write_all(Path(folder) / "certs")
        https = write(certs / "https", issue("127.0.0.1"))
        async with (
            running(FakeFrontend(), tls=Tls(certs / Role.FRONTEND, Role.FRONTEND)) as address,
            https_gateway(https, frontend_addresses=(address,), tls_dir=certs / Role.GATEWAY) as client,
        ):
            before = await seen(client)
            renew(certs / Role.GATEWAY, Role.GATEWAY.dns_name)
            renew(https, "127.0.0.1")
            names = ["triptych_gateway_certificate", "triptych_gateway_https_certificate"]
            return Run([before, await until_renewed(lambda: seen(client), names)])


async def seen(client: httpx.AsyncClient) -> Snapshot:
    return parsed((await client.get("/metrics")).text)


@contextlib.contextmanager
def quick_renewal() -> Iterator[None]:
    """Services that start meanwhile look at their files often."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(watched, "INTERVAL_S", 0.02)
        yield


def renew(directory: Path, name: str) -> None:
    """Replace the certificate in a directory by one that expires at RENEWED_S."""
    write(directory, issue(name, not_after=datetime.datetime.fromtimestamp(RENEWED_S, datetime.UTC)))


async def until_renewed(scrape: Callable[[], Awaitable[Snapshot]], names: list[str]) -> Snapshot:
    async with asyncio.timeout(20):
        while True:
            last = await scrape()
            if all(last.value(f"{name}_expiry_timestamp_seconds", {}) == RENEWED_S for name in names):
                return last


def much_later(value: float) -> bool:
    """When the certificates before expire."""
    return value > 2 * RENEWED_S


SCENARIOS = {"gateway": gateway, "frontend": frontend, "encoder": encoder, "engine": engine}
EXPIRY = (much_later, RENEWED_S)
CASES = [
    *gauges(gateway, {"triptych_gateway_https_certificate_expiry_timestamp_seconds": EXPIRY}),
    *(
        case
        for service, scenario in SCENARIOS.items()
        for case in gauges(scenario, {f"triptych_{service}_certificate_expiry_timestamp_seconds": EXPIRY})
    ),
    *(
        case
        for service in STARTS
        for case in several(
            SCENARIOS[service],
            {
                f"triptych_{service}_refused_calls": 2,
                f"triptych_{service}_tls_handshakes": 2,
                f"triptych_{service}_tls_connections": 1,
            },
        )
    ),
]


def service_of(case: Case) -> str:
    return case.metric.split("_")[1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented_with_certificates(service_of(case))[case.metric])


@pytest.mark.parametrize("service", SCENARIOS)
async def test_each_documented_metric_has_a_case_and_no_other_is_exported(service: str) -> None:
    assert {case.metric for case in CASES if service_of(case) == service} == documented_with_certificates(service).keys()
    exported = (await run_once(SCENARIOS[service])).snapshots[-1]
    expected = documented(service) | documented_with_certificates(service)
    assert {name for name in exported.kinds if not name.startswith(("process_", "python_"))} == expected.keys()
