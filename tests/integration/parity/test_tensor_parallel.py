"""Models that are divided among ranks, in real processes: logits are those of one process, and no rank has more than its part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.gguf_files import save_gguf_model
from support.builders.hybrid_families import HYBRIDS
from support.builders.quantized_checkpoints import CASES, save_quantised
from support.builders.text_families import COMMON, FAMILIES, HEAD_16, PROMPTS
from support.drivers.ranks import Ranks, compute
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from triptych.errors import UnsupportedModelError
from triptych_engine.runner.config import RunnerConfig

_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
#: Families as users have them, with dimensions that do not divide by all numbers of ranks, and fewer key heads than ranks.
DIVIDED: dict[str, PretrainedConfig] = {
    **{
        name: FAMILIES[name] for name in ("llama", "llama-tied", "mistral-window", "qwen2", "qwen3", "gemma3-text", "phi3", "olmo2")
    },
    **{name: FAMILIES[name] for name in ("granite", "gpt-neox", "gpt-oss", "glm4", "cohere2")},
    "one-key-head": transformers.Qwen3Config(**HEAD_16 | {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "groups-of-three": transformers.Qwen3Config(**HEAD_16 | {"num_attention_heads": 9, "num_key_value_heads": 3}),
    "ragged-groups": transformers.Qwen3Config(
        **HEAD_16 | {"num_attention_heads": 10, "num_key_value_heads": 2, "intermediate_size": 400}
    ),
    "mixtral": FAMILIES["mixtral"],
    "qwen3-moe": transformers.Qwen3MoeConfig(**HEAD_16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48),
    "deepseek-v3": transformers.DeepseekV3Config(**FAMILIES["deepseek-v3"].to_dict() | {"moe_intermediate_size": 48}),
    "qwen2-vl": transformers.Qwen2VLConfig(
        text_config={**COMMON, "rope_parameters": _MROPE},
        vision_config={"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2},
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
    ),
}
#: Families whose check takes part in `make test`, with two ranks.
QUICK = ("deepseek-v3", "llama-tied", "phi3", "gpt-oss", "mixtral", "qwen2-vl")


@pytest.fixture(scope="module")
def ranks() -> Iterator[dict[tuple[int, bool], Ranks]]:
    """Number of ranks, and whether they share memory -> processes, as tests start them."""
    started: dict[tuple[int, bool], Ranks] = {}
    yield started
    for some in started.values():
        some.close()


def of_size(ranks: dict[tuple[int, bool], Ranks], size: int, *, shares_memory: bool = True) -> Ranks:
    key = size, shares_memory
    if key not in ranks:
        ranks[key] = Ranks(size, shares_memory=shares_memory)
    return ranks[key]


def a_model(folder: Path, config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> RunnerConfig:
    """A checkpoint with random weights, and how a runner computes it."""
    auto = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    save_random_model(folder, config, auto, dtype)
    return RunnerConfig(folder, "test", 256, 4, 2048, 16, 1 << 24, dtype=dtype)


def check(ranks: Ranks, config: RunnerConfig, size: int) -> None:
    alone, computed = compute(config, PROMPTS[0]), ranks.compute(config, PROMPTS[0])
    for one in computed:
        torch.testing.assert_close(one.logits, alone.logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(one.last_logits, alone.logits[-1:], rtol=0, atol=1e-4)
        assert torch.equal(one.logits, computed[0].logits), "all ranks go on with the same"
        assert one.keeps_latents == alone.keeps_latents
        assert one.num_weights <= alone.num_weights * (1 / size + 0.1)


@pytest.mark.parametrize("family", QUICK)
def test_two_ranks_compute_what_one_does(ranks: dict[tuple[int, bool], Ranks], family: str, tmp_path: Path) -> None:
    check(of_size(ranks, 2), a_model(tmp_path, DIVIDED[family]), 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "size"),
    [(family, size) for size in (2, 3) for family in DIVIDED if (family, size) not in {(one, 2) for one in QUICK}],
)
def test_ranks_compute_what_one_does(ranks: dict[tuple[int, bool], Ranks], family: str, size: int, tmp_path: Path) -> None:
    check(of_size(ranks, size), a_model(tmp_path, DIVIDED[family]), size)


def test_a_whole_model_in_one_call_is_divided_too(ranks: dict[tuple[int, bool], Ranks], tmp_path: Path) -> None:
    """In unequal shares. The last layer goes on with the wanted tokens in all ranks, or in none."""
    divided = a_tiny_llama_config(hidden_size=48, intermediate_size=47)
    check(of_size(ranks, 2), replace(a_model(tmp_path, divided, torch.bfloat16), dtype=torch.float32), 2)


def test_experts_in_one_call_are_divided_too(ranks: dict[tuple[int, bool], Ranks], tmp_path: Path) -> None:
    """The kernels take weights whose numbers are bfloat16; the ranks still add up what their parts compute."""
    config = a_model(tmp_path, DIVIDED["mixtral"], torch.bfloat16)
    check(of_size(ranks, 2), replace(config, dtype=torch.float32), 2)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "mixtral", "phi3"])
def test_through_sockets_it_is_the_same(ranks: dict[tuple[int, bool], Ranks], family: str, tmp_path: Path) -> None:
    check(of_size(ranks, 3, shares_memory=False), a_model(tmp_path, DIVIDED[family]), 3)


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_can_be_quantised_as_they_are_loaded(
    ranks: dict[tuple[int, bool], Ranks], quantization: str, tmp_path: Path
) -> None:
    """Inputs are rounded by the rank's part of a row, so the logits are others, and as near to those of the model as it is."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = a_model(tmp_path, transformers.Qwen3Config(**HEAD_16 | sizes))
    exact = compute(config, PROMPTS[0]).logits
    config = replace(config, quantization=quantization)
    alone, (first, second) = compute(config, PROMPTS[0]), of_size(ranks, 2).compute(config, PROMPTS[0])
    assert torch.equal(first.logits, second.logits)
    assert _difference(first.logits, exact) < 1.2 * _difference(alone.logits, exact)


