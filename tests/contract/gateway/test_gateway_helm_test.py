"""The script that `helm test` runs in the gateway's image, which has Python and no more, against a gateway."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.fakes.frontend import MODEL, FakeFrontend, fails, running
from support.fakes.gateway import gateway_server, serving_http
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

SCRIPT = Path(__file__).parents[3] / "helm" / "triptych" / "files" / "tests" / "chat.py"


async def run(place: tuple[str, int], *models: str, **environ: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the script."""
    # -I: as in the pod, without this repository.
    places = [text for model in models for text in (f"http://{place[0]}:{place[1]}", model)]
    command = [sys.executable, "-I", str(SCRIPT), *places]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


def able(*tasks: common_pb2.Task) -> FakeFrontend:
    """A frontend whose model has these tasks."""
    frontend = FakeFrontend()
    frontend.model = common_pb2.ModelInfo()
    frontend.model.CopyFrom(MODEL)
    frontend.model.capabilities.tasks.extend(tasks)
    return frontend


async def test_a_model_that_generates_is_asked_a_question() -> None:
    frontend = able(common_pb2.TASK_GENERATE)
    async with gateway_server(frontend, api_key="secret") as place:
        code, out, errors = await run(place, MODEL.name, API_KEY="secret")
    assert (code, out, errors) == (0, f"{MODEL.name}: Hello\n", "")
    assert len(frontend.requests) == 1


@pytest.mark.parametrize(
    ("tasks", "request_class", "path"),
    [
        (
            [common_pb2.TASK_EMBED, common_pb2.TASK_TOKEN_EMBED, common_pb2.TASK_SCORE],
            generation_pb2.EmbedRequest,
            "/v1/embeddings",
        ),
        ([common_pb2.TASK_TOKEN_EMBED], generation_pb2.EmbedRequest, "/pooling"),
        ([common_pb2.TASK_CLASSIFY], generation_pb2.ClassifyRequest, "/classify"),
        ([common_pb2.TASK_SCORE], generation_pb2.ScoreRequest, "/score"),
    ],
)
async def test_another_model_is_asked_for_what_it_does(tasks: list[common_pb2.Task], request_class: type, path: str) -> None:
    frontend = able(*tasks)
    async with gateway_server(frontend) as place:
        code, out, errors = await run(place, MODEL.name)
    assert (code, out, errors) == (0, f"{MODEL.name}: {path} answers\n", "")
    assert [type(request) for request in frontend.pooling_requests] == [request_class]
    assert not frontend.requests


async def test_it_waits_until_a_model_answers() -> None:
    frontend = able(common_pb2.TASK_GENERATE)
    hello, frontend.script = frontend.script, fails(ServiceUnavailableError("no engine"))
    async with gateway_server(frontend) as place:
        test = asyncio.create_task(run(place, MODEL.name))
        await until(lambda: bool(frontend.requests))
        await asyncio.sleep(0.5)
        assert not test.done()
        frontend.script = hello
        assert (await test)[:2] == (0, f"{MODEL.name}: Hello\n")


async def test_it_waits_for_the_frontend_of_each_model(tmp_path: Path) -> None:
    first, second, addresses = able(common_pb2.TASK_GENERATE), able(common_pb2.TASK_GENERATE), tmp_path / "addresses"
    second.model.name = "late"
    async with running(first) as here, running(second) as there:
        addresses.write_text(here)
        app = create_app(GatewaySettings(frontend_addresses=(f"file:{addresses}",)))
        async with serving_http(app) as place:
            test = asyncio.create_task(run(place, MODEL.name, "late"))
            await until(lambda: bool(first.requests))
            await asyncio.sleep(0.5)
            assert not test.done()
            addresses.write_text(f"{here}\n{there}")
            assert (await test)[:2] == (0, f"{MODEL.name}: Hello\nlate: Hello\n")


async def test_a_request_wakes_a_model_that_is_scaled_to_zero() -> None:
    """The frontend has no engine until a request waits."""
    frontend = able(common_pb2.TASK_GENERATE)
    async with running(frontend, ready=False) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,), expected_models=(MODEL.name,), model_wait_s=30))
        async with serving_http(app) as place:
            test = asyncio.create_task(run(place, MODEL.name))
            await until(lambda: app.state.gateway.metrics.waiting_for_model.get(MODEL.name, 0) > 0)
            await frontend.health.set_ready(True)
            assert (await test)[:2] == (0, f"{MODEL.name}: Hello\n")


async def test_what_is_wrong_is_said() -> None:
    async with gateway_server(FakeFrontend(), api_key="secret") as place:
        code, _, errors = await run(place, MODEL.name, API_KEY="wrong")
        assert code == 1
        assert "/v1/models: 401" in errors
        code, _, errors = await run(place, "other", API_KEY="secret", PATIENCE_S="0.1")
        assert (code, errors.strip()) == (1, f"other is not among the models of the gateway: {MODEL.name}")


async def test_patience_ends() -> None:
    code, _, errors = await run(("127.0.0.1", 9), "a", PATIENCE_S="0.1")
    assert code == 1
    assert "Connection refused" in errors
