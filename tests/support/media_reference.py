"""The output of transformers' own processors for media: the inputs of a whole model's forward method. For the models of
builders.multimodal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import AutoFeatureExtractor, AutoImageProcessor
from triptych_common.media.geometry import FrameSampling
from triptych_common.media.limits import MediaLimits
from triptych_encoder.media.video import decode_video
from triptych_encoder.media.video_processor import QwenVideoProcessor

from support.lfm2_vl_reference import reference_image_processor

_NO_LIMITS = MediaLimits(1 << 30, 1 << 30, 1e4, 1e4, 1 << 40)


def image_inputs(path: Path, image: Image.Image) -> dict[str, torch.Tensor]:
    """Inputs from transformers' own image processor, called as the family's processor calls it."""
    model_type = transformers.AutoConfig.from_pretrained(path).model_type
    options: dict[str, Any] = {"internvl": {"crop_to_patches": True}, "mistral3": {"patch_size": 16}}.get(model_type, {})
    processor = reference_image_processor(path) if model_type == "lfm2_vl" else AutoImageProcessor.from_pretrained(path)
    features = processor([image], return_tensors="pt", **options)
    return {name: tensor for name, tensor in features.items() if name not in ("num_patches", "num_crops", "rows", "cols")}


def audio_inputs(path: Path, sound: Any) -> dict[str, torch.Tensor]:
    """Inputs from transformers' own feature extractor, called as the family's processor calls it."""
    model_type = transformers.AutoConfig.from_pretrained(path).model_type
    extractor = AutoFeatureExtractor.from_pretrained(path)
    common = {"sampling_rate": 16_000, "return_tensors": "pt"}
    if model_type == "voxtral":
        features = extractor(sound, padding=True, truncation=False, pad_to_multiple_of=480_000, **common)
        return {"input_features": features["input_features"].reshape(8, -1, 3000).transpose(0, 1)}
    if model_type == "audioflamingo3":
        windows = [sound[start : start + 16_000] for start in range(0, len(sound), 16_000)]
        features = extractor(windows, return_attention_mask=True, **common)
        return {"input_features": features["input_features"], "input_features_mask": features["attention_mask"]}
    padding: dict[str, Any] = {"padding": "max_length"}
    if model_type.startswith("qwen3_omni"):
        padding = {"padding": True, "truncation": False}
    features = extractor(sound, return_attention_mask=True, **padding, **common)
    return {"input_features": features["input_features"], "feature_attention_mask": features["attention_mask"]}


def video_inputs(family: str, file: bytes) -> dict[str, torch.Tensor]:
    """Inputs from our video processor for the Qwen-VL families."""
    is_qwen3 = family.startswith(("qwen3_vl", "qwen3_5", "lfm3_vl"))
    kind = "Qwen3VLVideoProcessor" if is_qwen3 else "Qwen2VLVideoProcessor"
    rule = {"video_processor_type": kind, "fps": 2.0, "min_frames": 4, "max_frames": 16}
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * (64 if is_qwen3 else 24)}
    mean_and_std = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3} if is_qwen3 else {}
    processor = QwenVideoProcessor({"size": size, "patch_size": 14, **mean_and_std}, budget_per_video=is_qwen3)
    video = decode_video(file, FrameSampling.from_config(rule, {}), _NO_LIMITS)
    features = processor([video.frames])
    inputs = {name: features[name] for name in ("pixel_values_videos", "video_grid_thw")}
    if family == "qwen2_5_vl":
        seconds = 2 / (len(video.indices) / video.total_num_frames * video.fps)
        inputs["second_per_grid_ts"] = torch.tensor([seconds])
    return inputs
