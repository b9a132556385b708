"""From a raw file to the towers' inputs: decoded, then preprocessed by the checkpoint's own processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoFeatureExtractor, AutoImageProcessor, PretrainedConfig
from transformers.video_utils import VideoMetadata
from triptych.errors import InvalidRequestError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2
from triptych_common.media.geometry import SAMPLING_OPTIONS, VIDEO_OPTIONS, FrameSampling
from triptych_common.media.limits import MediaLimits
from triptych_common.model import store as model_store

from triptych_encoder.cache.item import PreprocessedItem
from triptych_encoder.media.audio import decode_audio, warm_up
from triptych_encoder.media.image import decode_image
from triptych_encoder.media.limits import bad_media
from triptych_encoder.media.options import check_options
from triptych_encoder.media.processors import VIDEO_MODEL_TYPES, limit_made_pixels, load_processor, video_config
from triptych_encoder.media.video import SampledVideo, decode_video

Modality = common_pb2.Modality
_KINDS = {Modality.MODALITY_IMAGE: "image", Modality.MODALITY_AUDIO: "audio", Modality.MODALITY_VIDEO: "video"}
#: Outputs of processors that positions depend on.
_LAYOUT = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "video_second_per_grid", "image_sizes")
#: Passed to the media processors only: PaliGemma's processor fails when its token ids are tensors.
_TENSORS = {"return_tensors": "pt"}
#: Raised by processors for media and options that they cannot use.
_PROCESSOR_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    ZeroDivisionError,
    AttributeError,
    RuntimeError,
    StrictDataclassError,
)
_TEXT_RESULTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"})


@dataclass(frozen=True)
class PreprocessResult:
    """A preprocessed item, and how long that took in seconds."""

    item: PreprocessedItem
    decode_s: float
    preprocess_s: float


class Preprocessor:
    """Decodes and preprocesses items. Several threads may use it at once; each thread loads its own processor.

    Args:
        path: the checkpoint.
        config: the configuration of the part with the towers.
    """

    def __init__(self, path: Path, config: PretrainedConfig, limits: MediaLimits) -> None:
        self._path, self._config, self._limits = path, config, limits
        self._video_config = video_config(path)
        self._per_thread = threading.local()

    def load(self) -> tuple[common_pb2.Modality, ...]:
        """Load this thread's processor, so that no item has to wait for it. Returns the modalities that it can preprocess."""
        calls = self._calls()
        video = (Modality.MODALITY_VIDEO,) if self._config.model_type in VIDEO_MODEL_TYPES else ()
        image = (Modality.MODALITY_IMAGE,) if calls.image_processor is not None else ()
        # Gemma4's processor takes audio also for models without an audio tower; with one, audio was never tried.
        has_audio = calls.feature_extractor is not None and self._config.model_type != "gemma4"
        audio = (Modality.MODALITY_AUDIO,) if has_audio else ()
        if has_audio:
            warm_up()
        return image + audio + video

    def prepare(self, modality: common_pb2.Modality, data: bytes, options: Mapping[str, Any]) -> PreprocessResult:
        """Decode and preprocess one item.

        Raises:
            InvalidRequestError: the file or the options cannot be used.
        """
        calls, kind = self._calls(), _KINDS[modality]
        check_options(kind, options, calls.valid_options(kind), self._limits)
        start_s = time.perf_counter()
        try:
            media = self._decode(modality, data, options)
        except TriptychError:
            raise
        # Decoders of many formats run here on untrusted files. They raise more than their documented errors.
        except Exception as error:
            raise bad_media(kind, f"is damaged, or of a kind that cannot be decoded: {_reason(error)}") from error
        decoded_s = time.perf_counter()
        try:
            item = calls.preprocess(modality, media, options)
        except TriptychError:
            raise
        except _PROCESSOR_ERRORS as error:
            raise bad_media(kind, f"cannot be preprocessed for this model: {_reason(error)}") from error
        if item.num_tokens < 1:
            raise bad_media(kind, "is too small or too short to give any embeddings", value=0)
        return PreprocessResult(item, decoded_s - start_s, time.perf_counter() - decoded_s)

    def _decode(self, modality: common_pb2.Modality, data: bytes, options: Mapping[str, Any]) -> Any:
        if modality == Modality.MODALITY_IMAGE:
            return decode_image(data, self._limits)
        if modality == Modality.MODALITY_AUDIO:
            return decode_audio(data, self._calls().sampling_rate, self._limits)
        try:
            sampling = FrameSampling.from_config(self._video_config, options)
        except ValueError as error:
            raise InvalidRequestError(f"processor_options: {error}", field="processor_options") from error
        return decode_video(data, sampling, self._limits)

    def _calls(self) -> ProcessorCalls:
        calls = getattr(self._per_thread, "calls", None)
        if calls is None:
            calls = self._per_thread.calls = _calls_for(self._path, self._config, self._limits.max_pixels)
        return calls


