"""A service with mutual TLS: its ports, its health port, and what it tells of its certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.certificates import tls, write_all
from support.mock import mock_server
from triptych.errors import StartupError
from triptych.v1 import control_pb2, control_pb2_grpc, encoder_pb2, encoder_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_cli.stack.probes import grpc_ready
from triptych_common.rpc.channels import MAX_METADATA_BYTES, open_channel
from triptych_common.rpc.control import READINESS
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.server import ServiceServer


@asynccontextmanager
async def a_server(certs: Path, **settings: object) -> AsyncIterator[ServiceServer]:
    async with mock_server(tls_dir=certs / "frontend", control_port=0, health_port=0, **settings) as mock:
        yield mock.server.server


async def test_the_control_port_is_for_operators_alone_and_shows_no_key(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    async with a_server(certs) as server:
        address = f"127.0.0.1:{server.control_port}"
        async with open_channel(address, tls=Tls(certs / "operator", Role.OPERATOR)) as channel:
            info = await control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(control_pb2.GetServerInfoRequest())
        assert info.settings["tls_dir"] == str(certs / "frontend")
        assert "PRIVATE" not in str(info)
        assert (certs / "frontend" / "tls.key").read_text().splitlines()[1] not in str(info)
        async with open_channel(address, tls=Tls(certs / "gateway", Role.GATEWAY)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await control_pb2_grpc.ControlServiceStub(channel).Drain(control_pb2.DrainRequest())
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        async with open_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await control_pb2_grpc.ControlServiceStub(channel).Drain(control_pb2.DrainRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_health_port_answers_without_tls_and_nothing_but_health(tmp_path: Path) -> None:
    async with a_server(write_all(tmp_path)) as server, open_channel(f"127.0.0.1:{server.health_port}") as channel:
        assert await grpc_ready(f"127.0.0.1:{server.health_port}")()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=READINESS))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.health.set_ready(False)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation_pb2_grpc.GenerationServiceStub(channel).ListModels(generation_pb2.ListModelsRequest())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_taken_health_port_is_named(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    async with a_server(certs) as server:
        with pytest.raises(StartupError, match="choose another with --health-port"):
            async with mock_server(tls_dir=certs / "frontend", control_port=0, health_port=server.health_port):
                pass


async def test_the_certificates_end_is_a_metric(tmp_path: Path) -> None:
    certs = write_all(tmp_path)
    async with a_server(certs, metrics_port=0) as server:
        address = f"127.0.0.1:{server.port}"
        async with open_channel(address, tls=Tls(certs / "engine", Role.ENGINE)) as channel:
            await encoder_pb2_grpc.EncoderServiceStub(channel).Describe(encoder_pb2.DescribeRequest())
            with pytest.raises(grpc.aio.AioRpcError):
                await generation_pb2_grpc.GenerationServiceStub(channel).ListModels(generation_pb2.ListModelsRequest())
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"http://127.0.0.1:{server.metrics_port}/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    end_s = tls(tmp_path, Role.FRONTEND).watched.current.expiry_s
    assert float(lines["triptych_mock_certificate_expiry_timestamp_seconds"]) == end_s
    assert float(lines["triptych_mock_refused_calls_total"]) == 1
    assert float(lines["triptych_mock_tls_handshakes_total"]) == float(lines["triptych_mock_tls_connections_total"]) == 1


async def test_metadata_up_to_the_limit_is_taken_and_more_is_refused() -> None:
    async with mock_server() as mock, open_channel(mock.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for _ in range(10):  # gRPC's own limits refuse some calls between the two at random
            await stub.ListModels(generation_pb2.ListModelsRequest(), metadata=(("x-large", "x" * (MAX_METADATA_BYTES - 1024)),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(generation_pb2.ListModelsRequest(), metadata=(("x-large", "x" * MAX_METADATA_BYTES),))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
