"""A service's two servers: what they tell of it, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.waiting import until
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.server import ServiceServer
from triptych_common.settings import GrpcServiceSettings

SERVICE = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]


class Settings(GrpcServiceSettings):
    """Of a service with a store."""

    store_url: str = "redis://user:geheim@store:6379/0"


class SlowService(generation_pb2_grpc.GenerationServiceServicer):
    """Streams until it is told to finish."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.num_live_requests = 0
        self.state = common_pb2.SERVER_STATE_SERVING
        self.idle = asyncio.Event()
        self.may_wake_up = asyncio.Event()
        self.may_wake_up.set()
        #: What the control port asked for, as it went on.
        self.changes: list[str] = []

    async def ChatStream(  # noqa: N802
        self, request: generation_pb2.ChatStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        self.num_live_requests += 1
        try:
            yield generation_pb2.ChatStreamResponse(request_id="begun")
            await self.finish.wait()
            yield generation_pb2.ChatStreamResponse(request_id="ended")
        finally:
            self.num_live_requests -= 1
            self.idle.set()

    def model_info(self) -> common_pb2.ModelInfo | None:
        return None

    async def drain(self, timeout_s: float) -> bool:
        self.changes.append("drains")
        try:
            await asyncio.wait_for(self.idle.wait(), timeout_s)
        except TimeoutError:
            return False
        self.changes.append("drained")
        return True

    async def reset_cache(self) -> int:
        return 0

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        await self.drain(timeout_s)
        return 0

    async def wake_up(self) -> None:
        self.changes.append("wakes up")
        await self.may_wake_up.wait()
        self.changes.append("woke up")


def a_server(service: SlowService, **settings: object) -> ServiceServer:
    return ServiceServer(
        "frontend",
        Settings(port=0, control_port=0, **settings),  # type: ignore[arg-type]
        [SERVICE],
        lambda server: generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server),
        service,
    )


async def test_the_control_port_shows_no_password() -> None:
    service = SlowService()
    service.idle.set()  # nothing to drain
    server = a_server(service)
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{server.control_port}") as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            info = await stub.GetServerInfo(control_pb2.GetServerInfoRequest())
    finally:
        service_stop = server.stop()
        await asyncio.wait_for(service_stop, 60)
    assert info.settings["store_url"] == "redis://user:***@store:6379/0"
    assert "geheim" not in str(info)
    assert (info.instance.service, info.instance.address) == ("frontend", f"127.0.0.1:{server.port}")
    assert len(info.instance.id) == 16


async def test_a_stopping_service_lets_its_streams_end_however_long_they_take() -> None:
    service = SlowService()
    server = a_server(service, shutdown_grace_s=60)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        # Nobody ends a health watch: it must not hold up the end.
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call = generation_pb2_grpc.GenerationServiceStub(channel).ChatStream(generation_pb2.ChatStreamRequest())
        assert (await call.read()).request_id == "begun"
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.2)
        assert not stopping.done()
        service.finish.set()
        assert (await call.read()).request_id == "ended"
        start_s = time.monotonic()
        await asyncio.wait_for(stopping, 30)
        assert time.monotonic() - start_s < 10


async def test_streams_that_do_not_end_are_cut_after_the_grace() -> None:
    server = a_server(SlowService(), shutdown_grace_s=0.2)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).ChatStream(generation_pb2.ChatStreamRequest())
        await call.read()
        await asyncio.wait_for(server.stop(), 30)


async def test_a_stopping_service_does_not_wait_for_a_long_drain_that_began_before() -> None:
    service = SlowService()
    server = a_server(service, shutdown_grace_s=0.2)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel, open_channel(f"127.0.0.1:{server.control_port}") as control:
        call = generation_pb2_grpc.GenerationServiceStub(channel).ChatStream(generation_pb2.ChatStreamRequest())
        assert (await call.read()).request_id == "begun"
        draining = control_pb2_grpc.ControlServiceStub(control).Drain(control_pb2.DrainRequest(timeout_s=600))
        await until(lambda: bool(service.changes))
        await asyncio.wait_for(server.stop(), 10)
        with pytest.raises(grpc.aio.AioRpcError):
            await draining


