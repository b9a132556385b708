"""Tiny random models of many families: greedy tokens and logits on the paged engine equal transformers' own.

Each family runs two ragged requests in small chunks, one of them with a prefix-cache hit, in float32.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.builders.newer_text_families import NEWER_FAMILIES
from support.builders.text_families import COMMON, FAMILIES, PROMPTS
from support.drivers.engine import EngineDriver, assert_greedy
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.experts import KernelExperts

MAX_TOKENS = 12


ALL_FAMILIES = FAMILIES | NEWER_FAMILIES | HYBRIDS


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_greedy_tokens_and_logprobs_equal_transformers(family: str, tmp_path: Path):
    save_random_model(tmp_path, ALL_FAMILIES[family])
    _assert_equals_transformers(tmp_path, EngineDriver(tmp_path))


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss", "granite-moe", "deepseek-v3"])
def test_experts_in_one_call_compute_what_transformers_does(family: str, tmp_path: Path):
    """The kernels take weights whose numbers are bfloat16, as those of checkpoints are."""
    save_random_model(tmp_path, ALL_FAMILIES[family], dtype=torch.bfloat16)
    driver = EngineDriver(tmp_path)
    if load_kernels() is not None and driver.config.device.type == "cpu":
        assert any(isinstance(module, KernelExperts) for module in driver.runner._model.model.modules())
    _assert_equals_transformers(tmp_path, driver)


def _assert_equals_transformers(tmp_path: Path, driver: EngineDriver) -> None:
    requests = [a_request(f"r{i}", prompt, max_tokens=MAX_TOKENS, logprobs=3) for i, prompt in enumerate(PROMPTS)]
    # The second comes when the first one's prompt is computed, so that it finds two blocks of it.
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), requests, arrivals=[0, 6, 7])
    logits = assert_greedy(tmp_path, PROMPTS, [generated[f"r{i}"].token_ids for i in range(3)], MAX_TOKENS, eos_token_id=None)
    last = generated["r1"].last
    assert last is not None
    assert last.usage == (36, MAX_TOKENS, 32)
    assert len(generated["r1"].logprobs) == MAX_TOKENS
    for entry, line in zip(generated["r1"].logprobs, logits[1].log_softmax(-1), strict=True):
        assert entry.logprob == pytest.approx(line[entry.token_id].item(), abs=2e-4)
        assert entry.top_logprobs == pytest.approx(line.topk(3).values.tolist(), abs=2e-4)


MULTIMODAL: dict[str, PretrainedConfig] = {
    "llava": transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
        ),
        text_config=a_tiny_llama_config(),
        image_token_index=5,
    ),
    "qwen2-vl": transformers.Qwen2VLConfig(
        text_config={
            **COMMON,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2},
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
    ),
    "gemma4": transformers.Gemma4Config(
        text_config=NEWER_FAMILIES["gemma4-text"],
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "position_embedding_size": 16,
        },
        audio_config=None,
        image_token_id=5,
        video_token_id=6,
        boi_token_id=7,
        eoi_token_id=8,
        audio_token_id=9,
    ),
}


@pytest.mark.parametrize("family", MULTIMODAL)
def test_of_a_multimodal_checkpoint_only_the_language_model_is_loaded(family: str, tmp_path: Path):
    save_random_model(tmp_path, MULTIMODAL[family], AutoModelForImageTextToText)
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    driver = EngineDriver(tmp_path)
    loaded = driver.runner._model.model
    assert not [name for name, _ in loaded.named_parameters() if "vision" in name or "visual" in name or "projector" in name]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), [a_request("r", PROMPTS[0], max_tokens=MAX_TOKENS)])
    with torch.inference_mode():
        text = PROMPTS[0] + generated["r"].token_ids
        logits = whole(input_ids=torch.tensor([text])).logits[0]
    assert generated["r"].token_ids == logits[len(PROMPTS[0]) - 1 : -1].argmax(-1).tolist()


def test_the_plain_torch_backend_gives_the_same(tmp_path: Path):
    save_random_model(tmp_path, FAMILIES["gemma2"])
    driver = EngineDriver(tmp_path, attention="torch", block_size=5)
    requests = [a_request(f"r{i}", prompt, max_tokens=MAX_TOKENS) for i, prompt in enumerate(PROMPTS)]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), requests)
    assert_greedy(tmp_path, PROMPTS, [generated[f"r{i}"].token_ids for i in range(3)], MAX_TOKENS, eos_token_id=None)


def test_text_does_not_change_under_preemption(tmp_path: Path):
    save_random_model(tmp_path, FAMILIES["qwen3"])
    prompts = [[(i * 31 + j * 7) % 97 for j in range(20 + i)] for i in range(6)]
    driver = EngineDriver(tmp_path)
    scheduler = driver.scheduler(num_blocks=12, max_num_batched_tokens=32)
    generated = driver.run(scheduler, [a_request(f"r{i}", prompt, max_tokens=30) for i, prompt in enumerate(prompts)])
    assert scheduler.num_preemptions > 0
    assert_greedy(tmp_path, prompts, [generated[f"r{i}"].token_ids for i in range(6)], 30, eos_token_id=None)


def test_prompt_logprobs_equal_one_forward_pass_whatever_the_chunks(tmp_path: Path):
    save_random_model(tmp_path, FAMILIES["llama"])
    driver = EngineDriver(tmp_path)
    prompt = PROMPTS[0]
    request = a_request("r", prompt, max_tokens=0, prompt_logprobs=2)
    scheduler = driver.scheduler(max_num_batched_tokens=13)
    others = [a_request(f"o{i}", PROMPTS[1], max_tokens=5) for i in range(2)]
    entries = driver.run(scheduler, [request, *others])["r"].prompt_logprobs
    assert [entry.token_id for entry in entries] == prompt[1:]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        reference = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for index, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(reference[index, entry.token_id].item(), abs=2e-4)
        assert entry.rank == 1 + int((reference[index] > reference[index, entry.token_id]).sum())
        assert entry.top_logprobs == pytest.approx(reference[index].topk(2).values.tolist(), abs=2e-4)
