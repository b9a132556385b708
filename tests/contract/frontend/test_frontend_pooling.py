"""Embed, Score and Classify of the frontend, in front of a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.builders.frontend import Bench, chat_request, frontend_bench, hello
from support.builders.pooling import a_classifier, an_embedder, texts
from support.fakes.engine import FakeEngine
from support.grpc_server import serving
from support.pooling_reference import sentence_transformer
from support.waiting import until
from transformers import AutoTokenizer
from triptych.errors import (
    ContextLengthError,
    InvalidRequestError,
    ServiceUnavailableError,
    TriptychError,
    UnimplementedError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, control_pb2, generation_pb2
from triptych_common.model.pooling import served_model

Input = generation_pb2.EmbedInput


@asynccontextmanager
async def a_frontend(model: Path, **settings: Any) -> AsyncIterator[Bench]:
    info, _ = served_model(model, model.name, None, "auto")
    async with frontend_bench(model=model, engine_model=info, **settings) as bench:
        yield bench


def inputs(*some: str) -> list[Input]:
    return [Input(text=text) for text in some]


async def refusal(call: grpc.aio.UnaryUnaryCall) -> TriptychError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return from_rpc_error(failure.value)


@pytest.fixture
def embedder(tmp_path: Path) -> Path:
    return an_embedder(tmp_path, "bert")


async def test_vectors_in_the_order_of_the_inputs(embedder: Path) -> None:
    some = [Input(text="w0 w1"), Input(token_ids=generation_pb2.TokenIds(ids=[7])), Input(text="w2")]
    async with a_frontend(embedder) as bench:
        answer = await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=some))
        packed = await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=some, packed=True))
    # [CLS] is 2, [SEP] 3, w0 5.
    assert [list(one.values[:2]) for one in answer.embeddings] == [[2 + 5 + 6 + 3, 4], [7, 1], [2 + 7 + 3, 3]]
    assert answer.usage.prompt_tokens == 8
    assert np.frombuffer(packed.packed.inline, np.float32).tolist() == [value for one in answer.embeddings for value in one.values]
    assert list(packed.packed_vectors) == [1, 1, 1]


async def test_the_models_prompt_and_lower_case(embedder: Path) -> None:
    (embedder / "config_sentence_transformers.json").write_text('{"prompts": {"a": "W9 "}, "default_prompt_name": "a"}')
    (embedder / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    some = ["W0 [SEP]", ""]
    reference = sentence_transformer(embedder).tokenizer(["W9 " + text for text in some])["input_ids"]
    async with a_frontend(embedder) as bench:
        await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs(*some)))
        (sent,) = bench.engine.embeds
    assert [list(one.prompt_token_ids) for one in sent.requests] == reference == [[2, 14, 5, 3, 3], [2, 14, 3]]


async def test_vectors_of_tokens(embedder: Path) -> None:
    request = generation_pb2.EmbedRequest(inputs=inputs("w0 w1", "w2"), task=common_pb2.TASK_TOKEN_EMBED)
    async with a_frontend(embedder) as bench:
        answer = await bench.generation.Embed(request)
    assert [one.num_vectors for one in answer.embeddings] == [4, 3]
    assert [one.values[::32] for one in answer.embeddings] == [[2, 5, 6, 3], [2, 7, 3]]


async def test_many_inputs_are_sent_in_batches_and_a_few_at_a_time(embedder: Path) -> None:
    some = texts(1000)
    async with a_frontend(embedder) as bench:
        bench.engine.embed_gate = asyncio.Semaphore(0)
        call = bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs(*some)))
        await until(lambda: len(bench.engine.embeds) == 2)
        await asyncio.sleep(0.05)
        assert len(bench.engine.embeds) == 2
        for _ in some:
            bench.engine.embed_gate.release()
        answer = await call
    assert [len(one.requests) for one in bench.engine.embeds] == [256, 256, 256, 232]
    assert [one.values[1] for one in answer.embeddings] == [len(text.split()) + 2 for text in some]


async def test_a_long_input_is_named_or_cut(embedder: Path) -> None:
    some = inputs(*["w0"] * 7, "w1 " * 50, "w2")
    async with a_frontend(embedder) as bench:
        error = await refusal(bench.generation.Embed(generation_pb2.EmbedRequest(inputs=some)))
        assert not bench.engine.embeds
        cut = await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=some, truncate_to=0))
        short = await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=some, truncate_to=3))
    assert isinstance(error, ContextLengthError)
    assert (error.field, error.limit, error.value) == ("inputs[7]", "40", "52")
    assert cut.embeddings[7].values[:2] == [2 + 38 * 6 + 3, 40]
    assert short.embeddings[7].values[:2] == [2 + 6 + 3, 3]


@pytest.mark.parametrize("side", ["left", "right"])
async def test_inputs_are_cut_on_the_side_that_the_checkpoint_says(tmp_path: Path, side: str) -> None:
    path = a_classifier(tmp_path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "truncation_side": side}))
    tokenizer = AutoTokenizer.from_pretrained(str(path))
    text, pairs = "w0 w1 w2 w3 w4", [("w0 w1", "w2 w3 w4 w5 w6"), ("w1 w2 w3 w4 w5 w6", "w7"), ("w1 w2 w3", "w4 w5 w6")]
    async with a_frontend(path) as bench:
        some = [*inputs(text), Input(token_ids=generation_pb2.TokenIds(ids=[5, 6, 7, 8, 9]))]
        for limit in (4, 1):
            await bench.generation.Classify(generation_pb2.ClassifyRequest(inputs=some, truncate_to=limit))
        first, second = (inputs(*side_of) for side_of in zip(*pairs, strict=True))
        await bench.generation.Score(generation_pb2.ScoreRequest(queries=first, documents=second, truncate_to=7))
        cut, tiny, scored = ([list(one.prompt_token_ids) for one in sent.requests] for sent in bench.engine.embeds)
    assert cut[0] == tokenizer(text, truncation=True, max_length=4).input_ids
    assert cut[1] == ([6, 7, 8, 9] if side == "left" else [5, 6, 7, 8])
    assert [len(one) for one in tiny] == [1, 1]
    assert scored == [tokenizer(*pair, truncation=True, max_length=7).input_ids for pair in pairs]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "inputs"),
        ({"inputs": [Input()]}, "inputs[0]"),
        ({"inputs": [Input(text="w0"), Input(token_ids=generation_pb2.TokenIds())]}, "inputs[1]"),
        ({"inputs": [Input(token_ids=generation_pb2.TokenIds(ids=[1, 999]))]}, "inputs[0][1]"),
        ({"inputs": inputs("w0"), "dimensions": 8}, "dimensions"),
        ({"inputs": inputs("w0"), "truncate_to": 41}, "truncate_to"),
        ({"inputs": inputs("w0"), "task": common_pb2.TASK_CLASSIFY}, "task"),
    ],
)
async def test_bad_requests_are_named(embedder: Path, fields: dict[str, Any], field: str) -> None:
    async with a_frontend(embedder) as bench:
        error = await refusal(bench.generation.Embed(generation_pb2.EmbedRequest(**fields)))
    assert isinstance(error, InvalidRequestError)
    assert error.field == field


async def test_each_kind_of_model_refuses_the_others_calls(embedder: Path) -> None:
    async with a_frontend(embedder) as bench:
        chat = await refusal(bench.generation.Chat(chat_request()))
        classify = await refusal(bench.generation.Classify(generation_pb2.ClassifyRequest(inputs=inputs("w0"))))
    async with frontend_bench() as bench:
        embed = await refusal(bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs("w0"))))
    assert all(isinstance(error, UnimplementedError) for error in (chat, classify, embed))
    assert "does not generate; it does: embed, token_embed, score" in chat.message


async def test_scores_of_an_embedder_are_cosines(embedder: Path) -> None:
    request = generation_pb2.ScoreRequest(queries=inputs("w0"), documents=inputs("w0", "w1 w2 w3"))
    async with a_frontend(embedder) as bench:
        answer = await bench.generation.Score(request)
        # The fake does not normalize.
        assert bench.engine.embeds[0].pooling.normalize
    assert list(answer.scores) == [10 * 10 + 3 * 3, 10 * 26 + 3 * 5]


async def test_pairs_for_a_cross_encoder(tmp_path: Path) -> None:
    request = generation_pb2.ScoreRequest(queries=inputs("w0 w1"), documents=inputs("w2", "w3 w4 w5 w6"), truncate_to=7)
    async with a_frontend(a_classifier(tmp_path)) as bench:
        await bench.generation.Score(request)
        uneven = generation_pb2.ScoreRequest(queries=inputs("w0", "w1"), documents=inputs("w2", "w2", "w2"))
        error = await refusal(bench.generation.Score(uneven))
        (sent,) = bench.engine.embeds
    assert [list(one.prompt_token_ids) for one in sent.requests] == [[2, 5, 6, 3, 7, 3], [2, 5, 6, 3, 8, 9, 3]]
    assert list(sent.second_text_starts) == [4, 4]
    assert error.field == "queries"


async def test_classes(tmp_path: Path) -> None:
    request = generation_pb2.ClassifyRequest(inputs=inputs("w0"), activation=False)
    async with a_frontend(a_classifier(tmp_path)) as bench:
        answer = await bench.generation.Classify(request)
        assert not bench.engine.embeds[0].pooling.activation
    assert [list(one.values) for one in answer.classifications] == [[3]]
    assert list(answer.labels) == ["LABEL_0"]


@pytest.mark.usefixtures("short_grace")
async def test_another_engine_takes_over_when_one_dies_or_refuses(embedder: Path) -> None:
    info, _ = served_model(embedder, embedder.name, None, "auto")
    first, second = FakeEngine(info, hello()), FakeEngine(info, hello())
    first.embed_gate = asyncio.Semaphore(0)
    async with AsyncExitStack() as stack:
        dying = await stack.enter_async_context(AsyncExitStack())
        addresses = (
            await dying.enter_async_context(serving(first.register)),
            await stack.enter_async_context(serving(second.register)),
        )
        bench = await stack.enter_async_context(frontend_bench(model=embedder, engine_model=info, engine_addresses=addresses))
        await until(lambda: len(bench.frontend._engines.ready) == 2)
        some = texts(1000)
        call = bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs(*some)))
        await until(lambda: bool(first.embeds))
        await dying.aclose()
        answer = await call
        assert [one.values[1] for one in answer.embeddings] == [len(text.split()) + 2 for text in some]
        await second.go_down()
        error = await refusal(bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs("w0"))))
        assert isinstance(error, ServiceUnavailableError)
        assert not bench.frontend.num_live_requests


async def test_a_drain_lets_a_call_in_flight_end_and_refuses_new_ones(embedder: Path) -> None:
    some = texts(600)  # three engine calls, of which one is sent during the drain
    async with a_frontend(embedder) as bench:
        bench.engine.embed_gate = asyncio.Semaphore(0)
        call = bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs(*some)))
        await until(lambda: len(bench.engine.embeds) == 2)
        assert not (await bench.control.Drain(control_pb2.DrainRequest(timeout_s=0))).drained
        error = await refusal(bench.generation.Embed(generation_pb2.EmbedRequest(inputs=inputs("w0"))))
        assert len(bench.engine.embeds) == 2
        drain = bench.control.Drain(control_pb2.DrainRequest(timeout_s=30))
        for _ in range(3):
            bench.engine.embed_gate.release()
        answer = await call
        assert (await drain).drained
    assert isinstance(error, ServiceUnavailableError)
    assert "draining" in error.message
    assert [one.values[1] for one in answer.embeddings] == [len(text.split()) + 2 for text in some]
