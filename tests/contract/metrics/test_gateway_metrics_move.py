"""Each metric of the gateway that docs/metrics.md names moves as it says."""

from __future__ import annotations

import pytest
from support.fakes.frontend import MODEL
from support.fakes.gateway import client_of, gateway_client
from support.gateway_scenarios import (
    PREFIX,
    RESPONSES,
    ROUTE,
    a_batch,
    a_body_that_waits,
    a_chat_whose_span_nobody_takes,
    a_client_that_leaves,
    a_frontend_that_drains,
    a_model_that_is_not_there_yet,
    a_response_in_the_background,
    a_stream_that_fails,
    a_tenant_that_is_refused,
    keys_and_what_goes_wrong,
    responses_that_fail,
    seen,
    two_chats,
    two_engines,
)
from support.metrics import Case, check, documented, gauges, missing, several
from triptych_common import __version__
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

ALIAS = {"model_name": MODEL.name, "engine": "all"}
CASES = [
    *several(two_chats, {f"{PREFIX}_requests": 1}, route=ROUTE, status="200"),
    *several(two_chats, {f"{PREFIX}_requests": 1}, route=ROUTE, status="400"),
    *several(two_chats, {f"{PREFIX}_errors": 1}, route=ROUTE, code="invalid_value"),
    *several(
        two_chats,
        {f"{PREFIX}_request_seconds": 2, f"{PREFIX}_time_to_first_token_seconds": 1, f"{PREFIX}_inter_token_seconds": 2},
        route=ROUTE,
    ),
    *several(
        two_chats,
        {
            f"{PREFIX}_prompt_tokens": 7,
            f"{PREFIX}_cached_tokens": 2,
            f"{PREFIX}_completion_tokens": 3,
            f"{PREFIX}_cached_media_tokens": 1,
        },
    ),
    *several(two_chats, {f"{PREFIX}_media_tokens": 5}, modality="image"),
    *several(two_chats, {f"{PREFIX}_history_fields_ignored": 1}),
    *several(two_chats, {f"{PREFIX}_media_items": 1}, modality="image", encoder_cache="hit"),
    *several(a_stream_that_fails, {f"{PREFIX}_errors": 1, f"{PREFIX}_stream_errors": 1}, route=ROUTE, code="internal_error"),
    *several(responses_that_fail, {f"{PREFIX}_errors": 2, f"{PREFIX}_stream_errors": 2}, route=RESPONSES, code="internal_error"),
    *several(responses_that_fail, {f"{PREFIX}_errors": 1, f"{PREFIX}_stream_errors": 0}, route=RESPONSES, code="invalid_request"),
    *several(
        responses_that_fail, {f"{PREFIX}_errors": 1, f"{PREFIX}_stream_errors": 0}, route=RESPONSES, code="service_unavailable"
    ),
    *several(responses_that_fail, {f"{PREFIX}_requests": 1}, route=RESPONSES, status="400"),
    *several(responses_that_fail, {f"{PREFIX}_requests": 1}, route=RESPONSES, status="503"),
    *several(a_client_that_leaves, {f"{PREFIX}_requests_aborted": 1}, route=ROUTE),
    *gauges(a_client_that_leaves, {f"{PREFIX}_requests_in_flight": (1, 2, 1)}),
    *gauges(a_response_in_the_background, {f"{PREFIX}_background_responses": (0, 1, 0)}),
    *gauges(a_batch, {f"{PREFIX}_running_batches": (0, 1, 0)}),
    *gauges(a_body_that_waits, {f"{PREFIX}_bodies_waiting": (0, 1, 0)}),
    *gauges(a_model_that_is_not_there_yet, {f"{PREFIX}_model_requests_waiting": (0, 1, 0)}, model_name="big"),
    *several(keys_and_what_goes_wrong, {f"{PREFIX}_access_refused": 1}, reason="wrong_key"),
    *several(keys_and_what_goes_wrong, {f"{PREFIX}_api_keys_reload_failures": 1}),
    *gauges(keys_and_what_goes_wrong, {f"{PREFIX}_api_keys_current": (1, 0, 1)}),
    *several(keys_and_what_goes_wrong, {f"{PREFIX}_rate_store_failures": lambda number: number >= 1}),
    *several(keys_and_what_goes_wrong, {f"{PREFIX}_audit_lines_lost": lambda number: number >= 1}),
    *several(
        a_tenant_that_is_refused,
        {f"{PREFIX}_tenant_requests": 2, f"{PREFIX}_tenant_prompt_tokens": 7, f"{PREFIX}_tenant_completion_tokens": 3},
        tenant="acme",
    ),
    *several(a_tenant_that_is_refused, {f"{PREFIX}_tenant_refused": 1}, tenant="acme", resource="requests"),
    *several(a_chat_whose_span_nobody_takes, {f"{PREFIX}_spans_dropped": 1}),
    *gauges(a_frontend_that_drains, {f"{PREFIX}_frontend_ready": (1, 0, 1)}),
    *gauges(a_frontend_that_drains, {"triptych_build_info": (1, 1, 1)}, service="gateway", version=__version__),
    *gauges(two_engines, {"triptych_model_info": (1, 1, 1)}, service="gateway", model_name=MODEL.name),
    *gauges(a_model_that_is_not_there_yet, {"triptych_model_info": (1, 1, 1)}, service="gateway", model_name="big"),
    *gauges(
        two_engines,
        {
            "vllm:num_requests_running": (4, 0, 0),
            "vllm:num_requests_waiting": (5, 0, 0),
            "vllm:kv_cache_usage_perc": (0.5, 0, 0),
        },
        **ALIAS,
    ),
    *gauges(two_engines, {"vllm:cache_config_info": (1, 1, 1)}, block_size="16", num_gpu_blocks="200", engine="all"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented("gateway")[case.metric])


async def test_each_documented_metric_has_a_case_and_no_other_is_exported() -> None:
    assert not missing(CASES, "gateway")
    async with gateway_client() as client:
        exported = await seen(client)
    assert {name for name in exported.kinds if not name.startswith(("process_", "python_"))} == documented("gateway").keys()
    assert exported.values[f"{PREFIX}_spans_dropped_total", frozenset()] == 0, "tracing is off"


async def test_without_a_frontend_the_engines_are_unknown() -> None:
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",)))
    async with app.router.lifespan_context(app), client_of(app) as client:
        exported = await seen(client)
    assert "vllm:num_requests_running" in exported.kinds
    assert "vllm:num_requests_running" not in exported.labels
