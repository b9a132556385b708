"""Models with recurrent layers: their tokens equal transformers' own whatever happens to their states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.builders.engine import a_request, save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.drivers.engine import EngineDriver, transformers_greedy

#: Each kind of recurrence.
KINDS = ["qwen3.5-text", "kimi-linear", "granite4-hybrid", "falcon-h1", "lfm2"]
SYSTEM = [(i * 31) % 90 + 3 for i in range(70)]
#: Computed in float32; weights that are bfloat16 go through the kernels of whole layers, where the family has them.
WHOLE = ["granite4-dense", "lfm2", "qwen3.5-text"]
CASES = [*((family, torch.float32) for family in KINDS), *((family, torch.bfloat16) for family in WHOLE)]


@pytest.mark.parametrize(("family", "weights"), CASES)
def test_a_conversation_and_its_relatives_find_states_and_change_no_token(family: str, weights: torch.dtype, tmp_path: Path):
    """The next turn, the same prompt again, and two others with the same beginning, of which the second finds it."""
    save_random_model(tmp_path, HYBRIDS[family], dtype=weights)
    driver = EngineDriver(tmp_path)
    scheduler = driver.scheduler(max_num_batched_tokens=29)
    prompts, cached = [SYSTEM], []
    for number in range(5):
        prompt = prompts[-1]
        (expected,) = transformers_greedy(tmp_path, [prompt], 20, eos_token_id=None)
        generated = driver.run(scheduler, [a_request(f"r{number}", prompt, max_tokens=20)])[f"r{number}"]
        assert generated.token_ids == expected
        assert generated.last is not None
        assert generated.last.usage is not None
        cached.append(generated.last.usage[2])
        prompts.append([[*prompt, *expected, 5, 6, 7], SYSTEM, [*SYSTEM[:50], *[8] * 20], [*SYSTEM[:50], *[9] * 25], []][number])
    assert cached == [0, 80, 64, 0, 48]


@pytest.mark.parametrize(("family", "weights"), CASES)
def test_tokens_do_not_change_under_preemption(family: str, weights: torch.dtype, tmp_path: Path):
    """There are too few blocks, and fewer slots for states than requests."""
    save_random_model(tmp_path, HYBRIDS[family], dtype=weights)
    prompts = [[(i * 31 + j * 7) % 97 for j in range(20 + i)] for i in range(6)]
    expected = transformers_greedy(tmp_path, prompts, 30, eos_token_id=None)
    driver = EngineDriver(tmp_path)
    scheduler = driver.scheduler(num_blocks=12, num_states=5, max_num_batched_tokens=32)
    generated = driver.run(scheduler, [a_request(f"r{i}", prompt, max_tokens=30) for i, prompt in enumerate(prompts)])
    assert scheduler.num_preemptions > 0
    assert [generated[f"r{i}"].token_ids for i in range(6)] == expected


@pytest.mark.parametrize("family", KINDS)
def test_without_kernels_the_tokens_are_the_same(family: str, tmp_path: Path):
    save_random_model(tmp_path, HYBRIDS[family])
    prompts = [SYSTEM[:40], SYSTEM[:3], SYSTEM[10:25]]
    expected = transformers_greedy(tmp_path, prompts, 8, eos_token_id=None)
    driver = EngineDriver(tmp_path, attention="torch")
    requests = [a_request(f"r{i}", prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), requests)
    assert [generated[f"r{i}"].token_ids for i in range(3)] == expected


@pytest.mark.parametrize("family", ["granite4-hybrid", *WHOLE])
def test_in_16_bits_and_in_int8_the_prompt_has_nearly_the_same_logits(family: str, tmp_path: Path):
    # With another seed, rounding sends a token of the check at load to another one of four experts.
    save_random_model(tmp_path, HYBRIDS[family], dtype=torch.bfloat16, seed=3)
    exact = EngineDriver(tmp_path).runner.prompt_logits(SYSTEM)
    for options in ({"dtype": torch.bfloat16}, {"quantization": "int8"}):
        logits = EngineDriver(tmp_path, **options).runner.prompt_logits(SYSTEM, num_chunks=3)  # type: ignore[arg-type]
        assert torch.nn.functional.cosine_similarity(logits.float(), exact, dim=-1).mean() > 0.99