class ProcessorCalls:
    """Calls the checkpoint's processor with one item and one placeholder, and counts the tokens that replace the placeholder."""

    image_processor: Any
    feature_extractor: Any

    def __init__(self, path: Path, config: PretrainedConfig, max_pixels: int) -> None:
        self._config = config
        self._processor = load_processor(path, config, max_pixels)
        self.image_processor = getattr(self._processor, "image_processor", None)
        self.feature_extractor = getattr(self._processor, "feature_extractor", None)

    @property
    def sampling_rate(self) -> int:
        """The sampling rate of the model, in Hz."""
        return int(self.feature_extractor.sampling_rate)

    def valid_options(self, kind: str) -> frozenset[str]:
        """Names of the processor's options for a kind of media."""
        if kind == "video":
            return VIDEO_OPTIONS
        part = self.image_processor if kind == "image" else self.feature_extractor
        return frozenset(getattr(getattr(part, "valid_kwargs", None), "__annotations__", ()))

    def preprocess(self, modality: common_pb2.Modality, media: Any, options: Mapping[str, Any]) -> PreprocessedItem:
        kind = _KINDS[modality]
        arguments: dict[str, Any]
        if modality == Modality.MODALITY_VIDEO:
            taken = {name: value for name, value in options.items() if name not in SAMPLING_OPTIONS}
            metadata = _metadata(media)
            arguments = {
                "videos": [media.frames],
                "videos_kwargs": {**taken, "do_sample_frames": False, "video_metadata": [metadata]},
            }
        elif modality == Modality.MODALITY_AUDIO:
            self._check_window(media)
            arguments = {"audio": [media], "audio_kwargs": {**options, **_TENSORS, "sampling_rate": self.sampling_rate}}
        else:
            arguments = {"images": [media], "images_kwargs": {**options, **_TENSORS}}
        features = self._processor(text=self._placeholder(kind), **arguments)
        num_tokens = int((torch.as_tensor(features["input_ids"]) == _token_id(self._config, kind)).sum())
        return prepared_item(modality, features, num_tokens)

    def _placeholder(self, kind: str) -> str:
        # In Gemma3's prompts the token for an image is not the placeholder token, which is repeated in its place.
        name = "boi_token" if kind == "image" and self._config.model_type == "gemma3" else f"{kind}_token"
        return getattr(self._processor, name)

    def _check_window(self, samples: np.ndarray) -> None:
        """Refuse audio longer than the window. Whisper's feature extractor would silently cut off the rest."""
        if self._config.model_type not in ("qwen2_audio", "qwen2_5_omni_thinker"):
            longest = getattr(self._processor, "max_audio_len", None)
            limit = longest * self.sampling_rate if longest else None
        else:
            limit = self.feature_extractor.n_samples
        if limit is not None:
            _check_samples(len(samples), limit, self.sampling_rate)


