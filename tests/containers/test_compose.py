"""docker-compose.yml by podman-compose: text, a picture, several encoders with one store, a crash, a stop.

The tests of this module go through one stack's life, in the order in which they are written.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import grpc
import httpx
import pytest
from support.podman import ROOT, Project, needs_podman, run, until
from triptych.v1 import generation_pb2, generation_pb2_grpc
from triptych_common.settings import DEFAULT_MODEL
from triptych_gateway.settings import GatewaySettings

pytestmark = needs_podman
_READY_TIMEOUT_S = 300
_SERVICES = ("gateway", "frontend", "encoder", "engine")
_TRACES_ENDPOINT = "otlp_traces_endpoint"
_PICTURES = ROOT / "examples"


@pytest.fixture(scope="module")
def stack(project: Project) -> Iterator[Project]:
    """The whole stack with a Valkey, two encoders and two engines, where each service sends spans as soon as it can."""
    environment = {
        **project.environment,
        "TRIPTYCH_ENCODERS": "2",
        "TRIPTYCH_ENGINES": "2",
        "TRIPTYCH_ENCODER_STORE_URL": "redis://valkey:6379/0",
    }
    profiles = ["cache"]
    if _TRACES_ENDPOINT in GatewaySettings.model_fields:
        profiles.append("observability")
        names = [f"TRIPTYCH_{service.upper()}_{_TRACES_ENDPOINT.upper()}" for service in _SERVICES]
        environment.update(dict.fromkeys(names, "http://collector:4317"))
    started = Project(project.name, environment, tuple(profiles))
    services = [*_SERVICES, "valkey", *(["collector"] if "observability" in profiles else [])]
    try:
        started.compose("up", "--detach", "--no-build", *services)
        yield started
    finally:
        for service in services:
            for container in started.containers(service):
                print(f"--- {container}\n{started.logs(container)[-3000:]}")


def url(stack: Project) -> str:
    return f"http://127.0.0.1:{stack.environment['TRIPTYCH_PORT']}"


def is_ready(stack: Project) -> bool:
    try:
        return httpx.get(f"{url(stack)}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def ask(stack: Project, question: str, picture: str | None = None, refusals: bool = False) -> str:
    """The answer; with `refusals`, an empty one if the service is unavailable."""
    content: list[dict] = [{"type": "text", "text": question}]
    if picture is not None:
        data = base64.b64encode((_PICTURES / picture).read_bytes()).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": f"data:image/{picture.rpartition('.')[2]};base64,{data}"}})
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 32}
    response = httpx.post(f"{url(stack)}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    if refusals and response.status_code == 503:
        return ""
    return response.raise_for_status().json()["choices"][0]["message"]["content"]


def test_text_is_answered_and_all_services_are_healthy(stack: Project) -> None:
    until("the gateway is ready", lambda: is_ready(stack), _READY_TIMEOUT_S)
    assert "Paris" in ask(stack, "What is the capital of France?")
    for container in [name for service in _SERVICES for name in stack.containers(service)]:
        until(f"{container} is healthy", lambda name=container: stack.is_healthy(name), _READY_TIMEOUT_S)


def test_grpc_is_published_too(stack: Project) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{stack.environment['TRIPTYCH_GRPC_PORT']}") as channel:
        models = generation_pb2_grpc.GenerationServiceStub(channel).ListModels(generation_pb2.ListModelsRequest(), timeout=30)
    assert [model.name for model in models.models] == [DEFAULT_MODEL]


def test_a_picture_is_answered_and_an_encoder_that_never_saw_it_finds_it_in_valkey(stack: Project) -> None:
    def found(tier: str) -> dict[str, float]:
        of_encoders = {name: stack.metrics(name, 50352) for name in stack.containers("encoder")}
        return {name: metrics.get(f'triptych_encoder_items_total{{tier="{tier}"}}', 0) for name, metrics in of_encoders.items()}

    assert len(stack.containers("encoder")) == 2
    assert "circle" in ask(stack, "What is in the picture?", "circle.png").lower()
    misses = found("miss")
    assert sorted(misses.values()) == [0, 1]
    assert not any(found("shared").values())
    (saw_it,) = (name for name, count in misses.items() if count)
    run("podman", "stop", "--time", "45", saw_it)
    (other,) = stack.containers("encoder")
    assert "circle" in ask(stack, "Which shape do you see?", "circle.png").lower()
    assert found("shared") == {other: 1}
    run("podman", "start", saw_it)


def test_a_killed_engine_is_replaced(stack: Project) -> None:
    victim, other = stack.containers("engine")
    started = run("podman", "inspect", "--format", "{{.State.StartedAt}}", victim)
    pid = stack.crash(victim)

    def replaced() -> bool:
        state = json.loads(run("podman", "inspect", "--format", "{{json .State}}", victim))
        return state["Running"] and state["Pid"] not in (0, pid)

    # By the other engine. A request that the dead one was given in its last moment is refused with 503.
    until("the other engine answers", lambda: "Paris" in ask(stack, "What is the capital of France?", refusals=True), 30)
    until("podman starts the engine again", replaced, 60)
    assert run("podman", "inspect", "--format", "{{.State.StartedAt}}", victim) != started

    def both_are_connected() -> bool:
        (frontend,) = stack.containers("frontend")
        return stack.metrics(frontend, 50354)["triptych_frontend_engines_connected"] == 2

    until("the frontend uses both engines", both_are_connected, _READY_TIMEOUT_S)
    run("podman", "stop", "--time", "45", other)
    assert "Paris" in ask(stack, "What is the capital of France?")


@pytest.mark.skipif(_TRACES_ENDPOINT not in GatewaySettings.model_fields, reason="the services have no setting for traces")
def test_the_spans_of_a_request_are_one_tree(stack: Project) -> None:
    (collector,) = stack.containers("collector")
    ask(stack, "How many squares are there?", "four-squares.jpeg")

    def tree() -> list[dict] | None:
        spans = [json.loads(line) for line in stack.logs(collector).splitlines() if line.startswith("{")]
        whole = [span["trace"] for span in spans if span["service"].endswith("encoder")]
        trace = [span for span in spans if whole and span["trace"] == whole[-1]]
        return trace if {span["service"].rpartition("-")[2] for span in trace} == set(_SERVICES) else None

    trace = until("a trace with spans of all services", tree, 60)
    ids = {span["span"] for span in trace}
    roots = [span for span in trace if not span["parent"]]
    print("\n".join(f"{span['service']:20} {span['name']:40} {span['parent'] or '(root)'} -> {span['span']}" for span in trace))
    assert len(roots) == 1
    assert all(span["parent"] in ids for span in trace if span is not roots[0])


def test_a_stop_ends_all_services_without_a_kill(stack: Project) -> None:
    running = [container for service in _SERVICES for container in stack.containers(service)]
    stack.compose("stop")
    for container in running:
        assert run("podman", "inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0", container