async def test_a_drain_of_zero_seconds_returns_at_once_beside_a_long_one() -> None:
    service = SlowService()
    async with control_of(service) as control:
        long = asyncio.create_task(_answer(control.Drain(control_pb2.DrainRequest(timeout_s=3600))))
        await until(lambda: service.changes == ["drains"])
        answer = await control.Drain(control_pb2.DrainRequest(timeout_s=0), timeout=10)
        assert not answer.drained
        service.idle.set()
        await asyncio.wait_for(long, 10)


async def test_a_wake_up_ends_a_drain() -> None:
    service = SlowService()
    async with control_of(service) as control:
        draining = control.Drain(control_pb2.DrainRequest(timeout_s=3600))
        await until(lambda: service.changes == ["drains"])
        await control.WakeUp(control_pb2.WakeUpRequest(), timeout=10)
        assert not (await draining).drained
    assert service.changes[:3] == ["drains", "wakes up", "woke up"]


async def test_a_drain_that_comes_during_a_wake_up_is_not_undone() -> None:
    service = SlowService()
    service.may_wake_up.clear()
    async with control_of(service) as control:
        waking = asyncio.create_task(_answer(control.WakeUp(control_pb2.WakeUpRequest())))
        await until(lambda: service.changes == ["wakes up"])
        draining = asyncio.create_task(_answer(control.Drain(control_pb2.DrainRequest(timeout_s=0))))
        await asyncio.sleep(0.1)
        assert service.changes == ["wakes up"]
        service.may_wake_up.set()
        await asyncio.gather(waking, draining)
        assert service.changes == ["wakes up", "woke up", "drains"]


async def test_a_wake_up_goes_on_without_its_client() -> None:
    service = SlowService()
    service.may_wake_up.clear()
    async with control_of(service) as control:
        call = control.WakeUp(control_pb2.WakeUpRequest())
        await until(lambda: service.changes == ["wakes up"])
        call.cancel()
        service.may_wake_up.set()
        await until(lambda: service.changes == ["wakes up", "woke up"])


async def test_a_wake_up_waits_for_a_sleep() -> None:
    service = SlowService()
    async with control_of(service) as control:
        sleeping = asyncio.create_task(_answer(control.Sleep(control_pb2.SleepRequest(timeout_s=60))))
        await until(lambda: service.changes == ["drains"])
        waking = asyncio.create_task(_answer(control.WakeUp(control_pb2.WakeUpRequest())))
        await asyncio.sleep(0.1)
        assert service.changes == ["drains"]
        service.idle.set()
        await asyncio.gather(sleeping, waking)
    assert service.changes[:4] == ["drains", "drained", "wakes up", "woke up"]


@asynccontextmanager
async def control_of(service: SlowService) -> AsyncIterator[control_pb2_grpc.ControlServiceStub]:
    server = a_server(service, shutdown_grace_s=0.2)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.control_port}") as channel:
        yield control_pb2_grpc.ControlServiceStub(channel)
    await asyncio.wait_for(server.stop(), 30)


async def test_a_stopping_service_does_not_wake_up() -> None:
    service = SlowService()
    server = a_server(service, shutdown_grace_s=30)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.control_port}") as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        stopping = asyncio.create_task(server.stop())
        await until(lambda: service.changes == ["drains"])
        waking = asyncio.create_task(_answer(control.WakeUp(control_pb2.WakeUpRequest())))
        await asyncio.sleep(0.1)
        service.idle.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waking
        await asyncio.wait_for(stopping, 30)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert service.changes == ["drains", "drained"]


async def _answer(call: Awaitable[object]) -> None:
    await call
