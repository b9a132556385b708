"""Multimodal families of 2025 and 2026, each with a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import transformers
from transformers import PretrainedConfig

from support.builders.families import FAMILY_TABLE
from support.builders.family_parts import (
    CLIP,
    MROPE,
    QWEN3_TOWER,
    QWEN3_VIDEOS,
    QWEN_IMAGES,
    QWEN_NAMED,
    QWEN_OTHER,
    QWEN_PARTS,
    QWEN_SIZE,
    QWEN_TOWER,
    SIGLIP,
    TOWER,
    Family,
    Ids,
    image_processor,
    qwen_vl,
)

_ROPE = {**MROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
_QWEN3_5_TOWER = {key: value for key, value in QWEN3_TOWER.items() if key != "deepstack_visual_indexes"}
_DELTA_NET: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": {**MROPE, "mrope_section": [1, 0, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25},
}
_PINPOINTS = [[28, 56], [56, 28], [56, 56]]
_TOWER = {**QWEN_TOWER, "image_size": 56, "patch_size": 14}


def _glm(config: type[PretrainedConfig], **text: Any) -> Callable[[Ids], PretrainedConfig]:
    def build(ids: Ids) -> PretrainedConfig:
        return config(
            text_config=ids.text(rope_parameters=_ROPE, **text),
            vision_config=_TOWER,
            image_token_id=ids("<|image|>"),
            video_token_id=ids("<|video|>"),
            image_start_token_id=ids("<|begin_of_image|>"),
            image_end_token_id=ids("<|end_of_image|>"),
            video_start_token_id=ids("<|begin_of_video|>"),
            video_end_token_id=ids("<|end_of_video|>"),
        )

    return build


def _glm_family(model_class: str, config: Callable[[Ids], PretrainedConfig], kind: str = "Glm4v") -> Family:
    return Family(
        model_class=model_class,
        config=config,
        processor_class=f"{kind}Processor",
        preprocessor=image_processor(f"{kind}ImageProcessor", size=QWEN_SIZE, patch_size=14, temporal_patch_size=2, merge_size=2),
        video_preprocessor={"video_processor_type": f"{kind}VideoProcessor"},
        named_tokens={"image_token": "<|image|>", "video_token": "<|video|>"},
        other_tokens=("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
        parts={"image": "<|begin_of_image|><|image|><|end_of_image|>"},
    )


def _gemma4(**text: Any) -> Family:
    return Family(
        model_class="Gemma4ForConditionalGeneration",
        config=lambda ids: transformers.Gemma4Config(
            text_config=ids.text(head_dim=16, global_head_dim=32, sliding_window=24, layer_types=_GEMMA4_LAYERS, **text),
            vision_config={**TOWER, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64},
            audio_config=None,
            image_token_id=ids("<|image|>"),
            boi_token_id=ids("<|image>"),
            eoi_token_id=ids("<image|>"),
            video_token_id=ids("<|video|>"),
            audio_token_id=ids("<|audio|>"),
        ),
        processor_class="Gemma4Processor",
        preprocessor={
            **image_processor("Gemma4ImageProcessor", patch_size=4, max_soft_tokens=70, pooling_kernel_size=3),
            "feature_extractor_type": "Gemma4AudioFeatureExtractor",
            "feature_size": 32,
        },
        video_preprocessor={"video_processor_type": "Gemma4VideoProcessor"},
        named_tokens={
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
        other_tokens=("<|video|>",),
        parts={"image": "<|image|>"},
    )


_GEMMA4_LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
NEWER_FAMILIES: dict[str, Family] = {
    # The large ones attend to all of a picture in layers with a window; the small ones have embeddings for each layer instead.
    "gemma4": _gemma4(num_hidden_layers=4, use_bidirectional_attention="vision", hidden_size_per_layer_input=0),
    "gemma4_per_layer": _gemma4(num_hidden_layers=4, hidden_size_per_layer_input=8, num_kv_shared_layers=2),
    "glm4v": _glm_family("Glm4vForConditionalGeneration", _glm(transformers.Glm4vConfig)),
    "glm4v_moe": _glm_family(
        "Glm4vMoeForConditionalGeneration",
        _glm(
            transformers.Glm4vMoeConfig,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_shared_experts=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
        ),
    ),
    "glm46v": _glm_family("Glm46VForConditionalGeneration", _glm(transformers.Glm46VConfig), "Glm46V"),
    "glm_ocr": _glm_family("GlmOcrForConditionalGeneration", _glm(transformers.GlmOcrConfig), "Glm46V"),
    "paddleocr_vl": Family(
        model_class="PaddleOCRVLForConditionalGeneration",
        config=lambda ids: transformers.PaddleOCRVLConfig(
            text_config=ids.text(rope_parameters=MROPE, head_dim=16),
            vision_config={**TOWER, "image_size": 56, "patch_size": 14},
            image_token_id=ids("<|IMAGE_PLACEHOLDER|>"),
            video_token_id=ids("<|video_pad|>"),
            vision_start_token_id=ids("<|IMAGE_START|>"),
            vision_end_token_id=ids("<|IMAGE_END|>"),
        ),
        processor_class="PaddleOCRVLProcessor",
        preprocessor=image_processor(
            "PaddleOCRVLImageProcessor", size=QWEN_SIZE, patch_size=14, temporal_patch_size=1, merge_size=2
        ),
        named_tokens={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        other_tokens=("<|IMAGE_START|>", "<|IMAGE_END|>", "<|video_pad|>"),
        parts={"image": "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"},
    ),
    "qwen3_vl_moe": replace(
        FAMILY_TABLE["qwen3_vl"],
        model_class="Qwen3VLMoeForConditionalGeneration",
        config=qwen_vl(
            transformers.Qwen3VLMoeConfig,
            QWEN3_TOWER,
            head_dim=16,
            rope_parameters={**MROPE, "mrope_interleaved": True},
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
        ),
    ),
    "qwen3_5": replace(
        FAMILY_TABLE["qwen3_vl"],
        model_class="Qwen3_5ForConditionalGeneration",
        config=qwen_vl(transformers.Qwen3_5Config, _QWEN3_5_TOWER, **_DELTA_NET),
    ),
    "qwen3_5_moe": replace(
        FAMILY_TABLE["qwen3_vl"],
        model_class="Qwen3_5MoeForConditionalGeneration",
        config=qwen_vl(
            transformers.Qwen3_5MoeConfig,
            _QWEN3_5_TOWER,
            **_DELTA_NET,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
    ),
    "lfm2_vl": Family(
        model_class="Lfm2VlForConditionalGeneration",
        config=lambda ids: transformers.Lfm2VlConfig(
            text_config=transformers.Lfm2Config(**ids.text(layer_types=["conv", "full_attention", "conv"])),
            vision_config={
                **TOWER,
                "model_type": "siglip2_vision_model",
                "num_patches": 16,
                "patch_size": 8,
                "vision_use_head": False,
            },
            image_token_id=ids("<image>"),
            projector_hidden_size=48,
        ),
        processor_class="Lfm2VlProcessor",
        # Of the tests' pictures, some are cut into tiles of four tokens, and others are not.
        preprocessor=image_processor(
            "Lfm2VlImageProcessor",
            encoder_patch_size=8,
            tile_size=32,
            min_image_tokens=2,
            max_image_tokens=10,
            max_tiles=4,
            max_pixels_tolerance=1.5,
        ),
        named_tokens={
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail_token": "<|img_thumbnail|>",
        },
        other_tokens=tuple(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
        parts={"image": "<image>"},
    ),
    "lfm3_vl": Family(
        model_class="Lfm3VlForConditionalGeneration",
        config=lambda ids: transformers.Lfm3VlConfig(
            text_config=transformers.Lfm3Config(**ids.text()),
            vision_config={**TOWER, "num_hidden_layers": 3, "num_key_value_heads": 1, "patch_size": 14},
            image_token_id=ids("<|image_pad|>"),
            video_token_id=ids("<|video_pad|>"),
            vision_start_token_id=ids("<|vision_start|>"),
            vision_end_token_id=ids("<|vision_end|>"),
            projector_hidden_size=48,
        ),
        processor_class="Lfm3VlProcessor",
        preprocessor=QWEN_IMAGES,
        video_preprocessor=QWEN3_VIDEOS,
        named_tokens=QWEN_NAMED,
        other_tokens=QWEN_OTHER,
        parts=QWEN_PARTS,
    ),
    "llava_next": Family(
        model_class="LlavaNextForConditionalGeneration",
        config=lambda ids: transformers.LlavaNextConfig(
            vision_config=transformers.CLIPVisionConfig(**CLIP),
            text_config=transformers.MistralConfig(**ids.text()),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            image_grid_pinpoints=_PINPOINTS,
        ),
        processor_class="LlavaNextProcessor",
        processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        preprocessor=image_processor(
            "LlavaNextImageProcessor",
            size={"shortest_edge": 28},
            crop_size={"height": 28, "width": 28},
            image_grid_pinpoints=_PINPOINTS,
        ),
        other_tokens=("<image>",),
        parts={"image": "<image>\n"},
    ),
    "granite_vision": Family(
        model_class="LlavaNextForConditionalGeneration",
        config=lambda ids: transformers.LlavaNextConfig(
            vision_config=transformers.SiglipVisionConfig(**{**SIGLIP, "num_hidden_layers": 4}),
            text_config=transformers.GraniteConfig(
                **ids.text(embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5)
            ),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            image_grid_pinpoints=_PINPOINTS,
            vision_feature_layer=[-4, -3, -1],
            vision_feature_select_strategy="full",
            use_image_newline_parameter=True,
        ),
        processor_class="LlavaNextProcessor",
        processor={"patch_size": 7, "vision_feature_select_strategy": "full"},
        preprocessor=image_processor(
            "LlavaNextImageProcessor",
            size={"height": 28, "width": 28},
            crop_size={"height": 28, "width": 28},
            do_center_crop=True,
            image_grid_pinpoints=_PINPOINTS,
        ),
        other_tokens=("<image>",),
        parts={"image": "<image>\n"},
    ),
}
