"""What operators see and do: reflection, health, request ids in the logs, drain, sleep, the cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.metrics import parsed
from support.stack import QUESTION, SOON_S, Stack
from triptych.v1 import common_pb2, control_pb2, engine_pb2

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]
_SERVING = health_pb2.HealthCheckResponse.SERVING


def answer_of(stack: Stack, **fields: Any) -> Any:
    return stack.http.post("/v1/chat/completions", json=QUESTION | fields).raise_for_status().json()


@pytest.mark.parametrize(
    ("service", "on_control_port", "name", "method", "request_type"),
    [
        ("frontend", False, "triptych.v1.GenerationService", "Chat", "triptych.v1.ChatRequest"),
        ("frontend", False, "triptych.v1.PreprocessService", "Tokenize", "triptych.v1.TokenizeRequest"),
        ("frontend", False, "triptych.v1.DetokenizeService", "Detokenize", "triptych.v1.DetokenizeRequest"),
        ("frontend", True, "triptych.v1.ControlService", "Drain", "triptych.v1.DrainRequest"),
        ("engine", False, "triptych.v1.EngineService", "Session", "triptych.v1.SessionRequest"),
        ("engine", True, "triptych.v1.ControlService", "Sleep", "triptych.v1.SleepRequest"),
    ],
)
def test_reflection_tells_what_is_served(
    stack: Stack, service: str, on_control_port: bool, name: str, method: str, request_type: str
) -> None:
    channel = stack.control_channel(service) if on_control_port else stack.channel(service)
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {name, "grpc.health.v1.Health"} <= {*database.get_services()}
    described = DescriptorPool(database).FindServiceByName(name).methods_by_name[method]
    assert described.input_type.full_name == request_type
    assert described.input_type.fields
    health = health_pb2_grpc.HealthStub(channel)
    for asked in ("", "readiness", "liveness"):
        assert health.Check(health_pb2.HealthCheckRequest(service=asked)).status == _SERVING
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        health.Check(health_pb2.HealthCheckRequest(service="nonsense"))


def test_a_request_is_found_by_its_id_in_every_log(stack: Stack) -> None:
    response = stack.http.post("/v1/chat/completions", json=QUESTION, headers={"x-request-id": "find-me-42"})
    assert response.headers["x-request-id"] == "find-me-42"
    stack.serving.wait_for(r"gateway +│ .* INFO .*\[find-me-42\] POST /v1/chat/completions 200 ", timeout_s=SOON_S)
    stack.serving.wait_for(r"frontend +│ .* INFO .*\[find-me-42\] Chat: \d+ prompt and \d+ output tokens, stop, ", timeout_s=SOON_S)
    stack.serving.wait_for(r"engine +│ .* DEBUG .*\[find-me-42[^]]*\] stop after \d+ tokens", timeout_s=SOON_S)


def test_a_request_without_an_id_is_given_one(stack: Stack) -> None:
    response = stack.http.post("/v1/chat/completions", json=QUESTION | {"temperature": -1})
    assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
    stack.serving.wait_for(rf"gateway .*\[{response.headers['x-request-id']}\] .* 400 ", timeout_s=SOON_S)


def test_the_gateway_has_what_autoscalers_and_endpoint_pickers_read(stack: Stack) -> None:
    before = parsed(stack.http.get("/metrics").text)
    usage = answer_of(stack)["usage"]
    after = parsed(stack.http.get("/metrics").text)
    name = "triptych_gateway_completion_tokens_total"
    assert after.value(name, {}) - before.value(name, {}) == usage["completion_tokens"]
    engine = {"model_name": str(QUESTION["model"]), "engine": "all"}
    for alias in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert (alias, frozenset(engine.items())) in after.values
    load = stack.engine.Describe(engine_pb2.EngineServiceDescribeRequest()).load
    cache = {"block_size": str(load.block_size), "num_gpu_blocks": str(load.num_blocks), "engine": "all"}
    assert after.value("vllm:cache_config_info", cache) == 1


def test_a_reset_forgets_cached_prefixes(stack: Stack) -> None:
    messages = [{"role": "user", "content": f"Repeat after me: {'to be or not to be, ' * 20}"}]

    def cached_tokens() -> int:
        return int(answer_of(stack, messages=messages, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached_tokens()
    assert cached_tokens() > 60
    assert stack.control("engine").ResetCache(control_pb2.ResetCacheRequest()).num_entries >= 4
    assert cached_tokens() == 0


def _refused(stack: Stack) -> httpx.Response:
    response = stack.http.post("/v1/chat/completions", json=QUESTION)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"
    assert int(response.headers["retry-after"]) >= 1
    return response


def _state(stack: Stack, service: str) -> int:
    info: control_pb2.GetServerInfoResponse = stack.control(service).GetServerInfo(control_pb2.GetServerInfoRequest())
    return info.instance.state


@pytest.fixture
def wake_up(stack: Stack) -> Callable[[str], None]:
    """A function that wakes a service, once the gateway has seen that it is away, and waits until the stack answers again."""

    def wake_up(service: str) -> None:
        stack.serving.wait_until_unready(stack.url)
        assert [stack.http.get(path).status_code for path in ("/ready", "/live", "/health")] == [503, 200, 200]
        stack.control(service).WakeUp(control_pb2.WakeUpRequest())
        stack.serving.wait_until_ready(stack.url, timeout_s=SOON_S)
        assert "Paris" in answer_of(stack)["choices"][0]["message"]["content"]

    return wake_up


def test_an_engine_sleeps_and_wakes(stack: Stack, wake_up: Callable[[str], None]) -> None:
    answer_of(stack)
    slept = stack.control("engine").Sleep(control_pb2.SleepRequest(timeout_s=5))
    try:
        assert slept.freed_bytes > 0
        assert _state(stack, "engine") == common_pb2.SERVER_STATE_SLEEPING
        _refused(stack)
    finally:
        wake_up("engine")


@pytest.mark.parametrize("service", ["engine", "frontend"])
def test_a_draining_service_ends_its_work_and_takes_no_more(stack: Stack, wake_up: Callable[[str], None], service: str) -> None:
    control = stack.control(service)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(answer_of, stack, ignore_eos=True, max_tokens=80)
        stack.wait_for_load(1)
        try:
            at_once = control.Drain(control_pb2.DrainRequest(timeout_s=0))
            _refused(stack)
            drained = control.Drain(control_pb2.DrainRequest(timeout_s=60))
            assert running.result()["usage"]["completion_tokens"] == 80
            assert _state(stack, service) == common_pb2.SERVER_STATE_DRAINING
        finally:
            wake_up(service)
    assert (at_once.drained, at_once.num_live_requests) == (False, 1)
    assert (drained.drained, drained.num_live_requests) == (True, 0)
