"""Each field of chat and completions has its effect, or gets its 400. A field that a schema gains needs a row in the table.

The effect is what the frontend receives, or what the answer has.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from support.fakes.frontend import FakeFrontend, Script, text_deltas
from support.fakes.gateway import CHAT, COMPLETION, events_of, gateway_client
from support.request_fields import CHAT_FIELDS, COMPLETION_FIELDS, Answered, Json, Label, Refused, Row
from triptych.v1 import generation_pb2
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.schema import NoOp

CHAT_ROUTE = ("/v1/chat/completions", CHAT, ChatCompletionRequest, CHAT_FIELDS)
COMPLETION_ROUTE = ("/v1/completions", COMPLETION, CompletionRequest, COMPLETION_FIELDS)
ROUTES = (CHAT_ROUTE, COMPLETION_ROUTE)
CASES = [pytest.param(path, base, name, row, id=f"{path} {name}") for path, base, _, rows in ROUTES for name, row in rows.items()]
Token, Top = generation_pb2.TokenLogprob, generation_pb2.TopLogprob


@pytest.mark.parametrize(("path", "base", "schema", "rows"), ROUTES)
def test_every_field_has_a_row(path: str, base: Json, schema: type[GenerationRequest], rows: dict[str, Row]) -> None:
    assert set(rows) == set(schema.model_fields)
    for name, info in schema.model_fields.items():
        is_refused = any(isinstance(mark, NoOp) for mark in info.metadata)
        assert is_refused == isinstance(rows[name], Refused), name


@pytest.mark.parametrize(("path", "base", "name", "row"), CASES)
async def test_a_field_has_its_effect_or_its_400(path: str, base: Json, name: str, row: Row) -> None:
    if isinstance(row, Refused):
        _, response = await sent(path, base | {name: row.value})
        assert (response["error"]["param"], response["error"]["code"]) == (name, "unsupported_parameter")
        request, _ = await sent(path, base | {name: row.taken})
        assert request == (await sent(path, base))[0]
        return
    others = {} if isinstance(row, Label) else row.others
    request, answer = await sent(path, base | others | {name: row.value})
    old_request, old_answer = await sent(path, base | others)
    if isinstance(row, Label):
        assert request == old_request
    elif isinstance(row, Answered):
        assert at(answer, row.path) == row.expected
        assert at(old_answer, row.path) == row.without
    else:
        assert at(request, row.path) == row.expected
        assert name in base or at(old_request, row.path) != row.expected


async def sent(path: str, body: Json) -> tuple[Json, Json]:
    """What the frontend received, and the answer. Of a stream, the last chunk."""
    frontend = FakeFrontend()
    frontend.script = answers
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=body)
    request = MessageToDict(frontend.request, preserving_proto_field_name=True) if frontend.requests else {}
    if response.status_code != 200:
        return request, response.json()
    if body.get("stream"):
        return request, orjson.loads(events_of(response.content)[-2]) | {"object": "chunk"}
    return request, response.json() | {"object": "whole"}


def answers(request: Any) -> Script:
    """An answer with all that the frontend was asked for."""
    sampling, options = request.options.sampling, request.options
    entry = Token(token_id=5, token="a", utf8=b"a", logprob=-1, top=[Top(token_id=6, token="b", utf8=b"b", logprob=-0.5)])
    if not sampling.logprobs:
        entry.ClearField("top")
    prompt = [Token(token_id=4, token="H"), Token(token_id=9, token="i", logprob=-2, rank=3)]
    prompt[1].top.add(token_id=8, token="o", logprob=-0.5)
    choices = []
    for index in range(options.n or 1):
        deltas = text_deltas("ab", index=index)
        if isinstance(request, generation_pb2.ChatRequest):
            deltas.insert(0, generation_pb2.ChoiceDelta(index=index, reasoning="hm"))
        if sampling.HasField("prompt_logprobs") and not index:
            deltas[0].prompt_logprobs.extend(prompt)
        if sampling.HasField("logprobs"):
            deltas[-1].logprobs.append(entry)
        deltas[-1].token_ids.extend([5, 6] if options.return_token_ids else [])
        choices.append(deltas)
    return Script(choices)


def at(value: Any, path: str) -> Any:
    """The value at a path of names and positions; None if there is none."""
    for name in path.split("."):
        value = (value or [None])[int(name)] if isinstance(value, list) else (value or {}).get(name)
    return value
