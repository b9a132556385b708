"""Errors of the frontend, and a frontend that is away, as HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from support.fakes.frontend import FakeFrontend, Script, fails, running, text_deltas
from support.fakes.gateway import CHAT, COMPLETION, client_of, events_of, gateway_client
from triptych.errors import (
    ContextLengthError,
    DeadlineExceededError,
    DuplicateRequestError,
    InvalidRequestError,
    NeverFitsError,
    PermissionDeniedError,
    QueueFullError,
    RequestAbortedError,
    ServiceUnavailableError,
    TriptychError,
    UnauthenticatedError,
    UnimplementedError,
)
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

ROWS: list[tuple[TriptychError, int, str]] = [
    (InvalidRequestError("bad", field="options.sampling.top_p"), 400, "invalid_request"),
    (ContextLengthError("2100 > 2048", field="messages"), 400, "context_length_exceeded"),
    (NeverFitsError("needs 9 blocks of 8"), 400, "kv_cache_capacity_exceeded"),
    (UnimplementedError("a text-only model"), 400, "unsupported"),
    (DuplicateRequestError("id in use"), 409, "duplicate_request"),
    (QueueFullError("64 wait", retry_after_s=1.2), 429, "queue_full"),
    (RequestAbortedError("aborted"), 499, "aborted"),
    (UnauthenticatedError("no such key"), 401, "invalid_api_key"),
    (PermissionDeniedError("not this model"), 403, "permission_denied"),
    (DeadlineExceededError("too late"), 504, "deadline_exceeded"),
    (ServiceUnavailableError("the engine is away"), 503, "service_unavailable"),
    (TriptychError("broken"), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), ROWS, ids=[row[2] for row in ROWS])
@pytest.mark.parametrize("stream", [False, True])
async def test_error_of_the_frontend(stream: bool, error: TriptychError, status: int, code: str) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(error)
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert response.status_code == status
    body = response.json()["error"]
    assert (body["code"], body["message"]) == (code, error.message)
    assert ("retry-after" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("options.sampling.top_p", "top_p"),
        ("sampling.logit_bias", "logit_bias"),
        ("options.stop[1]", "stop[1]"),
        ("template_kwargs", "chat_template_kwargs"),
        ("", None),
    ],
)
async def test_param_is_the_rest_name_of_the_field(field: str, param: str | None) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InvalidRequestError("bad", field=field))
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.json()["error"]["param"] == param


async def test_the_message_has_the_rest_name_too() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InvalidRequestError("options.sampling.logprobs must be in [0, 20]", field="options.sampling.logprobs"))
    async with gateway_client(frontend) as client:
        chat = (await client.post("/v1/chat/completions", json=CHAT)).json()["error"]
        completion = (await client.post("/v1/completions", json=COMPLETION)).json()["error"]
    assert (chat["param"], chat["message"]) == ("top_logprobs", "top_logprobs must be in [0, 20]")
    assert (completion["param"], completion["message"]) == ("logprobs", "logprobs must be in [0, 20]")


@pytest.mark.parametrize("sent", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("field", ["options.sampling.max_tokens", "sampling.max_tokens"])
async def test_the_limit_has_the_name_that_was_sent(field: str, sent: str) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ContextLengthError("too long", field=field))
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {sent: 9000})
    assert response.json()["error"]["param"] == sent


async def test_retry_after_is_the_frontends() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(QueueFullError("64 wait", retry_after_s=11.2))
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.headers["retry-after"] == "12"


async def test_crash_of_the_frontends_code_tells_no_secrets() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(RuntimeError("password is 1234"))  # type: ignore[arg-type]
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert "1234" not in response.text


async def test_text_that_comes_with_an_abort_is_sent() -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("a", "b", finish_reason=common_pb2.FINISH_REASON_ABORT), text_deltas("c", "d", index=1)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 2})
    *events, error, done = events_of(response.content)
    choices = [choice for event in events for choice in orjson.loads(event)["choices"]]
    assert "b" in "".join(choice["delta"].get("content", "") for choice in choices if choice["index"] == 0)
    assert {choice["finish_reason"] for choice in choices if choice["index"] == 0} == {None}
    assert orjson.loads(error)["error"]["code"] == "service_unavailable"
    assert done == b"[DONE]"


class EndsTogether(FakeFrontend):
    """Sends the ends of all choices in one response, as an engine that is put to sleep causes it."""

    async def _play(self, *args: Any, **kwargs: Any) -> AsyncIterator[tuple[list[generation_pb2.ChoiceDelta], dict[str, Any]]]:
        ends, last = [], {}
        async for deltas, last in super()._play(*args, **kwargs):  # noqa: B007 - the last one is used
            if any(delta.finish_reason for delta in deltas):
                ends += deltas
            else:
                yield deltas, {}
        yield ends, last


@pytest.mark.parametrize("text", [["a"], []])
async def test_choices_that_are_aborted_together(text: list[str]) -> None:
    frontend = EndsTogether()
    abort = common_pb2.FINISH_REASON_ABORT
    frontend.script = Script([text_deltas(*text, "", index=index, finish_reason=abort) for index in range(2)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 2})
    assert response.status_code == (200 if text else 503)
    error = events_of(response.content)[-2] if text else response.content
    assert orjson.loads(error)["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "reason", "status", "code"),
    [
        ("", common_pb2.FINISH_REASON_ABORT, 503, "service_unavailable"),
        ("a", common_pb2.FINISH_REASON_ERROR, 500, "internal_error"),
    ],
)
async def test_a_choice_that_ends_badly_at_once_is_refused_with_a_status(
    text: str, reason: common_pb2.FinishReason, status: int, code: str, stream: bool
) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas(text, finish_reason=reason)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("aborted" in response.text) == (status == 503)
    assert ("retry-after" in response.headers) == (status == 503)


@pytest.mark.parametrize("stream", [False, True])
async def test_missing_choice_is_an_error(stream: bool) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream, "n": 2})
    assert b"finished 1 of 2 choices" in response.content


async def test_unreachable_frontend() -> None:
    async with running(FakeFrontend()) as address:
        pass
    app = create_app(GatewaySettings(frontend_addresses=(address,)))
    async with app.router.lifespan_context(app), client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
        models = await client.get("/v1/models")
        health = await client.get("/health")
        ready = await client.get("/ready")
    for refused in (response, models, ready):
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert address not in refused.text
    assert health.status_code == 200
    assert health.json() == {"status": "ok", "frontends": [{"ready": False, "state": "away"}]}


async def test_error_in_the_gateway_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password is 1234")

    monkeypatch.setattr("triptych_gateway.apis.chat.routes.chat_request", broken)
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=CHAT, headers={"origin": "http://localhost"})
    assert response.status_code == 500
    assert "1234" not in response.text
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"]
    assert response.headers["access-control-allow-origin"] == "http://localhost"
