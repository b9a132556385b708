"""Families whose towers take pictures, and some of them videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PretrainedConfig

from support.builders.family import (
    CLIP,
    MROPE,
    PIXTRAL,
    QWEN3_TOWER,
    QWEN3_VIDEOS,
    QWEN_IMAGES,
    QWEN_TOWER,
    QWEN_VIDEOS,
    SIGLIP,
    TOWER,
    Family,
    Ids,
    image_processor,
)

SQUARE_28 = {"size": {"height": 28, "width": 28}}
CLIP_28 = image_processor(
    "CLIPImageProcessor", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_center_crop=True, do_resize=True
)
SIGLIP_28 = image_processor("SiglipImageProcessor", **SQUARE_28)
PIXTRAL_64 = image_processor("PixtralImageProcessor", size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
QWEN_NAMED = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
QWEN_OTHER = ("<|vision_start|>", "<|vision_end|>")
QWEN_PARTS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}
IDEFICS_TOKENS = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
SPLIT_32 = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}


def qwen_vl(config: type[PretrainedConfig], tower: dict[str, Any], **text: Any) -> Callable[[Ids], PretrainedConfig]:
    def build(ids: Ids) -> PretrainedConfig:
        return config(
            text_config=ids.text(**{"rope_parameters": MROPE, **text}),
            vision_config=tower,
            image_token_id=ids("<|image_pad|>"),
            video_token_id=ids("<|video_pad|>"),
            vision_start_token_id=ids("<|vision_start|>"),
            vision_end_token_id=ids("<|vision_end|>"),
        )

    return build


def llava(tower: PretrainedConfig, text: type[PretrainedConfig], placeholder: str = "<image>", **more: Any) -> Callable[[Ids], Any]:
    def build(ids: Ids) -> PretrainedConfig:
        return transformers.LlavaConfig(
            vision_config=tower,
            text_config=text(**ids.text()),
            image_token_id=ids(placeholder),
            image_token_index=ids(placeholder),
            **more,
        )

    return build


def idefics(config: type[PretrainedConfig]) -> Callable[[Ids], PretrainedConfig]:
    return lambda ids: config(
        vision_config={**TOWER, "image_size": 32, "patch_size": 8},
        text_config=transformers.LlamaConfig(**ids.text()),
        image_token_id=ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )


QWEN2_VL = Family(
    model_class="Qwen2VLForConditionalGeneration",
    config=qwen_vl(transformers.Qwen2VLConfig, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}),
    processor_class="Qwen2VLProcessor",
    preprocessor=QWEN_IMAGES,
    video_preprocessor=QWEN_VIDEOS,
    named_tokens=QWEN_NAMED,
    other_tokens=QWEN_OTHER,
    parts=QWEN_PARTS,
)
LLAVA_CLIP = Family(
    model_class="LlavaForConditionalGeneration",
    config=llava(transformers.CLIPVisionConfig(**CLIP), transformers.LlamaConfig),
    processor_class="LlavaProcessor",
    processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    preprocessor=CLIP_28,
    other_tokens=("<image>",),
    parts={"image": "<image>\n"},
)
IDEFICS3 = Family(
    model_class="Idefics3ForConditionalGeneration",
    config=idefics(transformers.Idefics3Config),
    processor_class="Idefics3Processor",
    processor={"image_seq_len": 4},
    preprocessor=image_processor("Idefics3ImageProcessor", **SPLIT_32),
    other_tokens=IDEFICS_TOKENS,
    parts={"image": "<image>"},
)

PICTURE_FAMILIES: dict[str, Family] = {
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": Family(
        model_class="Qwen2_5_VLForConditionalGeneration",
        config=qwen_vl(transformers.Qwen2_5_VLConfig, {**QWEN_TOWER, "fullatt_block_indexes": [1]}),
        processor_class="Qwen2_5_VLProcessor",
        preprocessor=QWEN_IMAGES,
        video_preprocessor=QWEN_VIDEOS,
        named_tokens=QWEN_NAMED,
        other_tokens=QWEN_OTHER,
        parts=QWEN_PARTS,
    ),
    "qwen3_vl": Family(
        model_class="Qwen3VLForConditionalGeneration",
        config=qwen_vl(transformers.Qwen3VLConfig, QWEN3_TOWER, head_dim=16, rope_parameters={**MROPE, "mrope_interleaved": True}),
        processor_class="Qwen3VLProcessor",
        preprocessor=QWEN_IMAGES,
        video_preprocessor=QWEN3_VIDEOS,
        named_tokens=QWEN_NAMED,
        other_tokens=QWEN_OTHER,
        # The processor puts the vision tokens of a video around each of its frames.
        parts={**QWEN_PARTS, "video": "<|vision_start|><|video_pad|><|vision_end|>"},
    ),
    "llava_clip": LLAVA_CLIP,
    "llava_siglip": Family(
        model_class="LlavaForConditionalGeneration",
        config=llava(transformers.SiglipVisionConfig(**SIGLIP), transformers.Qwen2Config, vision_feature_select_strategy="full"),
        processor_class="LlavaProcessor",
        processor={"patch_size": 7, "vision_feature_select_strategy": "full"},
        preprocessor=SIGLIP_28,
        other_tokens=("<image>",),
        parts={"image": "<image>\n"},
    ),
    "llava_pixtral": Family(
        model_class="LlavaForConditionalGeneration",
        config=llava(
            transformers.PixtralVisionConfig(**PIXTRAL),
            transformers.MistralConfig,
            "[IMG]",
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        processor_class="PixtralProcessor",
        processor={"patch_size": 8},
        preprocessor=PIXTRAL_64,
        other_tokens=PIXTRAL_TOKENS,
        parts={"image": "[IMG]"},
    ),
    "llava_onevision": Family(
        model_class="LlavaOnevisionForConditionalGeneration",
        config=lambda ids: transformers.LlavaOnevisionConfig(
            vision_config=transformers.SiglipVisionConfig(**SIGLIP),
            text_config=transformers.Qwen2Config(**ids.text()),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            video_token_id=ids("<video>"),
            video_token_index=ids("<video>"),
            image_grid_pinpoints=[[28, 28], [28, 56], [56, 28], [56, 56]],
        ),
        processor_class="LlavaOnevisionProcessor",
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        preprocessor=image_processor(
            "LlavaOnevisionImageProcessor", image_grid_pinpoints=[[28, 28], [28, 56], [56, 28], [56, 56]], **SQUARE_28
        ),
        video_preprocessor={"video_processor_type": "LlavaOnevisionVideoProcessor", **SQUARE_28},
        other_tokens=("<image>", "<video>"),
        parts={"image": "<image>\n"},
    ),
    "idefics3": IDEFICS3,
    "smolvlm": Family(
        model_class="SmolVLMForConditionalGeneration",
        config=idefics(transformers.SmolVLMConfig),
        processor_class="SmolVLMProcessor",
        processor={"image_seq_len": 4},
        preprocessor=image_processor("SmolVLMImageProcessor", **SPLIT_32),
        video_preprocessor={"video_processor_type": "SmolVLMVideoProcessor", **SPLIT_32},
        other_tokens=(*IDEFICS_TOKENS, "<video>"),
        parts={"image": "<image>"},
    ),
    "gemma3": Family(
        model_class="Gemma3ForConditionalGeneration",
        config=lambda ids: transformers.Gemma3Config(
            text_config=ids.text(
                head_dim=16,
                sliding_window=6,
                query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            ),
            vision_config=SIGLIP,
            mm_tokens_per_image=4,
            image_token_id=ids("<image_soft_token>"),
            image_token_index=ids("<image_soft_token>"),
            boi_token_index=ids("<start_of_image>"),
            eoi_token_index=ids("<end_of_image>"),
        ),
        processor_class="Gemma3Processor",
        processor={"image_seq_length": 4},
        preprocessor=image_processor("Gemma3ImageProcessor", do_pan_and_scan=False, **SQUARE_28),
        named_tokens={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        parts={"image": "<start_of_image>"},
    ),
    "internvl": Family(
        model_class="InternVLForConditionalGeneration",
        config=lambda ids: transformers.InternVLConfig(
            vision_config={**TOWER, "image_size": [32, 32], "patch_size": [8, 8]},
            text_config=transformers.Qwen2Config(**ids.text()),
            image_token_id=ids("<IMG_CONTEXT>"),
            image_seq_length=4,
        ),
        processor_class="InternVLProcessor",
        processor={"image_seq_length": 4},
        preprocessor=image_processor(
            "GotOcr2ImageProcessor", size={"height": 32, "width": 32}, min_patches=1, max_patches=4, crop_to_patches=True
        ),
        video_preprocessor={"video_processor_type": "InternVLVideoProcessor", "size": {"height": 32, "width": 32}},
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        parts={"image": "<IMG_CONTEXT>\n"},
    ),
    "mistral3": Family(
        model_class="Mistral3ForConditionalGeneration",
        config=lambda ids: transformers.Mistral3Config(
            vision_config=transformers.PixtralVisionConfig(**PIXTRAL),
            text_config=transformers.MistralConfig(**ids.text()),
            image_token_id=ids("[IMG]"),
            image_token_index=ids("[IMG]"),
            spatial_merge_size=2,
        ),
        processor_class="PixtralProcessor",
        processor={"patch_size": 8, "spatial_merge_size": 2},
        preprocessor=PIXTRAL_64,
        other_tokens=PIXTRAL_TOKENS,
        parts={"image": "[IMG]"},
    ),
    "paligemma": Family(
        model_class="PaliGemmaForConditionalGeneration",
        config=lambda ids: transformers.PaliGemmaConfig(
            text_config=transformers.GemmaConfig(**ids.text(head_dim=16)),
            vision_config=transformers.SiglipVisionConfig(**SIGLIP, projection_dim=64),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            projection_dim=64,
        ),
        processor_class="PaliGemmaProcessor",
        preprocessor=image_processor("SiglipImageProcessor", image_seq_length=16, **SQUARE_28),
        named_tokens={"image_token": "<image>"},
        other_tokens=(*(f"<loc{i:0>4}>" for i in range(1024)), *(f"<seg{i:0>3}>" for i in range(128))),
        parts={"image": "<image>"},
    ),
}
