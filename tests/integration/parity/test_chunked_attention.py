"""Llama 4: layers whose tokens attend within chunks, and a layer whose queries grow with the position. Tokens and log probabilities
equal transformers' in prompts and texts of several chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_request, save_random_model
from support.builders.newer_text_families import NEWER_FAMILIES
from support.drivers.engine import EngineDriver, Generated, assert_greedy
from transformers import AutoModelForCausalLM
from triptych_engine.runner.attention.paged import LayerShape

CHUNK = 16
LONG = [(i * 31) % 90 + 3 for i in range(150)]
#: Before, at and behind borders of chunks.
PROMPTS = [LONG[:n] for n in (150, 15, 16, 17, 3, 31, 65)]
#: On CPUs, with kernels and blocks of their own for the layers with chunks; with blocks that no kernel takes; in plain torch.
SETTINGS: list[dict[str, Any]] = [{}, {"block_size": 32}, {"attention": "torch", "block_size": 5}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("llama4"), NEWER_FAMILIES["llama4-text"])


def _assert_equal(model: Path, prompts: list[list[int]], generated: dict[str, Generated], max_tokens: int) -> None:
    answers = [generated[f"r{i}"] for i in range(len(prompts))]
    assert_greedy(model, prompts, [answer.token_ids for answer in answers], max_tokens, eos_token_id=None)
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            lines = whole(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 :].log_softmax(-1)
        for entry, line in zip(answer.logprobs, lines, strict=False):
            assert entry.logprob == pytest.approx(line[entry.token_id].item(), abs=2e-4)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_prompts_and_texts_of_several_chunks(model: Path, settings: dict[str, Any]):
    driver = EngineDriver(model, **settings)
    shapes = driver.runner._model.layers
    assert [shape.chunk for shape in shapes.values()] == [CHUNK, CHUNK, 0]
    scheduler = driver.scheduler(max_num_batched_tokens=29)
    requests = [a_request(f"r{i}", prompt, max_tokens=40, logprobs=1) for i, prompt in enumerate(PROMPTS)]
    _assert_equal(model, PROMPTS, driver.run(scheduler, requests), 40)


def test_prefixes_are_found_at_borders_of_chunks_and_within_them(model: Path):
    driver = EngineDriver(model)
    scheduler = driver.scheduler(max_num_batched_tokens=29)
    driver.run(scheduler, [a_request("first", LONG, max_tokens=4)])
    for length in (80, 90, 97, 150):
        prompt = [*LONG[:length], 5, 6, 7]
        generated = driver.run(scheduler, [a_request("r0", prompt, max_tokens=20, logprobs=1)])
        last = generated["r0"].last
        assert last is not None
        assert last.usage is not None
        assert last.usage[2] == length // 16 * 16
        _assert_equal(model, [prompt], generated, 20)


def test_tokens_do_not_change_under_preemption(model: Path):
    driver = EngineDriver(model)
    prompts = [LONG[i : i + 20 + i] for i in range(6)]
    scheduler = driver.scheduler(num_blocks=12, max_num_batched_tokens=32)
    generated = driver.run(scheduler, [a_request(f"r{i}", p, max_tokens=30, logprobs=1) for i, p in enumerate(prompts)])
    assert scheduler.num_preemptions > 0
    _assert_equal(model, prompts, generated, 30)


def test_layers_with_chunks_have_blocks_of_their_own_that_become_free(model: Path):
    """With few of them, a prompt of ten chunks is computed."""
    driver = EngineDriver(model, max_num_seqs=4)
    assert driver.cache_size.num_window_blocks > 0
    scheduler = driver.scheduler(max_num_batched_tokens=16, num_window_blocks=8)
    generated = driver.run(scheduler, [a_request("r0", LONG, max_tokens=40, logprobs=1)])
    _assert_equal(model, [LONG], generated, 40)


def test_a_context_of_one_chunk_has_no_chunks(model: Path):
    shapes = EngineDriver(model, max_model_len=CHUNK, max_num_seqs=1).runner._model.layers
    assert set(shapes.values()) == {LayerShape(2, 16, 16)}
