"""Models that would be computed wrongly are refused by name, with the reason."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.media_files import checkpoint
from support.builders.text_families import COMMON
from transformers import (
    BloomConfig,
    DeepseekV32Config,
    FalconConfig,
    JambaConfig,
    Llama4TextConfig,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    Phi3Config,
    Phi4MultimodalConfig,
    PhimoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3NextConfig,
    T5Config,
    ViTConfig,
    WhisperConfig,
)
from triptych.errors import UnsupportedModelError
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model.loader import LoadedModel, load_model
from triptych_engine.runner.model.parity import check_parity
from triptych_engine.runner.model.refusals import check_supported

CPU = torch.device("cpu")
PHI4_MULTIMODAL = Phi4MultimodalConfig(
    **COMMON,
    vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
    audio_config={"hidden_size": 16, "intermediate_size": 16, "num_blocks": 1, "num_attention_heads": 2, "input_size": 16},
)
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}


@pytest.mark.parametrize(
    ("config", "max_model_len", "reason"),
    [
        (T5Config(), 512, "encoder-decoder model; of these only whisper is served"),
        (WhisperConfig(), 512, "its decoder has 448 positions"),
        (WhisperConfig(quantization_config={"quant_method": "gptq", "bits": 4}), 448, "for text models only"),
        (ViTConfig(), 512, "no causal language model"),
        (
            a_tiny_llama_config(layer_types=["compressed_sparse_attention"] * 2),
            512,
            "compressed_sparse_attention",
        ),
        (a_tiny_llama_config(layer_types=["indexed_attention"] * 2), 512, "kinds that are not known here .indexed_attention"),
        (
            Phi3Config(
                original_max_position_embeddings=4096,
                rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
                pad_token_id=0,
            ),
            8192,
            "longrope rope depends on the longest position",
        ),
        (
            a_tiny_llama_config(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            512,
            "dynamic rope depends",
        ),
        (a_tiny_llama_config(quantization_config={"quant_method": "exl3"}), 128, "quantised by 'exl3'"),
    ],
)
def test_the_configuration_tells(config: PretrainedConfig, max_model_len: int, reason: str):
    with pytest.raises(UnsupportedModelError, match=rf"cannot serve some/model \({config.model_type}\): .*{reason}"):
        check_supported(config, "some/model", max_model_len)


def test_cross_attention_is_not_divided():
    check_supported(WhisperConfig(), "some/model", 448)
    with pytest.raises(UnsupportedModelError, match="its cross-attention cannot be divided among ranks"):
        check_supported(WhisperConfig(), "some/model", 448, num_ranks=2)


def test_indexers_are_not_divided():
    check_supported(DeepseekV32Config(), "some/model", 8192)
    with pytest.raises(UnsupportedModelError, match="its indexers cannot be divided among ranks"):
        check_supported(DeepseekV32Config(), "some/model", 8192, num_ranks=2)


@pytest.mark.parametrize(
    ("config", "max_model_len"),
    [
        (a_tiny_llama_config(), 256),
        (a_tiny_llama_config(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), 256),
        (Llama4TextConfig(attention_chunk_size=8192), 10_000),
        (Qwen3NextConfig(), 512),
    ],
)
def test_what_stays_within_its_limits_passes(config: PretrainedConfig, max_model_len: int):
    check_supported(config, "some/model", max_model_len)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=4),
        Mamba2Config(vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=16, n_groups=1),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_attend_in_their_own_way_are_refused_at_load(config: PretrainedConfig, tmp_path: Path):
    save_random_model(tmp_path, config)
    with pytest.raises(UnsupportedModelError, match=r"cannot serve tiny \(\w+\): "):
        load_model(tmp_path, "tiny", dtype=None, device=CPU, max_model_len=64)


@pytest.mark.parametrize(
    "config",
    [
        JambaConfig(**COMMON, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=4, mamba_d_state=4, mamba_dt_rank=4),
        MiniMaxConfig(**COMMON, head_dim=16, layer_types=["linear_attention", "full_attention", "linear_attention"]),
    ],
    ids=lambda config: config.model_type,
)
def test_states_that_are_not_known_are_refused(config: PretrainedConfig, tmp_path: Path):
    save_random_model(tmp_path, config)
    with pytest.raises(UnsupportedModelError, match=r"(the state that JambaMambaMixer|the states of its layers 0, 2 ).* not known"):
        load_model(tmp_path, "tiny", dtype=None, device=CPU, max_model_len=64)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2MoeConfig(**COMMON, **EXPERTS, use_sliding_window=True, sliding_window=30, max_window_layers=1),
        PhimoeConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=30),
    ],
    ids=lambda config: config.model_type,
)
def test_a_window_that_only_a_mask_has_is_refused_beyond_it(config: PretrainedConfig, tmp_path: Path):
    save_random_model(tmp_path, config)
    with pytest.raises(UnsupportedModelError, match=r"the last 30 tokens is in its mask only; set max_model_len to that"):
        load_model(tmp_path, "tiny", dtype=None, device=CPU, max_model_len=31)
    assert len(load_model(tmp_path, "tiny", dtype=None, device=CPU, max_model_len=30).layers) == config.num_hidden_layers


def test_the_media_of_phi4_multimodal_are_refused_and_its_text_is_served(tmp_path: Path):
    save_random_model(tmp_path, PHI4_MULTIMODAL)
    reason = build_runner(RunnerConfig(tmp_path, "tiny", 64, 4, 64, 16, 1 << 24, dtype=torch.float32)).media_traits
    assert isinstance(reason, str)
    assert "takes text only here (its pictures and sounds each need an adapter" in reason


def test_a_directory_of_an_unknown_kind_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "made-up"}')
    with pytest.raises(UnsupportedModelError, match="cannot serve tiny"):
        load_model(tmp_path, "tiny", dtype=None, device=CPU, max_model_len=64)


def test_logits_that_differ_from_transformers_are_refused(tmp_path: Path):
    loaded: LoadedModel = load_model(
        save_random_model(tmp_path, a_tiny_llama_config()), "tiny", dtype=None, device=CPU, max_model_len=64
    )
    check_parity(loaded, loaded.probe_logits, "tiny")
    with pytest.raises(UnsupportedModelError, match="its logits differ from transformers' own"):
        check_parity(loaded, loaded.probe_logits.roll(1, 0), "tiny")
    with pytest.raises(UnsupportedModelError, match=r"with a KV cache in bfloat16 .* with --kv-cache-dtype float32"):
        check_parity(loaded, loaded.probe_logits.roll(1, 0), "tiny", cache_dtype=torch.bfloat16)
    with_zeros = loaded.probe_logits * (torch.arange(len(loaded.probe_logits)) > 0)[:, None]
    check_parity(dataclasses.replace(loaded, probe_logits=with_zeros), with_zeros, "tiny")
    with pytest.raises(UnsupportedModelError, match="nan"):
        check_parity(loaded, loaded.probe_logits * float("nan"), "tiny")


def test_no_warning_says_that_the_attention_of_the_towers_is_unknown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    log = logging.getLogger("transformers.modeling_utils")  # transformers' loggers do not propagate
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "level", logging.WARNING)
    load_model(checkpoint("llava_siglip"), "tiny", dtype=None, device=CPU, max_model_len=64)
    assert "undefined behavior" not in caplog.text
