"""Parts for the descriptions of multimodal families: small towers, processors, placeholders, configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

END_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

MROPE = {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP = {**TOWER, "image_size": 28, "patch_size": 7}
SIGLIP = {**CLIP, "vision_use_head": False}
PIXTRAL = {**TOWER, "image_size": 64, "patch_size": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 8}
QWEN_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
QWEN3_TOWER = {**QWEN_TOWER, "depth": 3, "patch_size": 14, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}


class Ids:
    """Token ids of a family's special tokens, and the text model's configuration."""

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
class Family:
    model_class: str
    config: Callable[[Ids], PretrainedConfig]
    processor_class: str
    #: preprocessor_config.json: the image processor, the feature extractor, or both.
    preprocessor: dict[str, Any]
    #: Text that the chat template writes for a part: modality -> text.
    parts: dict[str, str]
    #: Special tokens: the tokenizer's name -> token.
    named_tokens: dict[str, str] = field(default_factory=dict)
    other_tokens: tuple[str, ...] = ()
    #: Content of processor_config.json, except the class.
    processor: dict[str, Any] = field(default_factory=dict)
    video_preprocessor: dict[str, Any] | None = None
    #: First tokens of the vocabulary, for families that require a fixed token id.
    first_tokens: tuple[str, ...] = END_TOKENS
    bos: str = "<|im_start|>"


def image_processor(kind: str, **more: Any) -> dict[str, Any]:
    return {"image_processor_type": kind, **more}


def feature_extractor(chunk_length: int = 1, **more: Any) -> dict[str, Any]:
    """A Whisper feature extractor with 8 mel bins and a window of `chunk_length` seconds."""
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


SQUARE_28 = {"size": {"height": 28, "width": 28}}
CLIP_28 = image_processor(
    "CLIPImageProcessor", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_center_crop=True, do_resize=True
)
SIGLIP_28 = image_processor("SiglipImageProcessor", **SQUARE_28)
PIXTRAL_64 = image_processor("PixtralImageProcessor", size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
QWEN_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 24}
QWEN_IMAGES = image_processor("Qwen2VLImageProcessor", size=QWEN_SIZE, patch_size=14, temporal_patch_size=2, merge_size=2)
QWEN_VIDEOS = {
    "video_processor_type": "Qwen2VLVideoProcessor",
    "size": QWEN_SIZE,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "do_sample_frames": True,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 16,
    "cap_pixels_per_frame": False,
}
QWEN3_VIDEOS = {
    **QWEN_VIDEOS,
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64},
}
QWEN_NAMED = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
QWEN_OTHER = ("<|vision_start|>", "<|vision_end|>")
QWEN_PARTS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}
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
