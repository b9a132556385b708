"""Chunks are written as bytes; they must be the JSON that a careful writer would have made."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.chat.events import ChatWriter
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.events import CompletionWriter
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.apis.openai_events import OpenAiWriter
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import to_api_error

WRITERS = [ChatWriter, CompletionWriter]


def a_writer(kind: type[OpenAiWriter], model: str = "m", **fields: Any) -> OpenAiWriter:
    """The writer of an answer to a request with these fields."""
    if kind is ChatWriter:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        return ChatWriter("r1", "fp_1", ChatCompletionRequest.model_validate(body | fields))
    return CompletionWriter("r1", "fp_1", CompletionRequest.model_validate({"model": model, "prompt": "Hi"} | fields))


def usage_at_the_end(is_wanted: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": is_wanted}}


texts = st.text(st.characters(codec="utf-8"), min_size=1)


def chunk_of(event: bytes) -> dict[str, object]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert b"\n" not in event[:-2]
    chunk: dict[str, object] = orjson.loads(event[6:])
    return chunk


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("include_usage", [False, True])
@given(text=texts, index=st.integers(0, 200), model=texts)
def test_plain_chunk(kind: type[OpenAiWriter], include_usage: bool, text: str, index: int, model: str) -> None:
    writer = a_writer(kind, model, **usage_at_the_end(include_usage))
    chunk = chunk_of(writer.delta(index, generation_pb2.ChoiceDelta(text=text)))
    (choice,) = chunk.pop("choices")  # type: ignore[misc]
    said = {"delta": {"content": text}} if kind is ChatWriter else {"text": text}
    assert choice == {"index": index, "logprobs": None, "finish_reason": None} | said
    assert chunk.pop("created")
    assert ("usage" in chunk) == include_usage
    chunk.pop("usage", None)
    assert chunk == {
        "id": kind.id_prefix + "r1",
        "object": kind.chunk_object_name,
        "model": model,
        "system_fingerprint": "fp_1",
    }


@pytest.mark.parametrize("kind", WRITERS)
@given(text=texts)
def test_plain_and_detailed_chunks_agree(kind: type[OpenAiWriter], text: str) -> None:
    delta = generation_pb2.ChoiceDelta(text=text)
    plain = chunk_of(a_writer(kind).delta(0, delta))
    detailed = chunk_of(a_writer(kind, logprobs=True if kind is ChatWriter else 0, return_token_ids=True).delta(0, delta))
    detailed["choices"][0].pop("token_ids")  # type: ignore[index]
    assert {**plain, "created": 0} == {**detailed, "created": 0}


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_new_is_no_event(kind: type[OpenAiWriter]) -> None:
    assert a_writer(kind).delta(0, generation_pb2.ChoiceDelta()) == b""
    assert a_writer(kind, return_token_ids=True).delta(0, generation_pb2.ChoiceDelta()) == b""


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (common_pb2.FINISH_REASON_STOP, "stop"),
        (common_pb2.FINISH_REASON_LENGTH, "length"),
    ],
)
def test_finish_reasons(reason: common_pb2.FinishReason, name: str) -> None:
    chunk = chunk_of(a_writer(ChatWriter).delta(0, generation_pb2.ChoiceDelta(finish_reason=reason)))
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": name, "stop_reason": None}]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_ends_with_done(kind: type[OpenAiWriter], include_usage: bool) -> None:
    writer = a_writer(kind, **usage_at_the_end(include_usage))
    *events, rest = writer.closing(Cost()).removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    assert rest == b""
    assert len(events) == include_usage
    error = to_api_error(ServiceUnavailableError("the engine\nis away"))
    event, done, rest = writer.failure(error).split(b"\n\n")
    assert (event, done, rest) == (b"data: " + error.body, b"data: [DONE]", b"")
