"""Latent attention (MLA): the KV cache keeps latents, and results are those of transformers, which expands them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.builders.engine import a_request, save_random_model
from support.builders.newer_text_families import LATENT, NEWER_FAMILIES
from support.builders.text_families import FAMILIES
from support.drivers.engine import EngineDriver, assert_greedy, in_this_process
from transformers import AutoModelForCausalLM
from transformers.models.youtu.modeling_youtu import YoutuAttention
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.builder import build_runner

YOUTU = NEWER_FAMILIES["youtu"]
#: Numbers of a token in each layer.
SIZE = LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"]
NUM_LAYERS = LATENT["num_hidden_layers"]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.0}
PROMPT = [(i * 31 + 7) % 97 for i in range(200)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("youtu"), YOUTU)


def logits_of(path: Path, prompt: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0]


def keeps_latents(driver: EngineDriver) -> bool:
    (kept,) = {shape.values_in_keys for shape in driver.runner._model.layers.values()}
    return kept


@pytest.mark.parametrize("attention", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_takes_its_latent_and_nothing_else(path: Path, dtype: torch.dtype, attention: str):
    driver = EngineDriver(path, dtype=dtype, attention=attention, num_blocks=64)
    assert driver.runner.block_bytes == 16 * NUM_LAYERS * SIZE * dtype.itemsize
    parts = driver.runner._backend.blocks()
    assert sum(part.nbytes for part in parts) == 64 * driver.runner.block_bytes
    kept = {one.data_ptr() for pair in driver.runner._backend._cache.values() for one in pair if one is not None}  # type: ignore[attr-defined]
    assert kept == {part.data_ptr() for part in parts}
    # The cache of 1 GiB has room accordingly.
    assert driver.cache_size.num_blocks == min((1 << 30) // driver.runner.block_bytes, driver.cache_size.num_blocks)
    assert driver.cache_size.num_blocks * driver.runner.block_bytes > (1 << 30) - driver.runner.block_bytes


@pytest.mark.parametrize("context", [8192, 32768])
def test_a_long_context_holds_as_many_blocks_as_the_formula_says(tmp_path: Path, context: int):
    small = transformers.YoutuConfig(**LATENT | {"num_hidden_layers": 1, "max_position_embeddings": context})
    num_blocks = context // 16
    driver = EngineDriver(save_random_model(tmp_path, small), dtype=torch.bfloat16, max_model_len=context, num_blocks=num_blocks)
    scheduler = driver.scheduler()
    prompt = [(i * 31 + 7) % 97 for i in range(context - 8)]
    held = []
    allocate = scheduler.kv_cache.allocate

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = allocate(*args, **kwargs)
        held.append(num_blocks - scheduler.kv_cache.num_free_blocks)
        return result

    scheduler.kv_cache.allocate = noting  # type: ignore[method-assign]
    driver.run(scheduler, [a_request("r", prompt, max_tokens=4)])
    assert max(held) == -(-(len(prompt) + 4) // 16)
    assert max(held) * driver.runner.block_bytes == context * SIZE * 2


@pytest.mark.parametrize("attention", ["auto", "torch"])
@pytest.mark.parametrize("num_chunks", [1, 2, 7, 200])
def test_logits_are_those_of_transformers_in_any_chunks(path: Path, num_chunks: int, attention: str):
    driver = EngineDriver(path, attention=attention)
    assert keeps_latents(driver)
    got = driver.runner.prompt_logits(PROMPT, num_chunks=num_chunks)
    torch.testing.assert_close(got, logits_of(path, PROMPT), atol=2e-4, rtol=0)


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3", "minicpm3"])
def test_the_scale_of_yarn_is_kept(family: str, tmp_path: Path):
    config = (FAMILIES | NEWER_FAMILIES)[family]
    changed = type(config).from_dict(config.to_dict() | {"rope_parameters": YARN})
    driver = EngineDriver(save_random_model(tmp_path, changed))
    assert keeps_latents(driver)
    torch.testing.assert_close(driver.runner.prompt_logits(PROMPT), logits_of(tmp_path, PROMPT), atol=2e-4, rtol=0)


def test_decoding_sequences_beside_chunks_of_prompts_and_preemption_change_no_token(path: Path):
    prompts = [[(i * 31 + j * 7) % 97 for j in range(20 + 9 * i)] for i in range(6)]
    driver = EngineDriver(path)
    scheduler = driver.scheduler(num_blocks=20, max_num_batched_tokens=48)
    requests = [a_request(f"r{i}", prompt, max_tokens=30) for i, prompt in enumerate(prompts)]
    generated = driver.run(scheduler, requests, arrivals=[0, 2, 4, 6, 8, 10])
    assert scheduler.num_preemptions > 0
    assert_greedy(path, prompts, [generated[f"r{i}"].token_ids for i in range(6)], 30, eos_token_id=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_the_batch(path: Path, dtype: torch.dtype):
    driver = EngineDriver(path, dtype=dtype, batch_invariant=True)
    assert keeps_latents(driver)
    whole = driver.runner.prompt_logits(PROMPT)
    for num_chunks in (2, 9, 200):
        assert torch.equal(driver.runner.prompt_logits(PROMPT, num_chunks=num_chunks), whole)


def test_latents_in_int8(path: Path):
    exact = EngineDriver(path)
    runner = build_runner(replace(exact.config, kv_cache_dtype=torch.int8))
    assert runner.block_bytes == 16 * NUM_LAYERS * (SIZE + 4)
    for num_chunks in (2, 20):  # expanded, and with absorbed queries
        similarity = torch.cosine_similarity(runner.prompt_logits(PROMPT, num_chunks=num_chunks), logits_of(path, PROMPT))
        assert similarity.min() > 0.998


@in_this_process
def test_latents_that_were_evicted_come_back(path: Path):
    memory = HostMemory.create(1 << 20)
    driver = EngineDriver(path, num_blocks=16, host_memory=memory)
    tier = HostTier(memory, [driver.runner.block_bytes])
    scheduler = driver.scheduler(tier=tier)
    prompts = [[(i * 31 + j * 7) % 97 for j in range(100)] for i in range(3)]
    first = [driver.run(scheduler, [a_request(f"{i}", prompt, max_tokens=8)])[f"{i}"] for i, prompt in enumerate(prompts)]
    again = driver.run(scheduler, [a_request("again", prompts[0], max_tokens=8)])["again"]
    assert again.token_ids == first[0].token_ids
    assert tier.statistics.num_loaded >= 3
    assert not tier.statistics.num_corrupt


class _Scaled(YoutuAttention):
    """Expands its keys in another way."""

    def expand_kv(self, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().expand_kv(kv_nope, k_rot)
        return keys * 1.5, values


def test_an_attention_that_expands_in_another_way_keeps_its_keys(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers.models.youtu.modeling_youtu, "YoutuAttention", _Scaled)
    driver = EngineDriver(path)
    assert driver.runner._model.layers[0] == LayerShape(4, 24, 16)
    torch.testing.assert_close(driver.runner.prompt_logits(PROMPT), logits_of(path, PROMPT), atol=2e-4, rtol=0)


def test_an_attention_that_changes_expanded_keys_keeps_them(path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the attention does behind `expand_kv` is not seen by comparing that alone."""
    forward = YoutuAttention.forward

    def changing(self: YoutuAttention, *args: Any, **kwargs: Any) -> Any:
        expand = self.expand_kv
        self.expand_kv = lambda *latent: tuple(part * 1.5 for part in expand(*latent))
        try:
            return forward(self, *args, **kwargs)
        finally:
            self.expand_kv = expand

    monkeypatch.setattr(YoutuAttention, "forward", changing)
    driver = EngineDriver(path)
    assert driver.runner._model.layers[0] == LayerShape(4, 24, 16)
    torch.testing.assert_close(driver.runner.prompt_logits(PROMPT), logits_of(path, PROMPT), atol=2e-4, rtol=0)


def test_adapters_keep_the_product_that_they_change(path: Path, tmp_path: Path):
    assert not keeps_latents(EngineDriver(path, lora_dir=tmp_path))
