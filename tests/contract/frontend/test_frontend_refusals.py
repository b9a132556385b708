"""Calls that end in an error: what the frontend refuses, and what the engine does."""

from __future__ import annotations

import itertools

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import chat_request, frontend_bench, ids, joined
from support.builders.tokenizer import MAX_MODEL_LEN
from support.fakes.engine import fails
from triptych.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    NeverFitsError,
    QueueFullError,
    TriptychError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.status import to_request_error
from triptych_common.rpc.structs import to_struct

Options = generation_pb2.GenerationOptions


Sampling = common_pb2.SamplingParams


CompleteRequest = generation_pb2.CompleteRequest


TEXT = "Hello there, 😀 how are you? I am fine. The end of the story."


async def collect(call) -> list:
    return [response async for response in call]


async def error_of(call) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await collect(call)
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        QueueFullError("the queue is full", limit=4, value=5, retry_after_s=1.5),
        NeverFitsError("too large", field="prompt", limit=10, value=11),
    ],
)
async def test_the_engines_refusal_is_the_calls_status(error: TriptychError) -> None:
    async with frontend_bench(fails(to_request_error(error))) as bench:
        caught = await error_of(bench.chat(chat_request(options=Options(n=2))))
    assert type(caught) is type(error)
    assert (caught.message, caught.field, caught.limit, caught.value, caught.retry_after_s) == (
        error.message,
        error.field,
        error.limit,
        error.value,
        error.retry_after_s,
    )


async def test_one_failing_choice_ends_the_others() -> None:
    numbers = itertools.count()

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        if next(numbers) == 1:
            return list(fails(to_request_error(QueueFullError("the queue is full")))(request))
        return [engine_pb2.SequenceOutput(token_ids=ids("Hello"))]  # and no end

    async with frontend_bench(script) as bench:
        await error_of(bench.chat(chat_request(options=Options(n=3))))
        await bench.engine.until(lambda: not bench.engine.live)
        assert bench.engine.aborted == [request.request_id for request in bench.engine.requests]


def _message(role: str = "user", *parts: generation_pb2.ContentPart) -> generation_pb2.ChatMessage:
    return generation_pb2.ChatMessage(role=role, content=parts or [generation_pb2.ContentPart(text="Hi")])


_SCHEMA = common_pb2.Constraint(json_schema='{"properties": {"a": {"type": "text"}}}')
_IMAGE = generation_pb2.ContentPart(media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=b"x"))


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": [_message("king")]}, "messages[0].role", "king"),
        ({"messages": [_message(), _message("user", _IMAGE)]}, "messages[1].content[0].media", "text only"),
        ({"messages": [_message("user", generation_pb2.ContentPart())]}, "messages[0].content[0]", "empty"),
        ({"messages": [_message("tool")]}, "messages", "tools are not supported: Hi"),
        ({"template_kwargs": to_struct({"style": float("nan")})}, "template_kwargs", "NaN"),
        ({"template_kwargs": to_struct({"chat_template": "x"})}, "template_kwargs", "chat_template"),
        ({"template_kwargs": to_struct({"tools": [{"type": "function"}]})}, "template_kwargs", "must not set 'tools'"),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
        ({"options": Options(sampling=Sampling(temperature=-1))}, "options.sampling.temperature", "-1"),
        ({"options": Options(constraint=common_pb2.Constraint(regex="(a"))}, "options.constraint.regex", "unclosed group"),
        ({"options": Options(constraint=_SCHEMA)}, "options.constraint.json_schema", "at #/properties/a/type: must be"),
        ({"options": Options(constraint=common_pb2.Constraint())}, "options.constraint", "must have one of json_schema"),
    ],
)
async def test_bad_chats_are_refused_by_field(fields: dict, field: str, message: str) -> None:
    async with frontend_bench() as bench:
        error = await error_of(bench.chat(chat_request(**fields)))
        assert not bench.engine.requests
    assert type(error) is InvalidRequestError
    assert error.field == field
    assert message in error.message


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (CompleteRequest(), "prompt"),
        (CompleteRequest(text=""), "prompt"),
        (CompleteRequest(token_ids=generation_pb2.TokenIds()), "prompt"),
        (CompleteRequest(token_ids=generation_pb2.TokenIds(ids=[5, 100_000])), "token_ids.ids[1]"),
        (CompleteRequest(text="x" * 5001), "text"),
    ],
)
async def test_bad_prompts_are_refused_by_field(request_: CompleteRequest, field: str) -> None:
    async with frontend_bench(max_prompt_chars=5000) as bench:
        error = await error_of(bench.complete(request_))
    assert type(error) is InvalidRequestError
    assert error.field == field


async def test_unknown_models_are_not_found_and_the_known_one_is_named() -> None:
    async with frontend_bench(served_model_name="known") as bench:
        error = await error_of(bench.chat(chat_request(model="other")))
        assert await collect(bench.chat(chat_request(model="known")))
        models = (await bench.generation.ListModels(generation_pb2.ListModelsRequest())).models
    assert isinstance(error, ModelNotFoundError)
    assert "known" in error.message
    assert [(model.name, model.max_model_len) for model in models] == [("known", MAX_MODEL_LEN)]


async def test_prompt_and_output_must_fit_the_context() -> None:
    async with frontend_bench(max_model_len=50) as bench:
        long_prompt = await error_of(bench.complete(CompleteRequest(text="\n" * 60)))
        options = Options(sampling=Sampling(max_tokens=41))
        long_output = await error_of(bench.complete(CompleteRequest(text="\n" * 10, options=options)))
    assert isinstance(long_prompt, ContextLengthError)
    assert (long_prompt.limit, long_prompt.value, long_prompt.field) == ("50", "60", "prompt")
    assert isinstance(long_output, ContextLengthError)
    assert (long_output.limit, long_output.value, long_output.field) == ("50", "51", "options.sampling.max_tokens")


async def test_calls_beyond_the_limit_are_refused_at_once() -> None:
    async with frontend_bench(max_live_requests=1) as bench:
        await bench.engine.pause()
        first = bench.chat(chat_request())
        await bench.engine.until(lambda: bool(bench.engine.live))
        error = await error_of(bench.chat(chat_request()))
        await bench.engine.resume()
        assert joined(await collect(first)) == "Hello there"
    assert isinstance(error, QueueFullError)
    assert error.retry_after_s