def _saved_gguf(folder: Path, architecture: str, kind: str) -> PreTrainedModel:
    return save_gguf_model(folder, architecture, [kind])


#: Checkpoints with quantised weights -> what writes one, and returns the model with these weights.
QUANTISED: dict[str, Callable[[Path], PreTrainedModel]] = {
    **{name: partial(save_quantised, case=case) for name, case in CASES.items()},
    **{
        f"gguf-{architecture}-{kind}": partial(_saved_gguf, architecture=architecture, kind=kind)
        for architecture, kind in [("qwen2", "Q8_0"), ("llama", "Q4_0"), ("qwen3", "Q4_1"), ("qwen3moe", "Q8_0")]
    },
}


@pytest.mark.parametrize(
    "checkpoint",
    [name if name in ("gptq", "gguf-qwen2-Q8_0") else pytest.param(name, marks=pytest.mark.long) for name in QUANTISED],
)
def test_quantised_weights_are_divided_in_blocks(ranks: dict[tuple[int, bool], Ranks], checkpoint: str, tmp_path: Path) -> None:
    """Sums in another order change to which number an input is rounded, which costs a part of what all of the rounding does."""
    model = QUANTISED[checkpoint](tmp_path)
    config = RunnerConfig(tmp_path, "test", 256, 4, 2048, 16, 1 << 24)
    prompt = [token % 90 for token in PROMPTS[0]]
    exact = model(torch.tensor([prompt])).logits[0]
    alone, (first, second) = compute(config, prompt), of_size(ranks, 2).compute(config, prompt)
    assert torch.equal(first.logits, second.logits)
    assert _difference(first.logits, alone.logits) < 0.5 * _difference(alone.logits, exact)


def _difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return ((logits - expected).norm() / expected.norm()).item()


def test_what_cannot_be_divided_is_refused_with_the_reason(ranks: dict[tuple[int, bool], Ranks], tmp_path: Path) -> None:
    two = of_size(ranks, 2)
    with pytest.raises(UnsupportedModelError, match="no plan to divide models of the family opt among ranks"):
        two.compute(a_model(tmp_path / "opt", FAMILIES["opt"]), PROMPTS[0])
    with pytest.raises(UnsupportedModelError, match="its recurrent layers cannot be divided among ranks"):
        two.compute(a_model(tmp_path / "lfm2", HYBRIDS["lfm2"]), PROMPTS[0])
    one_head = a_tiny_llama_config(num_attention_heads=1, num_key_value_heads=1)
    with pytest.raises(UnsupportedModelError, match="1 attention heads cannot be divided among 2 ranks"):
        two.compute(a_model(tmp_path / "heads", one_head), PROMPTS[0])
    save_gguf_model(tmp_path / "blocks", "llama", ["Q4_K"])
    with pytest.raises(
        UnsupportedModelError, match=r"o_proj.weight cannot be divided among ranks: columns .* not whole blocks of 256"
    ):
        two.compute(RunnerConfig(tmp_path / "blocks", "test", 256, 4, 2048, 16, 1 << 24), PROMPTS[0])
    narrow = transformers.Qwen3MoeConfig(**HEAD_16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
    with pytest.raises(UnsupportedModelError, match=r"down_proj: 8 entries cannot be divided among 2 ranks in multiples of 8"):
        two.compute(a_model(tmp_path / "experts", narrow), PROMPTS[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_rank_has_much_more_than_its_part_in_memory_not_even_while_it_loads(tmp_path: Path) -> None:
    """The most that a process has while it loads a model of 1.1 B, besides files: with all of the model, and with shares of it."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.uniform_(-0.03, 0.03)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    del model
    loaded = RunnerConfig(tmp_path, "test", 256, 4, 2048, 16, 1 << 26)
    peaks = {}
    for size in (1, 2, 3):
        ranks = Ranks(size)
        peaks[size] = [one.peak_bytes[0] - one.peak_bytes[1] for one in ranks.compute(loaded, PROMPTS[0])]
        ranks.close()
    print({size: [round(peak / 1e9, 2) for peak in some] for size, some in peaks.items()}, f"GB; {num_weights / 1e9:.2f} B weights")
    for size in (2, 3):
        assert max(peaks[size]) <= (1 / size + 0.1) * peaks[1][0]
