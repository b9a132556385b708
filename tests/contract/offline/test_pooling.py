"""`LLM.encode`, `embed`, `classify` and `score` against fakes over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.fakes.frontend import FakeFrontend
from support.grpc_server import serving
from support.mock import mock_server, script
from triptych import LLM, GenerationError, PoolingParams
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych.v1 import common_pb2, generation_pb2


async def in_thread(address: str, use: Callable[[LLM], Any]) -> Any:
    def run() -> Any:
        with LLM(address=address) as llm:
            return use(llm)

    return await asyncio.to_thread(run)


async def ask(use: Callable[[LLM], Any], frontend: FakeFrontend | None = None) -> tuple[Any, FakeFrontend]:
    """What a function returns, and the frontend with its requests."""
    frontend = frontend or FakeFrontend()
    async with serving(frontend.register) as address:
        return await in_thread(address, use), frontend


def num_inputs(frontend: FakeFrontend) -> list[int]:
    return [len(getattr(request, "inputs", ()) or request.documents) for request in frontend.pooling_requests]


async def test_vectors_in_order_and_many_inputs_in_one_call() -> None:
    outputs, frontend = await ask(lambda llm: llm.embed([f"text {index}" for index in range(100)], use_tqdm=False))
    # The fake's vectors hold the index of the input within its call.
    sizes = num_inputs(frontend)
    assert sum(sizes) == len(outputs) == 100
    assert max(sizes) <= 32
    assert len(sizes) < 50
    texts = [one.text for request in frontend.pooling_requests for one in request.inputs]
    assert sorted(texts) == sorted(f"text {index}" for index in range(100))
    where = {one.text: index for request in frontend.pooling_requests for index, one in enumerate(request.inputs)}
    assert [output.outputs.embedding for output in outputs] == [[where[f"text {index}"], 0.5] for index in range(100)]


async def test_tasks_and_parameters_of_encode() -> None:
    params = PoolingParams(dimensions=2, truncate_prompt_tokens=-1, use_activation=False)
    (output,), frontend = await ask(lambda llm: llm.encode([[1, 2, 3]], params, pooling_task="token_embed", use_tqdm=False))
    assert output.outputs.data.shape == (2, 2)
    assert output.outputs.data.dtype == np.float32
    assert output.prompt_token_ids == [1, 2, 3]
    (request,) = frontend.pooling_requests
    assert (request.task, request.dimensions, request.truncate_to, request.normalize) == (common_pb2.TASK_TOKEN_EMBED, 2, 0, False)
    assert request.HasField("truncate_to")
    (output,), frontend = await ask(lambda llm: llm.encode("text", pooling_task="classify", use_tqdm=False))
    assert output.outputs.data.tolist() == [0.25, 0.75]
    with pytest.raises(InvalidRequestError, match="pooling_task 'reward' is not one of embed, token_embed, classify"):
        await ask(lambda llm: llm.encode("text", pooling_task="reward", use_tqdm=False))


async def test_classes_have_their_labels() -> None:
    outputs, _ = await ask(lambda llm: llm.classify(["a", "b"], use_tqdm=False))
    assert [(output.outputs.probs, output.outputs.labels) for output in outputs] == [([0.25, 0.75], ["no", "yes"])] * 2
    assert outputs[0].outputs.num_classes == 2


async def test_one_text_is_scored_with_many() -> None:
    outputs, frontend = await ask(lambda llm: llm.score("query", ["a", "bb", "ccc"], use_tqdm=False))
    assert [output.outputs.score for output in outputs] == [1, 2, 3]
    assert all([query.text for query in request.queries] == ["query"] for request in frontend.pooling_requests)
    outputs, frontend = await ask(lambda llm: llm.score(["x", "y"], ["a", "bb"], use_tqdm=False))
    pairs = [
        (query.text, document.text)
        for request in frontend.pooling_requests
        for query, document in zip(request.queries, request.documents, strict=True)
    ]
    assert sorted(pairs) == [("x", "a"), ("y", "bb")]
    with pytest.raises(ValueError, match="text_1 has 2 texts and text_2 has 3"):
        await ask(lambda llm: llm.score(["x", "y"], ["a", "b", "c"], use_tqdm=False))


async def test_one_bad_input_of_a_call_fails_alone() -> None:
    bad = script(fault={"error": {"code": 3, "message": "too long"}})

    def use(llm: LLM) -> Any:
        # The mock reads the script of a call's first text.
        with pytest.raises(GenerationError, match=r"prompts\[0\]: too long"):
            llm.embed([bad, "a", "b"], use_tqdm=False)
        return llm.embed([bad, "a", "b"], use_tqdm=False, raise_on_error=False)

    async with mock_server() as mock:
        outputs = await in_thread(mock.address, use)
    assert [getattr(output, "index", None) for output in outputs] == [0, None, None]


async def test_a_model_that_does_not_embed_says_so() -> None:
    frontend = FakeFrontend()
    frontend.pooling_error = UnimplementedError("fake/model does not embed; it does: generate")
    with pytest.raises(GenerationError, match="does not embed") as raised:
        await ask(lambda llm: llm.embed("text", use_tqdm=False), frontend)
    assert isinstance(raised.value.__cause__, UnimplementedError)


async def test_media_are_refused_by_name() -> None:
    with pytest.raises(GenerationError, match="have no multi_modal_data"):
        await ask(lambda llm: llm.embed({"prompt": "a", "multi_modal_data": {"image": b"file"}}, use_tqdm=False))


async def test_interrupted_inputs_are_cancelled() -> None:
    """The source of inputs breaks while the first ones are computed."""
    frontend = FakeFrontend()
    frontend.pooling_gate = asyncio.Event()

    def inputs() -> Any:
        yield "one"
        while not frontend.pooling_requests:
            pass
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        await ask(lambda llm: llm.embed(inputs(), use_tqdm=False), frontend)
    await frontend.was_cancelled.wait()
    assert isinstance(frontend.pooling_requests[0], generation_pb2.EmbedRequest)
