"""The same request gives the same text and the same log probabilities, to the last bit, whatever is computed beside it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.drivers.engine import EngineDriver, Generated
from transformers import GPT2Config
from triptych.errors import UnsupportedModelError
from triptych_common.model.store import TEXT_MODEL, resolve_model
from triptych_engine.runner.cpu.linear.layers import OneDnnLinear
from triptych_engine.scheduling.request import Request

MAX_TOKENS = 24
#: More keys than the attention takes at once; no multiple of a block.
PROMPT_TOKENS = 203


def tokens(seed: int, count: int, vocab_size: int) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=count)


def the_requests(vocab_size: int, prompt_logprobs: int | None = 1) -> list[Request]:
    """A greedy one and two seeded ones, with the same prompt. With log probabilities of it, a prefix is not reused."""
    prompt = tokens(0, PROMPT_TOKENS, vocab_size)
    settings = {"max_tokens": MAX_TOKENS, "logprobs": 3, "prompt_logprobs": prompt_logprobs}
    seeded = [a_request(f"seed {i}", prompt, temperature=1.0, top_p=0.9, seed=i, **settings) for i in range(2)]
    return [a_request("greedy", prompt, temperature=0.0, **settings), *seeded]


def company(vocab_size: int, count: int) -> list[Request]:
    return [
        a_request(f"other {i}", tokens(i + 1, 5 + i, vocab_size), max_tokens=MAX_TOKENS + 8, temperature=i % 2, seed=i)
        for i in range(count)
    ]


def answers(generated: dict[str, Generated]) -> dict[str, tuple]:
    """What of the requests must be equal."""
    return {
        name: (one.token_ids, one.logprobs, one.prompt_logprobs) for name, one in generated.items() if not name.startswith("other")
    }


def assert_invariant(driver: EngineDriver) -> None:
    vocab_size = driver.runner.vocab_size
    alone: dict[str, tuple] = {}
    for request in the_requests(vocab_size):
        alone |= answers(driver.run(driver.scheduler(), [request]))
    assert len({tuple(token_ids) for token_ids, *_ in alone.values()}) == 3
    others = company(vocab_size, 61)
    together = driver.run(driver.scheduler(), [*others[:30], *the_requests(vocab_size), *others[30:]])
    assert answers(together) == alone
    for budget in (7, 64):
        chunked = driver.run(driver.scheduler(max_num_batched_tokens=budget), [*company(vocab_size, 4), *the_requests(vocab_size)])
        assert answers(chunked) == alone
    scheduler = driver.scheduler()
    driver.run(scheduler, the_requests(vocab_size, None))
    hits = scheduler.kv_cache.prefix_cache_hits
    again = driver.run(scheduler, the_requests(vocab_size, None))
    assert scheduler.kv_cache.prefix_cache_hits >= hits + 3 * 192
    assert answers(again) == {name: (ids, logprobs, []) for name, (ids, logprobs, _) in alone.items()}


@pytest.mark.parametrize("family", ["granite4-dense", "lfm2", "qwen3.5-text"])
def test_with_recurrent_layers(family: str, tmp_path: Path) -> None:
    save_random_model(tmp_path, HYBRIDS[family], dtype=torch.bfloat16)
    assert_invariant(EngineDriver(tmp_path, dtype=torch.bfloat16, batch_invariant=True))


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        (torch.bfloat16, "none"),
        (torch.float32, "none"),
        (torch.float32, "int8"),
        pytest.param(torch.bfloat16, "int8", marks=pytest.mark.slow),  # its parts are those of the others
    ],
)
def test_the_default_model(dtype: torch.dtype, quantization: str):
    path = resolve_model(TEXT_MODEL)
    # With AMX, many rows of quantised weights are multiplied in another way than few.
    invariant = quantization != "none"
    driver = EngineDriver(path, dtype=dtype, quantization=quantization, max_num_seqs=64, num_blocks=1200, batch_invariant=invariant)
    assert_invariant(driver)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_checkpoint_in_float32(dtype: torch.dtype, tmp_path: Path):
    """oneDNN sums a single row of so many inputs in another order than several."""
    save_random_model(tmp_path, a_tiny_llama_config(intermediate_size=1600))
    driver = EngineDriver(tmp_path, dtype=dtype, batch_invariant=True, max_num_seqs=64, num_blocks=1200)
    assert any(isinstance(module, OneDnnLinear) for module in driver.runner._model.model.modules()) == (dtype == torch.float32)
    assert_invariant(driver)


def test_a_model_that_cannot_be_invariant_is_refused(tmp_path: Path):
    """GPT-2's products are torch's own, which take another way for few rows."""
    config = GPT2Config(vocab_size=97, n_positions=256, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    save_random_model(tmp_path, config)
    EngineDriver(tmp_path)
    with pytest.raises(UnsupportedModelError, match="with --batch-invariant"):
        EngineDriver(tmp_path, batch_invariant=True)
