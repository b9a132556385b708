"""Sparse attention (DSA): tokens attend to the keys that indexers select, which are those that transformers selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_request, save_random_model
from support.builders.newer_text_families import LATENT, NEWER_FAMILIES
from support.drivers.engine import EngineDriver, Generated, assert_greedy
from transformers import AutoModelForCausalLM
from triptych.errors import UnsupportedModelError
from triptych_engine.runner.attention.paged import LayerShape

LONG = [(i * 31) % 90 + 3 for i in range(150)]
#: With fewer keys than are selected, as many, and more.
PROMPTS = [LONG[:n] for n in (150, 3, 7, 8, 9, 65)]
DEEPSEEK = NEWER_FAMILIES["deepseek-v3.2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("deepseek"), DEEPSEEK)


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its second layer takes what the first selects."""
    return save_random_model(tmp_path_factory.mktemp("glm"), NEWER_FAMILIES["glm-moe-dsa"])


def _assert_equal(model: Path, prompts: list[list[int]], generated: dict[str, Generated], max_tokens: int) -> None:
    answers = [generated[f"r{i}"] for i in range(len(prompts))]
    assert_greedy(model, prompts, [answer.token_ids for answer in answers], max_tokens, eos_token_id=None)
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            lines = whole(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 :].log_softmax(-1)
        for entry, line in zip(answer.logprobs, lines, strict=False):
            assert entry.logprob == pytest.approx(line[entry.token_id].item(), abs=2e-4)


def _with_whole_heads(tmp_path: Path) -> dict[str, Any]:
    """Adapters may change what latents are expanded by, so keys and values of all heads are kept."""
    return {"lora_dir": tmp_path}


@pytest.mark.parametrize(
    "settings", [{}, {"attention": "torch", "block_size": 5}, _with_whole_heads], ids=["cpu", "torch", "heads"]
)
def test_long_prompts_and_texts(model: Path, settings: Any, tmp_path: Path):
    _check_long_prompts(model, settings(tmp_path) if callable(settings) else settings)


def test_layers_may_share_what_is_selected(glm: Path):
    _check_long_prompts(glm, {})


def _check_long_prompts(model: Path, settings: dict[str, Any]) -> None:
    driver = EngineDriver(model, **settings)
    scheduler = driver.scheduler(max_num_batched_tokens=50)
    requests = [a_request(f"r{i}", prompt, max_tokens=8, logprobs=1) for i, prompt in enumerate(PROMPTS)]
    _assert_equal(model, PROMPTS, driver.run(scheduler, requests), 8)


def test_a_token_takes_its_latents_and_the_keys_of_indexers(model: Path, glm: Path):
    size, rank = LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"], LATENT["kv_lora_rank"]
    latents = {i: LayerShape(1, size, rank, values_in_keys=True) for i in range(3)}
    keys = LayerShape(1, 16, 16, values_in_keys=True)
    assert EngineDriver(model).runner._model.layers == latents | {3: keys, 4: keys, 5: keys}
    assert EngineDriver(glm).runner._model.layers == latents | {3: keys, 5: keys}


def test_a_prefix_is_found_with_the_keys_of_its_indexers(model: Path):
    driver = EngineDriver(model)
    scheduler = driver.scheduler(max_num_batched_tokens=29)
    driver.run(scheduler, [a_request("first", LONG, max_tokens=4)])
    prompt = [*LONG[:90], 5, 6, 7]
    generated = driver.run(scheduler, [a_request("r0", prompt, max_tokens=20, logprobs=1)])
    last = generated["r0"].last
    assert last is not None
    assert last.usage == (93, 20, 80)
    _assert_equal(model, [prompt], generated, 20)


def test_tokens_do_not_change_under_preemption(model: Path):
    driver = EngineDriver(model)
    prompts = [LONG[i : i + 20 + i] for i in range(4)]
    scheduler = driver.scheduler(num_blocks=7, max_num_batched_tokens=32)
    generated = driver.run(scheduler, [a_request(f"r{i}", p, max_tokens=20, logprobs=1) for i, p in enumerate(prompts)])
    assert scheduler.num_preemptions > 0
    _assert_equal(model, prompts, generated, 20)


def test_in_16_bits_the_prompt_has_nearly_the_same_logits(tmp_path: Path):
    """Of a tiny random model, rounding changes which keys are selected. Here these are half of all."""
    config = type(DEEPSEEK)(**DEEPSEEK.to_dict() | {"index_topk": 75})
    save_random_model(tmp_path, config, dtype=torch.bfloat16)
    exact = EngineDriver(tmp_path).runner.prompt_logits(LONG)
    logits = EngineDriver(tmp_path, dtype=torch.bfloat16).runner.prompt_logits(LONG, num_chunks=3)
    assert torch.nn.functional.cosine_similarity(logits.float(), exact, dim=-1).mean() > 0.97


def test_it_is_not_promised_to_be_batch_invariant(model: Path):
    with pytest.raises(UnsupportedModelError, match=r"with --batch-invariant beyond 8 tokens: .* set max_model_len"):
        EngineDriver(model, batch_invariant=True)
