"""Multimodal models whose inner model is its own decoder, and models whose towers need packages that are not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from support.builders.engine import a_request
from support.drivers.engine import EngineDriver
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
from triptych.errors import StartupError, UnsupportedModelError
from triptych_encoder.tower.loading import load_towers
from triptych_engine.runner.model.loader import load_model
from triptych_engine.runner.model.towers import language_model_only

SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PROMPTS = [[(7 * i + 3) % 89 + 8 for i in range(20)], [11, 23]]
needs_timm_missing = pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")


def phi4_multimodal() -> PretrainedConfig:
    tower = {"hidden_size": 32, "num_attention_heads": 4}
    return transformers.Phi4MultimodalConfig(
        **SHAPE,
        original_max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        vision_config={**tower, "intermediate_size": 64, "num_hidden_layers": 2, "crop_size": 28, "patch_size": 14,
                       "image_size": 28, "image_token_id": 5},
        audio_config={**tower, "intermediate_size": 32, "num_blocks": 1, "audio_token_id": 6, "ext_pw_out_channel": 32,
                      "nemo_conv_channels": 32},
    )  # fmt: skip


def mistral4() -> PretrainedConfig:
    return transformers.Mistral4Config(
        **SHAPE, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, kv_lora_rank=16, q_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    )  # fmt: skip


def model_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    name = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[config.model_type]
    assert isinstance(name, str)
    cls: type[PreTrainedModel] = getattr(transformers, name)
    return cls


def save(path: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Write a checkpoint with random weights. Returns the model in float32."""
    cls = model_class(config)
    config.architectures = [cls.__name__]
    torch.manual_seed(0)
    model = cls(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.15)
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("config", [phi4_multimodal(), mistral4()], ids=lambda config: config.model_type)
def test_a_model_that_is_its_own_decoder_is_served_as_transformers_computes_it(config: PretrainedConfig, tmp_path: Path) -> None:
    model = save(tmp_path, config)
    driver = EngineDriver(tmp_path)
    requests = [a_request(f"r{i}", prompt, max_tokens=8) for i, prompt in enumerate(PROMPTS)]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), requests)
    for number, prompt in enumerate(PROMPTS):
        text = generated[f"r{number}"].token_ids
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        assert text == logits.argmax(-1).tolist()


def test_its_towers_are_not_loaded(tmp_path: Path) -> None:
    save(tmp_path, phi4_multimodal())
    loaded = load_model(tmp_path, "tiny", dtype=None, device=torch.device("cpu"), max_model_len=64)
    inner = loaded.model.get_submodule("model.embed_tokens_extend")
    assert not any(isinstance(part, PreTrainedModel) for part in inner.modules())


def save_language_model(path: Path, cls: type[PreTrainedModel], config: PretrainedConfig) -> None:
    """Write random weights of the language model alone: the tower cannot be built here."""
    torch.manual_seed(0)
    state = language_model_only(cls)(config).state_dict()
    weights = {name: torch.randn_like(value) * 0.15 if value.dim() > 1 else value.contiguous() for name, value in state.items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})


@pytest.fixture
def without_timm(tmp_path: Path) -> Path:
    """A checkpoint of a model whose tower is one of timm's, with the weights of its language model."""
    text = {**SHAPE, "model_type": "qwen2", "num_key_value_heads": 2}
    config = transformers.FastVlmConfig(text_config=text, image_token_id=5)
    config.architectures = ["FastVlmForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    save_language_model(tmp_path, transformers.FastVlmForConditionalGeneration, config)
    return tmp_path


@needs_timm_missing
def test_a_tower_that_is_dropped_anyway_needs_no_package(without_timm: Path) -> None:
    driver = EngineDriver(without_timm)
    assert driver.run(driver.scheduler(), [a_request("r", PROMPTS[0], max_tokens=4)])["r"].token_ids


@needs_timm_missing
def test_the_encoder_names_the_missing_package(without_timm: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(without_timm)
    with pytest.raises(StartupError, match=r"towers of tiny \(fast_vlm\) need a package that is not installed: .*timm"):
        load_towers(without_timm, "tiny", config, dtype=None, device=torch.device("cpu"))


@needs_timm_missing
def test_a_language_model_that_needs_its_towers_is_refused(tmp_path: Path) -> None:
    text = {
        **SHAPE, "num_hidden_layers": 4, "head_dim": 8, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0, "laurel_rank": 4, "altup_num_inputs": 2, "layer_types": ["full_attention"] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    }  # fmt: skip
    audio = {"hidden_size": 32, "conf_num_hidden_layers": 1, "conf_num_attention_heads": 4}
    config = transformers.Gemma3nConfig(text_config=text, audio_config=audio)
    config.architectures = ["Gemma3nForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    save_language_model(tmp_path, transformers.Gemma3nForConditionalGeneration, config)
    with pytest.raises(
        UnsupportedModelError, match=r"cannot serve tiny \(gemma3n\): its language model does not run without its towers"
    ):
        load_model(tmp_path, "tiny", dtype=None, device=torch.device("cpu"), max_model_len=64)
