"""Models that are computed without their own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.hybrid_families import HYBRIDS
from torch import nn
from transformers import GraniteConfig, GraniteMoeHybridConfig, Lfm2Config, PretrainedConfig, Qwen3Config, Qwen3MoeConfig
from triptych_engine.runner import builder
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.cpu.layer_kernel import LayerStack
from triptych_engine.runner.cpu.linear import packing
from triptych_engine.runner.fusion.decoder import Decoder, find_decoder
from triptych_engine.runner.fusion.layer import FusedDecoderLayer, first_tokens
from triptych_engine.runner.model_runner import ModelRunner

PROMPT = [(7 * i) % 90 for i in range(50)]


def a_runner(tmp_path: Path, config: PretrainedConfig | None = None, **options: Any) -> ModelRunner:
    path = save_random_model(tmp_path, config or a_tiny_llama_config(num_hidden_layers=4), dtype=torch.bfloat16)
    return build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, **({"dtype": torch.float32} | options)))


@pytest.fixture(params=["none", "int8"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> ModelRunner:
    return a_runner(tmp_path, quantization=request.param)


def fused_layers(runner: ModelRunner) -> list[FusedDecoderLayer]:
    return [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]


def num_layers_per_call(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers each call of the kernel computes, from here on."""
    calls: list[int] = []
    run = LayerStack.run
    monkeypatch.setattr(LayerStack, "run", lambda self, *args, **to: (calls.append(len(self._indices)), run(self, *args, **to))[1])
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", ["llama", "qwen3", "tied", "lfm2", "qwen3.5", "granite", "granite4"])
def test_it_computes_what_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, config: str) -> None:
    shape = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    of = {
        "llama": a_tiny_llama_config(num_hidden_layers=4),
        "tied": a_tiny_llama_config(num_hidden_layers=4, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**shape, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False),
        "lfm2": Lfm2Config(
            **(shape | {"head_dim": 16}), num_key_value_heads=2, layer_types=["conv", "conv", "full_attention", "conv"]
        ),
        "qwen3.5": HYBRIDS["qwen3.5-text"],
        "granite": GraniteConfig(
            **(shape | {"num_attention_heads": 2}), residual_multiplier=0.3, embedding_multiplier=12.0, logits_scaling=3.0
        ),
        "granite4": GraniteMoeHybridConfig(
            **(
                HYBRIDS["granite4-dense"].to_diff_dict()
                | {"num_hidden_layers": 4, "layer_types": ["linear_attention", *["full_attention"] * 3]}
            )
        ),
    }
    monkeypatch.setattr(packing, "cpu_computes_bfloat16", lambda: False)  # on ARM, oneDNN would compute the products
    runner = a_runner(tmp_path, of[config], dtype=dtype)
    calls = num_layers_per_call(monkeypatch)
    whole = runner.prompt_logits(PROMPT, num_chunks=3)
    assert calls == [4, 4, 4]
    runner._model.decoder = None
    assert torch.equal(runner.prompt_logits(PROMPT, num_chunks=3), whole)
    assert calls == [4, 4, 4] + [1] * 12


#: Its activation is computed with the product before it.
WITH_GATES = a_tiny_llama_config(num_hidden_layers=4, intermediate_size=64)
#: Gate and up together have fewer outputs than the hidden size.
NARROW = a_tiny_llama_config(num_hidden_layers=4, intermediate_size=15)


@pytest.mark.parametrize("config", [None, WITH_GATES, NARROW, HYBRIDS["lfm2"], HYBRIDS["qwen3.5-text"], HYBRIDS["granite4-dense"]])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}, {"quantization": "int8"}])
@pytest.mark.parametrize("method", [None, "tiles"])
def test_the_last_layer_goes_on_with_the_wanted_tokens(
    tmp_path: Path,
    config: PretrainedConfig | None,
    options: dict,
    method: str | None,
    emulating: Callable[[str], CpuKernels],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if method:
        monkeypatch.setattr(builder, "load_kernels", lambda: emulating(method))
    runner = a_runner(tmp_path, config, **options)
    decoder, backend, token_ids, positions = runner._model.decoder, runner._backend, torch.tensor(PROMPT), torch.arange(50)[None]
    assert isinstance(decoder, Decoder)
    assert decoder.is_one_call

    def logits(wanted: list[int], compute: Callable[..., torch.Tensor]) -> torch.Tensor:
        backend.begin(first_tokens(50))
        with torch.inference_mode():
            return compute(token_ids, positions, backend, None, torch.tensor(wanted, dtype=torch.int64))

    expected = logits(list(range(50)), decoder.logits)
    for wanted in ([], [49], [0, 7, 20, 49], [3, 2, 2], list(range(1, 50))):
        got = logits(wanted, decoder.logits)
        # The parts compute all tokens in all layers.
        assert torch.equal(got, logits(wanted, decoder.logits_by_parts))
        if "quantization" not in options:  # else the head may multiply few rows in another way than many
            assert torch.equal(got, expected[wanted])


def test_only_the_wanted_tokens_reach_the_head(runner: ModelRunner) -> None:
    expected, rows = runner.prompt_logits(PROMPT), []
    head = runner._model.model.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: rows.append(output.shape[-2]))
    inputs_of = runner._forward

    def last_only(inputs: Any, wanted: Any, *args: Any, **options: Any) -> torch.Tensor:
        return inputs_of(inputs, wanted[-1:], *args, **options)

    runner._forward = last_only  # type: ignore[method-assign]
    # With quantised weights, one row of the head may be computed in another way than many.
    torch.testing.assert_close(runner.prompt_logits(PROMPT), expected[-1:], rtol=2e-2, atol=2e-2)
    assert rows == [1]


