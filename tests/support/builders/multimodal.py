"""Tiny random checkpoints of the multimodal families, complete as on a hub: weights, tokenizer, chat template, processor files.

    path = build_checkpoint("qwen2_5_vl", directory)

Weights are float32 and differ from zero everywhere, so that whatever is left out of a computation shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from support.builders.tokenizer import byte_level_tokenizer

END_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_MROPE = {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_CLIP = {**_TOWER, "image_size": 28, "patch_size": 7}
_SIGLIP = {**_CLIP, "vision_use_head": False}
_PIXTRAL = {**_TOWER, "image_size": 64, "patch_size": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 8}
_QWEN_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
_QWEN3_TOWER = {**_QWEN_TOWER, "depth": 3, "patch_size": 14, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}


class _Ids:
    """Token ids of a family's special tokens, as attributes by their names, and the text model's configuration."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        assert token_id is not None, token
        return token_id

    def text(self, **more: Any) -> dict[str, Any]:
        return {
            "vocab_size": (len(self._tokenizer) + 7) // 8 * 8,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        }


@dataclass(frozen=True)
class _Family:
    model_class: str
    config: Callable[[_Ids], PretrainedConfig]
    processor_class: str
    #: preprocessor_config.json: the image processor, the feature extractor, or both.
    preprocessor: dict[str, Any]
    #: What the chat template writes for a part: modality -> text.
    parts: dict[str, str]
    #: Special tokens by the name that the tokenizer has for them.
    named_tokens: dict[str, str] = field(default_factory=dict)
    other_tokens: tuple[str, ...] = ()
    #: processor_config.json, beside the class.
    processor: dict[str, Any] = field(default_factory=dict)
    video_preprocessor: dict[str, Any] | None = None
    #: Tokens that come first in the vocabulary, for families that fix the number of one.
    first_tokens: tuple[str, ...] = END_TOKENS
    bos: str = "<|im_start|>"


def _image_processor(kind: str, **more: Any) -> dict[str, Any]:
    return {"image_processor_type": kind, **more}


def _feature_extractor(chunk_length: int = 1, **more: Any) -> dict[str, Any]:
    """A Whisper feature extractor of 8 mel bins whose window is so many seconds."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 8,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": chunk_length,
        "padding_value": 0.0,
        "return_attention_mask": False,
        **more,
    }


_SQUARE_28 = {"size": {"height": 28, "width": 28}}
_CLIP_28 = _image_processor(
    "CLIPImageProcessor", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_center_crop=True, do_resize=True
)
_SIGLIP_28 = _image_processor("SiglipImageProcessor", **_SQUARE_28)
_PIXTRAL_64 = _image_processor("PixtralImageProcessor", size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
_PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_QWEN_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 24}
_QWEN_IMAGES = _image_processor("Qwen2VLImageProcessor", size=_QWEN_SIZE, patch_size=14, temporal_patch_size=2, merge_size=2)
_QWEN_VIDEOS = {
    "video_processor_type": "Qwen2VLVideoProcessor",
    "size": _QWEN_SIZE,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "do_sample_frames": True,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 16,
    "cap_pixels_per_frame": False,
}
_QWEN3_VIDEOS = {
    **_QWEN_VIDEOS,
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64},
}
_QWEN_NAMED = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
_QWEN_OTHER = ("<|vision_start|>", "<|vision_end|>")
_QWEN_PARTS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}
_OMNI_NAMED = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_OMNI_PARTS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}
_IDEFICS_TOKENS = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
_SPLIT_32 = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}


def _qwen_vl(config: type[PretrainedConfig], tower: dict[str, Any], **text: Any) -> Callable[[_Ids], PretrainedConfig]:
    def build(ids: _Ids) -> PretrainedConfig:
        return config(
            text_config=ids.text(**{"rope_parameters": _MROPE, **text}),
            vision_config=tower,
            image_token_id=ids("<|image_pad|>"),
            video_token_id=ids("<|video_pad|>"),
            vision_start_token_id=ids("<|vision_start|>"),
            vision_end_token_id=ids("<|vision_end|>"),
        )

    return build


def _llava(
    tower: PretrainedConfig, text: type[PretrainedConfig], placeholder: str = "<image>", **more: Any
) -> Callable[[_Ids], Any]:
    def build(ids: _Ids) -> PretrainedConfig:
        return transformers.LlavaConfig(
            vision_config=tower,
            text_config=text(**ids.text()),
            image_token_id=ids(placeholder),
            image_token_index=ids(placeholder),
            **more,
        )

    return build


def _idefics(config: type[PretrainedConfig]) -> Callable[[_Ids], PretrainedConfig]:
    return lambda ids: config(
        vision_config={**_TOWER, "image_size": 32, "patch_size": 8},
        text_config=transformers.LlamaConfig(**ids.text()),
        image_token_id=ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )


def _qwen_omni(config: type[PretrainedConfig], audio: dict[str, Any], tower: dict[str, Any], **text: Any) -> Callable[[_Ids], Any]:
    def build(ids: _Ids) -> PretrainedConfig:
        numbers = {f"{modality}_token_{end}": ids(f"<|{modality.upper()}|>") for modality in ("audio", "image", "video")
                   for end in ("id", "index")}  # fmt: skip
        return config(
            audio_config={**_WHISPER, "max_source_positions": 100, "output_dim": 64, **audio},
            vision_config=tower,
            text_config=ids.text(**{"rope_parameters": _MROPE, **text}),
            audio_start_token_id=ids("<|audio_bos|>"),
            audio_end_token_id=ids("<|audio_eos|>"),
            vision_start_token_id=ids("<|vision_bos|>"),
            vision_end_token_id=ids("<|vision_eos|>"),
            **numbers,
        )

    return build


_QWEN2_VL = _Family(
    model_class="Qwen2VLForConditionalGeneration",
    config=_qwen_vl(transformers.Qwen2VLConfig, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}),
    processor_class="Qwen2VLProcessor",
    preprocessor=_QWEN_IMAGES,
    video_preprocessor=_QWEN_VIDEOS,
    named_tokens=_QWEN_NAMED,
    other_tokens=_QWEN_OTHER,
    parts=_QWEN_PARTS,
)
_LLAVA_CLIP = _Family(
    model_class="LlavaForConditionalGeneration",
    config=_llava(transformers.CLIPVisionConfig(**_CLIP), transformers.LlamaConfig),
    processor_class="LlavaProcessor",
    processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    preprocessor=_CLIP_28,
    other_tokens=("<image>",),
    parts={"image": "<image>\n"},
)
_IDEFICS3 = _Family(
    model_class="Idefics3ForConditionalGeneration",
    config=_idefics(transformers.Idefics3Config),
    processor_class="Idefics3Processor",
    processor={"image_seq_len": 4},
    preprocessor=_image_processor("Idefics3ImageProcessor", **_SPLIT_32),
    other_tokens=_IDEFICS_TOKENS,
    parts={"image": "<image>"},
)
_QWEN2_5_OMNI = _Family(
    model_class="Qwen2_5OmniThinkerForConditionalGeneration",
    config=_qwen_omni(transformers.Qwen2_5OmniThinkerConfig, {"n_window": 16}, {**_QWEN_TOWER, "fullatt_block_indexes": [1]}),
    processor_class="Qwen2_5OmniProcessor",
    preprocessor={**_QWEN_IMAGES, **_feature_extractor(chunk_length=2, return_attention_mask=True)},
    video_preprocessor=_QWEN_VIDEOS,
    named_tokens=_OMNI_NAMED,
    parts=_OMNI_PARTS,
)

_FAMILIES: dict[str, _Family] = {
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _Family(
        model_class="Qwen2_5_VLForConditionalGeneration",
        config=_qwen_vl(transformers.Qwen2_5_VLConfig, {**_QWEN_TOWER, "fullatt_block_indexes": [1]}),
        processor_class="Qwen2_5_VLProcessor",
        preprocessor=_QWEN_IMAGES,
        video_preprocessor=_QWEN_VIDEOS,
        named_tokens=_QWEN_NAMED,
        other_tokens=_QWEN_OTHER,
        parts=_QWEN_PARTS,
    ),
    "qwen3_vl": _Family(
        model_class="Qwen3VLForConditionalGeneration",
        config=_qwen_vl(
            transformers.Qwen3VLConfig, _QWEN3_TOWER, head_dim=16, rope_parameters={**_MROPE, "mrope_interleaved": True}
        ),
        processor_class="Qwen3VLProcessor",
        preprocessor=_QWEN_IMAGES,
        video_preprocessor=_QWEN3_VIDEOS,
        named_tokens=_QWEN_NAMED,
        other_tokens=_QWEN_OTHER,
        # The processor puts the vision tokens of a video around each of its frames.
        parts={**_QWEN_PARTS, "video": "<|vision_start|><|video_pad|><|vision_end|>"},
    ),
    "llava_clip": _LLAVA_CLIP,
    "llava_siglip": _Family(
        model_class="LlavaForConditionalGeneration",
        config=_llava(transformers.SiglipVisionConfig(**_SIGLIP), transformers.Qwen2Config, vision_feature_select_strategy="full"),
        processor_class="LlavaProcessor",
        processor={"patch_size": 7, "vision_feature_select_strategy": "full"},
        preprocessor=_SIGLIP_28,
        other_tokens=("<image>",),
        parts={"image": "<image>\n"},
    ),
    "llava_pixtral": _Family(
        model_class="LlavaForConditionalGeneration",
        config=_llava(
            transformers.PixtralVisionConfig(**_PIXTRAL),
            transformers.MistralConfig,
            "[IMG]",
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        processor_class="PixtralProcessor",
        processor={"patch_size": 8},
        preprocessor=_PIXTRAL_64,
        other_tokens=_PIXTRAL_TOKENS,
        parts={"image": "[IMG]"},
    ),
    "llava_onevision": _Family(
        model_class="LlavaOnevisionForConditionalGeneration",
        config=lambda ids: transformers.LlavaOnevisionConfig(
            vision_config=transformers.SiglipVisionConfig(**_SIGLIP),
            text_config=transformers.Qwen2Config(**ids.text()),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            video_token_id=ids("<video>"),
            video_token_index=ids("<video>"),
            image_grid_pinpoints=[[28, 28], [28, 56], [56, 28], [56, 56]],
        ),
        processor_class="LlavaOnevisionProcessor",
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        preprocessor=_image_processor(
            "LlavaOnevisionImageProcessor", image_grid_pinpoints=[[28, 28], [28, 56], [56, 28], [56, 56]], **_SQUARE_28
        ),
        video_preprocessor={"video_processor_type": "LlavaOnevisionVideoProcessor", **_SQUARE_28},
        other_tokens=("<image>", "<video>"),
        parts={"image": "<image>\n"},
    ),
    "idefics3": _IDEFICS3,
    "smolvlm": _Family(
        model_class="SmolVLMForConditionalGeneration",
        config=_idefics(transformers.SmolVLMConfig),
        processor_class="SmolVLMProcessor",
        processor={"image_seq_len": 4},
        preprocessor=_image_processor("SmolVLMImageProcessor", **_SPLIT_32),
        video_preprocessor={"video_processor_type": "SmolVLMVideoProcessor", **_SPLIT_32},
        other_tokens=(*_IDEFICS_TOKENS, "<video>"),
        parts={"image": "<image>"},
    ),
    "gemma3": _Family(
        model_class="Gemma3ForConditionalGeneration",
        config=lambda ids: transformers.Gemma3Config(
            text_config=ids.text(
                head_dim=16,
                sliding_window=6,
                query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            ),
            vision_config=_SIGLIP,
            mm_tokens_per_image=4,
            image_token_id=ids("<image_soft_token>"),
            image_token_index=ids("<image_soft_token>"),
            boi_token_index=ids("<start_of_image>"),
            eoi_token_index=ids("<end_of_image>"),
        ),
        processor_class="Gemma3Processor",
        processor={"image_seq_length": 4},
        preprocessor=_image_processor("Gemma3ImageProcessor", do_pan_and_scan=False, **_SQUARE_28),
        named_tokens={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        parts={"image": "<start_of_image>"},
    ),
    "internvl": _Family(
        model_class="InternVLForConditionalGeneration",
        config=lambda ids: transformers.InternVLConfig(
            vision_config={**_TOWER, "image_size": [32, 32], "patch_size": [8, 8]},
            text_config=transformers.Qwen2Config(**ids.text()),
            image_token_id=ids("<IMG_CONTEXT>"),
            image_seq_length=4,
        ),
        processor_class="InternVLProcessor",
        processor={"image_seq_length": 4},
        preprocessor=_image_processor(
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
    "mistral3": _Family(
        model_class="Mistral3ForConditionalGeneration",
        config=lambda ids: transformers.Mistral3Config(
            vision_config=transformers.PixtralVisionConfig(**_PIXTRAL),
            text_config=transformers.MistralConfig(**ids.text()),
            image_token_id=ids("[IMG]"),
            image_token_index=ids("[IMG]"),
            spatial_merge_size=2,
        ),
        processor_class="PixtralProcessor",
        processor={"patch_size": 8, "spatial_merge_size": 2},
        preprocessor=_PIXTRAL_64,
        other_tokens=_PIXTRAL_TOKENS,
        parts={"image": "[IMG]"},
    ),
    "paligemma": _Family(
        model_class="PaliGemmaForConditionalGeneration",
        config=lambda ids: transformers.PaliGemmaConfig(
            text_config=transformers.GemmaConfig(**ids.text(head_dim=16)),
            vision_config=transformers.SiglipVisionConfig(**_SIGLIP, projection_dim=64),
            image_token_id=ids("<image>"),
            image_token_index=ids("<image>"),
            projection_dim=64,
        ),
        processor_class="PaliGemmaProcessor",
        preprocessor=_image_processor("SiglipImageProcessor", image_seq_length=16, **_SQUARE_28),
        named_tokens={"image_token": "<image>"},
        other_tokens=(*(f"<loc{i:0>4}>" for i in range(1024)), *(f"<seg{i:0>3}>" for i in range(128))),
        parts={"image": "<image>"},
    ),
    "qwen2_audio": _Family(
        model_class="Qwen2AudioForConditionalGeneration",
        config=lambda ids: transformers.Qwen2AudioConfig(
            audio_config={**_WHISPER, "max_source_positions": 100},
            text_config=transformers.Qwen2Config(**ids.text()),
            audio_token_index=ids("<|AUDIO|>"),
            audio_token_id=ids("<|AUDIO|>"),
        ),
        processor_class="Qwen2AudioProcessor",
        preprocessor=_feature_extractor(chunk_length=2, return_attention_mask=True),
        other_tokens=("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        parts={"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"},
    ),
    "voxtral": _Family(
        model_class="VoxtralForConditionalGeneration",
        config=lambda ids: transformers.VoxtralConfig(
            audio_config={**_TOWER, "intermediate_size": 128, "num_mel_bins": 8, "max_source_positions": 1500},
            text_config=transformers.LlamaConfig(**ids.text(head_dim=16)),
            audio_token_id=ids("[AUDIO]"),
        ),
        processor_class="VoxtralProcessor",
        preprocessor=_feature_extractor(chunk_length=30),
        # The processor takes the token of number 24, whatever the tokenizer calls it.
        first_tokens=(*END_TOKENS, *(f"<SPECIAL_{i}>" for i in range(3, 24)), "[AUDIO]", "[BEGIN_AUDIO]"),
        parts={"audio": "[BEGIN_AUDIO][AUDIO]"},
    ),
    "audioflamingo3": _Family(
        model_class="AudioFlamingo3ForConditionalGeneration",
        config=lambda ids: transformers.AudioFlamingo3Config(
            audio_config={**_TOWER, "num_mel_bins": 8, "max_source_positions": 50},
            text_config=transformers.Qwen2Config(**ids.text()),
            audio_token_id=ids("<sound>"),
        ),
        processor_class="AudioFlamingo3Processor",
        processor={"max_audio_len": 60},
        preprocessor=_feature_extractor(return_attention_mask=True),
        other_tokens=("<sound>",),
        parts={"audio": "<sound>"},
    ),
    "qwen2_5_omni": _QWEN2_5_OMNI,
    "qwen3_omni": _Family(
        model_class="Qwen3OmniMoeThinkerForConditionalGeneration",
        config=_qwen_omni(
            transformers.Qwen3OmniMoeThinkerConfig,
            {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 16},
            _QWEN3_TOWER,
            head_dim=16,
            rope_parameters={**_MROPE, "mrope_interleaved": True},
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
        ),
        processor_class="Qwen3OmniMoeProcessor",
        preprocessor={**_QWEN_IMAGES, **_feature_extractor(chunk_length=30, return_attention_mask=True)},
        video_preprocessor=_QWEN_VIDEOS,
        named_tokens=_OMNI_NAMED,
        parts=_OMNI_PARTS,
    ),
}
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)


def modalities(family: str) -> tuple[str, ...]:
    """What the family's chat template has parts for: of image, audio and video."""
    return tuple(_FAMILIES[family].parts)


def part(family: str, modality: str) -> str:
    """What the family's chat template writes for a part of a modality, before its placeholder is expanded."""
    return _FAMILIES[family].parts[modality]


def build_checkpoint(family: str, directory: Path) -> Path:
    """Write a tiny random checkpoint of the family into the directory; returns the directory.

    Args:
        family: one of FAMILIES.
    """
    what = _FAMILIES[family]
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(what)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(_chat_template(what), encoding="utf-8")
    _write_json(directory / "preprocessor_config.json", {**what.preprocessor, "processor_class": what.processor_class})
    _write_json(directory / "processor_config.json", {**what.processor, "processor_class": what.processor_class})
    if what.video_preprocessor is not None:
        _write_json(directory / "video_preprocessor_config.json", what.video_preprocessor)
    _save_weights(what, what.config(_Ids(tokenizer)), directory)
    return directory


def _tokenizer(family: _Family) -> PreTrainedTokenizerFast:
    named = dict(family.named_tokens)
    base = byte_level_tokenizer(family.first_tokens)
    base.add_special_tokens([*dict.fromkeys([*named.values(), *family.other_tokens])])
    return PreTrainedTokenizerFast(
        tokenizer_object=base,
        bos_token=family.bos,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        extra_special_tokens=named,
    )


def _chat_template(family: _Family) -> str:
    branches = "".join(f"{{%- elif part.type == '{modality}' -%}}{{{{ {text!r} }}}}" for modality, text in family.parts.items())
    return (
        "{%- for message in messages -%}<|im_start|>{{ message.role }}{{ '\\n' }}"
        "{%- if message.content is string -%}{{ message.content }}"
        "{%- else -%}{%- for part in message.content -%}"
        "{%- if part.type == 'text' -%}{{ part.text }}" + branches + "{%- endif -%}{%- endfor -%}{%- endif -%}"
        "{{ '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    )


def _save_weights(family: _Family, config: PretrainedConfig, directory: Path) -> None:
    config.architectures = [family.model_class]
    torch.manual_seed(0)
    model = getattr(transformers, family.model_class)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3 if "embed_tokens" in name or "lm_head" in name else 0.12)
            elif "newline" in name or name.endswith("bias"):
                parameter.normal_(0, 0.1)
    model.float().save_pretrained(directory)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
