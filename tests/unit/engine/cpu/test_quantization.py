"""`--quantization int8`: which layers it takes, what it saves, and when it refuses."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.drivers.engine import EngineDriver
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.runner import builder
from triptych_engine.runner.attention.paged import ATTENTION_NAME
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.layer_kernel import LayerKernel
from triptych_engine.runner.cpu.linear.quant import QuantLinear, UnquantizedLinear
from triptych_engine.runner.cpu.quantize import Quantized, quantize
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.fusion.modules import LinearPart
from triptych_engine.runner.fusion.optimize import optimize
from triptych_engine.runner.model.loader import LoadedModel, load_model
from triptych_engine.runner.model.parity import check_parity
from triptych_engine.runner.model.precision import check_quantization
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.quantization.formats import Q8
from triptych_engine.settings import EngineSettings

CPU = torch.device("cpu")
TRIAL = torch.arange(20), torch.arange(20)[None]  # token ids and their positions
_SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def a_config(path: Path, quantization: str = "int8", **options) -> RunnerConfig:
    return RunnerConfig(path, "tiny", 256, 8, 64, 16, 1 << 20, quantization=quantization, **options)


def loaded_logits(runner: ModelRunner) -> torch.Tensor:
    return runner.prompt_logits(runner._model.probe_token_ids.tolist(), num_chunks=2)


def quant_layers(model: nn.Module) -> set[QuantLinear]:
    parts = [module.product if isinstance(module, LinearPart) else module for module in model.modules()]
    return {part for part in parts if isinstance(part, QuantLinear)}


def marked(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    model.set_attn_implementation(ATTENTION_NAME)
    optimize(model, CpuFusedKernels(load_kernels(), form=Q8), *TRIAL)
    return model


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("checkpoint", [torch.float32, torch.bfloat16], ids=str)
def test_logits_stay_near_those_of_the_model_as_it_is(checkpoint: torch.dtype, dtype: torch.dtype | None, tmp_path: Path):
    # Larger than other tests' models, so that errors average out as they do in real ones.
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
    path = save_random_model(tmp_path, a_tiny_llama_config(**sizes), dtype=checkpoint)
    runner = build_runner(a_config(path, dtype=dtype))
    model = runner._model.model
    layers = [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]
    assert len(layers) == 2
    assert all(layer.kernel is not None for layer in layers)
    exact = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(runner._model.probe_token_ids[None]).logits[0]
    got = loaded_logits(runner).float()
    assert nn.functional.cosine_similarity(got, exact, dim=-1).mean() > 0.995
    assert not torch.allclose(got, exact, rtol=1e-4, atol=1e-4), "nothing was quantised"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_an_activation_in_the_products_epilogue_is_the_activation(quantization: str, tmp_path: Path):
    """Which takes an MLP of which each thread has some groups. A step with adapters has none, and must give the same bits."""
    sizes = {"hidden_size": 128, "intermediate_size": 128 * torch.get_num_threads(), "num_attention_heads": 8}
    path = save_random_model(tmp_path, a_tiny_llama_config(**sizes, initializer_range=0.2), dtype=torch.bfloat16)
    inside, apart = (build_runner(a_config(path, quantization=quantization, batch_invariant=True)) for _ in range(2))
    for layer in (module for module in apart._model.model.modules() if isinstance(module, FusedDecoderLayer)):
        assert isinstance(layer.kernel, LayerKernel)
        layer.kernel.args.down.num_float_panels = 1  # which need inputs that are not prepared
    for num_tokens in (1, 3, 4, 13, 110):  # few rows, several passes, more than a block
        prompt = [(7 * i) % 90 for i in range(num_tokens)]
        assert torch.equal(inside.prompt_logits(prompt), apart.prompt_logits(prompt))


def test_batched_equals_alone(tmp_path: Path):
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    driver = EngineDriver(path, quantization="int8", batch_invariant=True)
    requests = [
        a_request(str(length), [3 + (7 * i + length) % 90 for i in range(length)], max_tokens=20) for length in (1, 5, 20, 37)
    ]
    alone = {request.request_id: driver.run(driver.scheduler(), [replace(request)])[request.request_id] for request in requests}
    together = driver.run(driver.scheduler(max_num_batched_tokens=32), requests)
    assert {name: one.token_ids for name, one in together.items()} == {name: one.token_ids for name, one in alone.items()}


FAMILIES = [
    Qwen3Config(**_SIZES, head_dim=16),
    GPTNeoXConfig(**_SIZES),
    GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2),
    Qwen3MoeConfig(**_SIZES, head_dim=16, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16),
]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_every_family_quantises_the_linear_layers_that_it_has(config: PretrainedConfig, tmp_path: Path):
    path = save_random_model(tmp_path, config)
    runner = build_runner(a_config(path))
    left = [module for module in runner._model.model.modules() if type(module) is nn.Linear]
    assert not left
    assert quant_layers(runner._model.model)


def test_where_it_quantises_nothing_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "quantize", lambda *_: Quantized(0, 0, 0))
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    with pytest.raises(StartupError, match="--quantization int8 supports no layer of this model"):
        build_runner(a_config(path, dtype=torch.bfloat16))


def test_what_is_quantised_takes_a_quarter_and_the_rest_is_let_go():
    model = marked(a_tiny_llama_config(hidden_size=256, intermediate_size=512))
    layers = quant_layers(model)
    weights = [weight for layer in layers if isinstance(layer, UnquantizedLinear) for weight, _ in layer._given]
    given, before = [weakref.ref(weight.untyped_storage()) for weight in weights], sum(weight.nbytes for weight in weights)
    del weights
    done = quantize(model, *TRIAL)
    assert done.num_layers == len(layers) > 0
    assert done.bytes_before == before
    kept = sum(layer.packed.nbytes for layer in layers)
    assert done.bytes_after == kept < 0.27 * before
    assert not any(storage() for storage in given)


def test_the_log_says_how_many_layers_and_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    path = save_random_model(tmp_path, a_tiny_llama_config())
    build_runner(a_config(path))
    assert "quantised 9 linear layers to int8" in caplog.text  # of two decoder layers four each, and the head
    assert "int8 logits agree" in caplog.text


def test_structure_is_verified_with_the_weights_as_they_are():
    """Quantised products would hide small differences; before, nothing but rounding is allowed."""
    model = marked(a_tiny_llama_config())
    assert all(layer.weight is None for layer in quant_layers(model))
    fused = [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]
    assert len(fused) == 2
    assert all(layer.kernel is None for layer in fused)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_quantised_layers_become_one_kernel_each(dtype: torch.dtype):
    model = marked(a_tiny_llama_config(hidden_size=256, intermediate_size=512), dtype)
    quantize(model, *TRIAL)
    assert [layer.kernel is not None for layer in model.modules() if isinstance(layer, FusedDecoderLayer)] == [True, True]


def test_a_kernel_that_is_not_what_its_quantised_parts_are_is_given_up(caplog: pytest.LogCaptureFixture):
    model = marked(a_tiny_llama_config(hidden_size=256, intermediate_size=512))
    first = next(layer for layer in model.modules() if isinstance(layer, FusedDecoderLayer))
    _, norm = first._norms
    norm.eps = 1.0  # the parts take it from here with each call; the kernel, when it is made
    join = FusedDecoderLayer.join

    def join_then_change(layer: FusedDecoderLayer) -> None:
        join(layer)
        norm.eps = 1e-5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedDecoderLayer, "join", join_then_change)
        quantize(model, *TRIAL)
    assert [layer.kernel is not None for layer in model.modules() if isinstance(layer, FusedDecoderLayer)] == [False, True]
    assert "layer 0 as a whole is not what its parts are" in caplog.text


def test_a_model_that_int8_moves_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_random_model(tmp_path, a_tiny_llama_config())
    true = builder.quantize

    def spoilt(model: PreTrainedModel, *trial: torch.Tensor):
        done = true(model, *trial)
        for layer in quant_layers(model):
            for memory in layer.packed.memory:
                memory.view(torch.uint8)[:, :64] = 63
        return done

    monkeypatch.setattr(builder, "quantize", spoilt)
    with pytest.raises(UnsupportedModelError, match=r"quantised to int8 its logits differ .* without --quantization"):
        build_runner(a_config(path))


def test_the_bound_for_int8_is_coarser_than_the_one_before_it(tmp_path: Path):
    path = save_random_model(tmp_path, a_tiny_llama_config())
    loaded: LoadedModel = load_model(path, "tiny", dtype=None, device=CPU, max_model_len=64)
    noisy = loaded.probe_logits + 0.1 * loaded.probe_logits.std() * torch.randn(loaded.probe_logits.shape)
    check_parity(loaded, noisy, "tiny", quantization="int8")
    with pytest.raises(UnsupportedModelError, match="on the paged cache"):
        check_parity(loaded, noisy, "tiny")
    for wrong in (loaded.probe_logits.roll(1, 0), loaded.probe_logits * float("nan")):
        with pytest.raises(UnsupportedModelError, match="quantised to int8"):
            check_parity(loaded, wrong, "tiny", quantization="int8")


@pytest.mark.parametrize(
    ("device", "dtype", "has_kernels", "reason"),
    [
        ("cuda", None, True, "is for CPUs; this engine runs on cuda"),
        ("cpu", torch.float16, True, "not with float16"),
        ("cpu", None, False, "needs the CPU kernels"),
    ],
)
def test_where_nothing_computes_with_int8_it_is_refused(device: str, dtype: torch.dtype | None, has_kernels: bool, reason: str):
    with pytest.raises(StartupError, match=reason):
        check_quantization("int8", torch.device(device), dtype, has_kernels)


def test_it_is_refused_before_the_model_is_read(tmp_path: Path):
    for options in ({"device": torch.device("cuda")}, {"attention": "torch"}, {"dtype": torch.float16}):
        with pytest.raises(StartupError, match="--quantization int8"):
            build_runner(a_config(tmp_path / "no-such-model", **options))


def test_settings_know_two_ways():
    assert EngineSettings().quantization == "none"
    assert EngineSettings(quantization="int8").quantization == "int8"
    with pytest.raises(ValidationError, match="quantization"):
        EngineSettings(quantization="int3")  # type: ignore[arg-type]