def test_embeddings_take_the_place_of_tokens(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = num_layers_per_call(monkeypatch)
    token_ids = torch.tensor(PROMPT[:16])
    runner._backend.begin(first_tokens(16))
    assert isinstance(runner._model.decoder, Decoder)
    positions = torch.arange(16)[None]
    with torch.inference_mode():
        expected = runner._model.decoder.hidden(token_ids, positions, runner._backend)
        embeds = runner._model.model.get_input_embeddings()(token_ids[None])
        runner._backend.begin(first_tokens(16))
        got = runner._model.hidden(torch.zeros(16, dtype=torch.int64), positions[0], runner._backend, embeds)
    assert torch.equal(got, expected)
    assert calls == [4, 4]


def test_layers_that_are_watched_are_computed_one_by_one(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, calls = runner.prompt_logits(PROMPT), num_layers_per_call(monkeypatch)
    seen: list[torch.Tensor] = []
    hook = fused_layers(runner)[2].register_forward_hook(lambda layer, args, output: seen.append(output.clone()))
    assert torch.equal(runner.prompt_logits(PROMPT), expected)
    assert [states.shape for states in seen] == [(1, len(PROMPT), 32)]
    assert calls == [1] * 4
    hook.remove()
    assert torch.equal(runner.prompt_logits(PROMPT), expected)
    assert calls == [1] * 4 + [4]


def test_a_hook_that_changes_a_layers_result_is_heeded(runner: ModelRunner) -> None:
    expected = runner.prompt_logits(PROMPT)
    hook = fused_layers(runner)[1].register_forward_hook(lambda layer, args, output: output + 1)
    changed = runner.prompt_logits(PROMPT)
    hook.remove()
    assert not torch.allclose(changed, expected, atol=1e-2)
    assert torch.equal(runner.prompt_logits(PROMPT), expected)


def found(runner: ModelRunner) -> Decoder | None:
    """The decoder of a model that a test has altered."""
    model, probe = runner._model, runner._model.probe_token_ids
    return find_decoder(model.model, CpuFusedKernels(load_kernels()), probe, model.position_ids(torch.arange(len(probe)) * 10))


def scaled_embeddings(model: Any) -> None:
    own = model.model.forward
    model.model.forward = lambda input_ids, **options: own(
        **options | {"inputs_embeds": model.model.embed_tokens(input_ids) * 2}
    )  # fmt: skip


def scaled_logits(model: Any) -> None:
    own = model.forward

    def forward(**options: Any) -> Any:
        output = own(**options)
        output.logits = output.logits * 2
        return output

    model.forward = forward


def between_layers(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """Let a model change what its second layer gets."""

    def alter(model: Any) -> None:
        model.model.layers[1].register_forward_pre_hook(lambda layer, args: (change(args[0]), *args[1:]))

    return alter


def a_part_doubled(states: torch.Tensor) -> torch.Tensor:
    states[:, 3:5] *= 2
    return states


def other_tables(model: Any) -> None:
    def copied(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"position_embeddings": tuple(part.clone() for part in kwargs["position_embeddings"])}

    model.model.layers[2].register_forward_pre_hook(copied, with_kwargs=True)


def further_argument(model: Any) -> None:
    """As families with rotary embeddings per kind of layer."""
    rotary = model.model.rotary_emb
    own = rotary.forward
    rotary.forward = lambda x, position_ids, kind: own(x, position_ids)
    rotary.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs | {"kind": "full"}), with_kwargs=True)


@pytest.mark.parametrize(
    "alter",
    [
        further_argument,
        scaled_embeddings,
        scaled_logits,
        between_layers(lambda states: states * 1.0),
        between_layers(lambda states: states.mul_(2)),
        between_layers(a_part_doubled),
        other_tables,
    ],
    ids=["further argument", "embeddings", "logits", "another object", "in place", "a part in place", "tables"],
)
def test_a_model_that_does_more_is_computed_by_itself(runner: ModelRunner, alter: Callable[[Any], None]) -> None:
    assert found(runner) is not None
    alter(runner._model.model)
    assert found(runner) is None


def test_a_model_that_calls_a_layer_twice_is_computed_by_itself(runner: ModelRunner) -> None:
    model: Any = runner._model.model
    model.model.layers.append(model.model.layers[0])
    model.config.num_hidden_layers += 1
    assert found(runner) is None


def test_a_decoder_that_computes_something_else_is_not_used(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compute = Decoder.hidden
    monkeypatch.setattr(Decoder, "hidden", lambda self, *args, **options: compute(self, *args, **options) * 1.5)
    assert found(runner) is None
    assert "its parts by themselves compute something else" in caplog.text


def test_a_decoder_that_fails_is_not_used(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("one argument is missing")

    monkeypatch.setattr(Decoder, "hidden", fail)
    assert found(runner) is None
    assert "its parts by themselves fail (one argument is missing)" in caplog.text


def test_dense_layers_beside_layers_of_experts_are_fused(tmp_path: Path) -> None:
    """The attention of a layer that is no candidate is not counted for the next one."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3MoeConfig(
        **sizes, num_hidden_layers=4, head_dim=16, max_position_embeddings=256, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, decoder_sparse_step=2, mlp_only_layers=[3],
    )  # fmt: skip
    path = save_random_model(tmp_path, config, dtype=torch.bfloat16)
    layers = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20))._model.model.model.layers
    assert [isinstance(layer, FusedDecoderLayer) for layer in layers] == [True, False, True, True]
