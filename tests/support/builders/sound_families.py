"""Families whose towers take sounds, and the omni families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PretrainedConfig

from support.builders.family import (
    END_TOKENS,
    MROPE,
    QWEN3_TOWER,
    QWEN_IMAGES,
    QWEN_TOWER,
    QWEN_VIDEOS,
    TOWER,
    WHISPER,
    Family,
    Ids,
    feature_extractor,
)

OMNI_NAMED = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
OMNI_PARTS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}


def qwen_omni(config: type[PretrainedConfig], audio: dict[str, Any], tower: dict[str, Any], **text: Any) -> Callable[[Ids], Any]:
    def build(ids: Ids) -> PretrainedConfig:
        numbers = {f"{modality}_token_{end}": ids(f"<|{modality.upper()}|>") for modality in ("audio", "image", "video")
                   for end in ("id", "index")}  # fmt: skip
        return config(
            audio_config={**WHISPER, "max_source_positions": 100, "output_dim": 64, **audio},
            vision_config=tower,
            text_config=ids.text(**{"rope_parameters": MROPE, **text}),
            audio_start_token_id=ids("<|audio_bos|>"),
            audio_end_token_id=ids("<|audio_eos|>"),
            vision_start_token_id=ids("<|vision_bos|>"),
            vision_end_token_id=ids("<|vision_eos|>"),
            **numbers,
        )

    return build


QWEN2_5_OMNI = Family(
    model_class="Qwen2_5OmniThinkerForConditionalGeneration",
    config=qwen_omni(transformers.Qwen2_5OmniThinkerConfig, {"n_window": 16}, {**QWEN_TOWER, "fullatt_block_indexes": [1]}),
    processor_class="Qwen2_5OmniProcessor",
    preprocessor={**QWEN_IMAGES, **feature_extractor(chunk_length=2, return_attention_mask=True)},
    video_preprocessor=QWEN_VIDEOS,
    named_tokens=OMNI_NAMED,
    parts=OMNI_PARTS,
)

SOUND_FAMILIES: dict[str, Family] = {
    "qwen2_audio": Family(
        model_class="Qwen2AudioForConditionalGeneration",
        config=lambda ids: transformers.Qwen2AudioConfig(
            audio_config={**WHISPER, "max_source_positions": 100},
            text_config=transformers.Qwen2Config(**ids.text()),
            audio_token_index=ids("<|AUDIO|>"),
            audio_token_id=ids("<|AUDIO|>"),
        ),
        processor_class="Qwen2AudioProcessor",
        preprocessor=feature_extractor(chunk_length=2, return_attention_mask=True),
        other_tokens=("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        parts={"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"},
    ),
    "voxtral": Family(
        model_class="VoxtralForConditionalGeneration",
        config=lambda ids: transformers.VoxtralConfig(
            audio_config={**TOWER, "intermediate_size": 128, "num_mel_bins": 8, "max_source_positions": 1500},
            text_config=transformers.LlamaConfig(**ids.text(head_dim=16)),
            audio_token_id=ids("[AUDIO]"),
        ),
        processor_class="VoxtralProcessor",
        preprocessor=feature_extractor(chunk_length=30),
        # The processor takes the token of number 24, whatever the tokenizer calls it.
        first_tokens=(*END_TOKENS, *(f"<SPECIAL_{i}>" for i in range(3, 24)), "[AUDIO]", "[BEGIN_AUDIO]"),
        parts={"audio": "[BEGIN_AUDIO][AUDIO]"},
    ),
    "audioflamingo3": Family(
        model_class="AudioFlamingo3ForConditionalGeneration",
        config=lambda ids: transformers.AudioFlamingo3Config(
            audio_config={**TOWER, "num_mel_bins": 8, "max_source_positions": 50},
            text_config=transformers.Qwen2Config(**ids.text()),
            audio_token_id=ids("<sound>"),
        ),
        processor_class="AudioFlamingo3Processor",
        processor={"max_audio_len": 60},
        preprocessor=feature_extractor(return_attention_mask=True),
        other_tokens=("<sound>",),
        parts={"audio": "<sound>"},
    ),
    "qwen2_5_omni": QWEN2_5_OMNI,
    "qwen3_omni": Family(
        model_class="Qwen3OmniMoeThinkerForConditionalGeneration",
        config=qwen_omni(
            transformers.Qwen3OmniMoeThinkerConfig,
            {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 16},
            QWEN3_TOWER,
            head_dim=16,
            rope_parameters={**MROPE, "mrope_interleaved": True},
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
        ),
        processor_class="Qwen3OmniMoeProcessor",
        preprocessor={**QWEN_IMAGES, **feature_extractor(chunk_length=30, return_attention_mask=True)},
        video_preprocessor=QWEN_VIDEOS,
        named_tokens=OMNI_NAMED,
        parts=OMNI_PARTS,
    ),
}