class PixtralCalls(ProcessorCalls):
    """Images for Pixtral's tower. Uses only the image processor, because the module of Pixtral's processor needs torchvision."""

    def __init__(self, path: Path, config: PretrainedConfig, max_pixels: int) -> None:
        self.image_processor, self.feature_extractor = AutoImageProcessor.from_pretrained(path), None
        limit_made_pixels(self.image_processor, max_pixels)
        settings = model_store.read_json(path / "processor_config.json")
        patch_size = settings.get("patch_size") or config.vision_config.patch_size
        self._patch_size = patch_size * (settings.get("spatial_merge_size") or getattr(config, "spatial_merge_size", 1))

    def preprocess(self, modality: common_pb2.Modality, media: Any, options: Mapping[str, Any]) -> PreprocessedItem:
        features = self.image_processor([media], **{**options, "patch_size": self._patch_size}, return_tensors="pt")
        height, width = torch.as_tensor(features["image_sizes"][0]).tolist()
        return prepared_item(modality, features, (height // self._patch_size) * (width // self._patch_size))


class VoxtralCalls(ProcessorCalls):
    """Audio for Voxtral: whole windows of 30 s, cut as in `VoxtralProcessor._retrieve_input_features`.

    The processor itself accepts audio only through mistral-common's chat template.
    """

    _WINDOW_S = 30

    def __init__(self, path: Path, config: PretrainedConfig) -> None:
        self.image_processor, self.feature_extractor = None, AutoFeatureExtractor.from_pretrained(path)
        audio = config.audio_config
        self._tokens_per_window = audio.max_source_positions * audio.hidden_size // audio.intermediate_size

    def preprocess(self, modality: common_pb2.Modality, media: Any, options: Mapping[str, Any]) -> PreprocessedItem:
        extractor = self.feature_extractor
        window = self._WINDOW_S * extractor.sampling_rate
        features = extractor(
            media,
            sampling_rate=extractor.sampling_rate,
            padding=True,
            truncation=False,
            pad_to_multiple_of=window,
            return_tensors="pt",
        )
        frames = features["input_features"].reshape(extractor.feature_size, -1, window // extractor.hop_length)
        return prepared_item(modality, {"input_features": frames.transpose(0, 1)}, frames.shape[1] * self._tokens_per_window)


class WhisperCalls(ProcessorCalls):
    """Audio for Whisper's encoder: one window, padded with silence. Uses only the feature extractor."""

    def __init__(self, path: Path, config: PretrainedConfig) -> None:
        self.image_processor, self.feature_extractor = None, AutoFeatureExtractor.from_pretrained(path)
        self._num_states = config.max_source_positions

    def preprocess(self, modality: common_pb2.Modality, media: Any, options: Mapping[str, Any]) -> PreprocessedItem:
        _check_samples(len(media), self.feature_extractor.n_samples, self.sampling_rate)
        features = self.feature_extractor(media, sampling_rate=self.sampling_rate, return_tensors="pt")
        return prepared_item(modality, features, self._num_states)


def _check_samples(num_samples: int, limit: int, rate: int) -> None:
    if num_samples > limit:
        seconds, most = num_samples / rate, limit / rate
        raise bad_media("audio", f"is {seconds:.1f} s long; this model takes at most {most:g} s", most, f"{seconds:.1f}")


def _calls_for(path: Path, config: PretrainedConfig, max_pixels: int) -> ProcessorCalls:
    if config.model_type == "voxtral":
        return VoxtralCalls(path, config)
    if config.model_type == "whisper":
        return WhisperCalls(path, config)
    if getattr(getattr(config, "vision_config", None), "model_type", "") == "pixtral":
        return PixtralCalls(path, config, max_pixels)
    return ProcessorCalls(path, config, max_pixels)


def prepared_item(modality: common_pb2.Modality, features: Mapping[str, Any], num_tokens: int) -> PreprocessedItem:
    """Split a processor's outputs into the towers' inputs and the tensors that positions depend on."""
    inputs = {
        name: tensor if isinstance(tensor, torch.Tensor) else torch.as_tensor(tensor)
        for name, tensor in features.items()
        if name not in _TEXT_RESULTS and isinstance(tensor, (torch.Tensor, np.ndarray, list))
    }
    layout = {name: inputs[name] for name in _LAYOUT if name in inputs}
    mask = inputs.get("feature_attention_mask")
    if mask is not None:
        layout["audio_seqlens"] = mask.sum(-1)
    return PreprocessedItem(modality, inputs, num_tokens, layout)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _metadata(video: SampledVideo) -> VideoMetadata:
    return VideoMetadata(
        total_num_frames=video.total_num_frames,
        fps=video.fps,
        width=video.frames.shape[2],
        height=video.frames.shape[1],
        duration=video.total_num_frames / video.fps,
        video_backend="pyav",
        frames_indices=video.indices.tolist(),
    )


def _token_id(config: PretrainedConfig, kind: str) -> int:
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        if getattr(config, name, None) is not None:
            return int(getattr(config, name))
    raise UnimplementedError(f"{config.model_type} names no placeholder token for {kind}")
