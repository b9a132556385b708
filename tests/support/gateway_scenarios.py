"""What happens to a gateway in the tests of its metrics, and its metrics before, meanwhile and after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import orjson
import pytest
import websockets
from triptych.errors import InternalError, ServiceUnavailableError
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, generation_pb2
from triptych_gateway.access import audit
from triptych_gateway.app import create_app
from triptych_gateway.frontends.loads import _MAX_AGE_S
from triptych_gateway.settings import GatewaySettings

from support.batches import CHAT_URL, Answers, chat_line, jsonl, upload
from support.fakes.collector import refusing
from support.fakes.frontend import MODEL, FakeFrontend, fails, running, says
from support.fakes.gateway import CHAT, client_of, gateway_client, gateway_server, until_connected
from support.keys import KeyStore
from support.metrics import Run, Snapshot, parsed
from support.waiting import until

PREFIX, ROUTE, RESPONSES = "triptych_gateway", "/v1/chat/completions", "/v1/responses"


async def seen(client: httpx.AsyncClient, headers: Mapping[str, str] | None = None) -> Snapshot:
    return parsed((await client.get("/metrics", headers=headers)).text)


async def two_chats() -> Run:
    """A stream of three tokens with a picture, whose message has an unknown field, and a request that is refused."""
    frontend = FakeFrontend()
    report = generation_pb2.MediaReport(
        modality=common_pb2.MODALITY_IMAGE, num_tokens=5, tier=encoder_pb2.CACHE_TIER_LOCAL,
        source=common_pb2.EMBEDDING_SOURCE_ENCODER,
    )  # fmt: skip
    usage = common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2, cached_media_tokens=1)
    frontend.script = says("a", "b", "c", media=[report], usage=usage)
    async with gateway_client(frontend) as client:
        before = await seen(client)
        await client.post(ROUTE, json=CHAT | {"stream": True, "messages": [{"role": "user", "content": "Hi", "mood": "good"}]})
        await client.post(ROUTE, json=CHAT | {"n": 0})
        return Run([before, await seen(client)])


async def a_stream_that_fails() -> Run:
    frontend = FakeFrontend()
    frontend.script = fails(InternalError("broken"), after=1)
    async with gateway_client(frontend) as client:
        before = await seen(client)
        await client.post(ROUTE, json=CHAT | {"stream": True})
        return Run([before, await seen(client)])


async def a_client_that_leaves() -> Run:
    """Quiet, with a request, and after its client left. Each scrape is a request too."""
    frontend = FakeFrontend()
    frontend.script = says("a", gate=asyncio.Semaphore(0))
    async with gateway_server(frontend) as place, httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client:
        snapshots = [await seen(client)]
        _, writer = await asyncio.open_connection(*place)
        content = orjson.dumps(CHAT)
        writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (ROUTE.encode(), len(content), content))
        await frontend.arrivals.get()
        snapshots.append(await seen(client))
        writer.close()
        await frontend.was_cancelled.wait()
        while True:
            last = await seen(client)
            if last.value(f"{PREFIX}_requests_in_flight", {}) == 1:
                return Run([*snapshots, last])


async def a_response_in_the_background() -> Run:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("a", gate=gate)
    async with gateway_client(frontend) as client:
        snapshots = [await seen(client)]
        made = (await client.post("/v1/responses", json={"model": MODEL.name, "input": "Hi", "background": True})).json()
        await frontend.arrivals.get()
        snapshots.append(await seen(client))
        for _ in range(10):
            gate.release()
        while (await client.get(f"/v1/responses/{made['id']}")).json()["status"] != "completed":
            pass
        last = await seen(client)
        while last.value(f"{PREFIX}_background_responses", {}):
            last = await seen(client)
        return Run([*snapshots, last])


async def a_batch() -> Run:
    frontend = FakeFrontend()
    frontend.script = answers = Answers(0)
    with TemporaryDirectory() as directory:
        async with gateway_client(frontend, files_dir=directory) as client:
            snapshots = [await seen(client)]
            file_id = (await client.post("/v1/files", **upload(jsonl([chat_line("a")]), "batch"))).json()["id"]
            asked = {"input_file_id": file_id, "endpoint": CHAT_URL, "completion_window": "24h"}
            await client.post("/v1/batches", json=asked)
            await frontend.arrivals.get()
            snapshots.append(await seen(client))
            answers.open()
            last = await seen(client)
            while last.value(f"{PREFIX}_running_batches", {}):
                await asyncio.sleep(0.01)
                last = await seen(client)
            return Run([*snapshots, last])


async def responses_that_fail() -> Run:
    """Turns on a WebSocket: a wrong one, one that breaks, one that fails at once. Then a response in the background that breaks."""
    frontend = FakeFrontend()
    asked = {"model": MODEL.name, "input": "Hi"}
    async with gateway_server(frontend) as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        before = await seen(client)
        async with websockets.connect(f"ws://{host}:{port}/v1/responses") as connection:
            for script, fields, end in (
                (fails(InternalError("not asked")), {"background": True}, "error"),
                (fails(InternalError("broken"), after=1), {}, "response.failed"),
                (fails(ServiceUnavailableError("away")), {}, "error"),
            ):
                frontend.script = script
                await connection.send(orjson.dumps({"type": "response.create", **asked, **fields}).decode())
                while orjson.loads(await connection.recv())["type"] != end:
                    pass
        frontend.script = fails(InternalError("broken"))
        made = (await client.post("/v1/responses", json=asked | {"background": True})).json()
        while (await client.get(f"/v1/responses/{made['id']}")).json()["status"] == "in_progress":
            pass
        return Run([before, await seen(client)])


async def a_body_that_waits() -> Run:
    """The memory for bodies holds one of two files."""
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("a", gate=gate)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    body = CHAT | {"messages": [{"role": "user", "content": [image]}]}
    async with gateway_client(frontend, max_body_bytes=500_000, max_live_body_bytes=600_000) as client:
        snapshots = [await seen(client)]
        calls = [asyncio.create_task(client.post(ROUTE, json=body))]
        await frontend.arrivals.get()
        calls.append(asyncio.create_task(client.post(ROUTE, json=body)))
        waiting = await seen(client)
        async with asyncio.timeout(10):
            while not waiting.value(f"{PREFIX}_bodies_waiting", {}):
                waiting = await seen(client)
        for _ in range(10):
            gate.release()
        assert [response.status_code for response in await asyncio.gather(*calls)] == [200, 200]
        return Run([*snapshots, waiting, await seen(client)])


async def a_frontend_that_drains() -> Run:
    frontend = FakeFrontend()
    async with running(frontend) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,)))
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until_connected(app)
            snapshots = []
            for ready in (True, False, True):
                await frontend.health.set_ready(ready)
                await until(lambda ready=ready: bool(app.state.gateway.pool.ready) == ready)
                snapshots.append(await seen(client))
            return Run(snapshots)


async def two_engines() -> Run:
    """What the frontend tells of them; then they are quiet; then a scrape comes before the frontend is asked again."""
    frontend = FakeFrontend()

    def tell(*loads: engine_pb2.Load) -> None:
        frontend.load = generation_pb2.GetLoadResponse(
            instance=frontend.instance,
            engines=[
                generation_pb2.EngineLoad(instance=common_pb2.Instance(id=f"e{number}"), load=load)
                for number, load in enumerate(loads)
            ],
        )

    size = {"num_blocks": 100, "block_size": 16}
    busy = engine_pb2.Load(num_running=3, num_waiting=5, num_free_blocks=25, **size)
    quiet = engine_pb2.Load(num_free_blocks=100, **size)
    tell(busy, engine_pb2.Load(num_running=1, num_free_blocks=75, **size))
    async with gateway_client(frontend) as client:
        snapshots = [await seen(client)]
        tell(quiet, quiet)
        await asyncio.sleep(_MAX_AGE_S)
        snapshots.append(await seen(client))
        tell(busy, busy)
        return Run([*snapshots, await seen(client)])


async def a_model_that_is_not_there_yet() -> Run:
    """A request waits for it until the client leaves."""
    async with gateway_client(expected_models=("big",), model_wait_s=60) as client:
        snapshots = [await seen(client)]
        waiting = asyncio.create_task(client.post(ROUTE, json=CHAT | {"model": "big"}))
        series = f"{PREFIX}_model_requests_waiting", {"model_name": "big"}
        while not (last := await seen(client)).value(*series):
            pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        snapshots.append(last)
        while (last := await seen(client)).value(*series):
            pass
        return Run([*snapshots, last])


async def keys_and_what_goes_wrong() -> Run:
    """A wrong key, a wrong file of keys, a store of rates that is away, an audit log on a full disk."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "_MAX_WAITING", 2)
        keys = KeyStore(Path(directory) / "keys.json")
        keys.add("operator", operator=True)
        keys.add("limited", requests_per_minute=5)
        settings = {"api_keys_file": keys.path, "rate_limit_store": "redis://127.0.0.1:1", "audit_log": "/dev/full"}
        async with gateway_client(**settings) as client:
            headers = keys.headers("operator")
            before = await seen(client, headers)
            await client.post(ROUTE, json=CHAT, headers={"authorization": "Bearer sk-wrong"})
            for _ in range(5):
                await client.post(ROUTE, json=CHAT, headers=keys.headers("limited"))
            keys.path.write_text("{")
            failures = f"{PREFIX}_api_keys_reload_failures_total", {}
            lost = f"{PREFIX}_audit_lines_lost_total", {}
            async with asyncio.timeout(30):
                while not ((wrong := await seen(client, headers)).value(*failures) and wrong.value(*lost)):
                    pass
                keys.write()
                while not (last := await seen(client, headers)).value(f"{PREFIX}_api_keys_current", {}):
                    pass
        return Run([before, wrong, last])


async def a_tenant_that_is_refused() -> Run:
    """A tenant that asks twice, and may once a minute."""
    with TemporaryDirectory() as directory:
        keys = KeyStore(Path(directory) / "keys.json")
        keys.add("operator", operator=True)
        keys.add("limited", tenant="acme", requests_per_minute=1)
        async with gateway_client(api_keys_file=keys.path) as client:
            before = await seen(client, keys.headers("operator"))
            for _ in range(2):
                await client.post(ROUTE, json=CHAT, headers=keys.headers("limited"))
            return Run([before, await seen(client, keys.headers("operator"))])


async def a_chat_whose_span_nobody_takes() -> Run:
    async with refusing() as endpoint, gateway_client(otlp_traces_endpoint=endpoint) as client:
        before = last = await seen(client)
        await client.post(ROUTE, json=CHAT)
        async with asyncio.timeout(10):
            while not last.value(f"{PREFIX}_spans_dropped_total", {}):
                last = await seen(client)
        return Run([before, last])
