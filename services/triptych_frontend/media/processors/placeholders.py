"""How a media item appears in the prompt, from its size only: placeholder text, number of embeddings, layout for positions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

import numpy as np
from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.media.geometry import VIDEO_OPTIONS, FrameSampling, resampled_length
from triptych_common.media.key import canonical_options
from triptych_common.media.processor_options import NOT_FOR_REQUESTS

from triptych_frontend.errors import check_one_of, first_line, refusal
from triptych_frontend.media.item import (
    AUDIO,
    IMAGE,
    MODALITY_NAMES,
    VIDEO,
    AudioHeader,
    Expansion,
    ImageHeader,
    MediaHeader,
    VideoHeader,
)
from triptych_frontend.media.processors.loading import VIDEO_PROCESSORS, merged_options
from triptych_frontend.media.processors.sizes_only import zeros
from triptych_frontend.media.processors.torchless import MAX_ITEMS

_KINDS = {IMAGE: "images_kwargs", AUDIO: "audio_kwargs", VIDEO: "videos_kwargs"}
_PARTS = {IMAGE: "image_processor", AUDIO: "feature_extractor", VIDEO: "video_processor"}
_CACHE_SIZE = 4096
_MAX_EMBEDS = 1 << 20
DETAILS = ("auto", "low", "high")
#: Pixels of a coarse image, where a model takes any number: OpenAI's 512 x 512.
_LOW_PIXELS = 512 * 512
#: Options that cut an image into tiles, which are looked at beside the whole.
_TILES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan")


class PlaceholderExpander:
    """Runs the checkpoint's processor on sizes. Thread-safe.

    Args:
        processor: from `load_media_processor`.
        config: transformers' configuration of the model.
        encode: returns the token ids of a text, in which special tokens are recognized.
    """

    def __init__(self, processor: Any, config: Any, encode: Any) -> None:
        self._processor = processor
        self._encode = encode
        #: Tokens whose embeddings come from an encoder.
        self.embed_token_ids = _embed_token_ids(config)
        #: Most embeddings of one item. An item that exceeds the model's context is refused before its expansion is built.
        self.max_embeds = _MAX_EMBEDS
        self._is_omni = "omni" in str(getattr(config, "model_type", ""))
        self.modalities = frozenset(modality for modality in MODALITY_NAMES if self._takes(modality))
        self._cached = lru_cache(_CACHE_SIZE)(self._expand)

    def _takes(self, modality: common_pb2.Modality) -> bool:
        name = MODALITY_NAMES[modality]
        if not getattr(self._processor, _PARTS[modality], None) or not getattr(self._processor, f"{name}_token", None):
            return False
        if modality == VIDEO:
            known = VIDEO_PROCESSORS.values()
            return self._processor.video_processor.config.get("video_processor_type") in known and not self._is_omni
        # As in the encoder: the processor takes audio also for models without an audio tower.
        return not (modality == AUDIO and type(self._processor).__name__ == "Gemma4Processor")

    def max_items(self, modality: common_pb2.Modality) -> int | None:
        """Most items of the modality in one prompt; None if there is no limit."""
        return MAX_ITEMS.get(type(self._processor).__name__) if modality == AUDIO else None

    def placeholder(self, modality: common_pb2.Modality) -> str:
        """The text that chat templates write for an item."""
        token: str = getattr(self._processor, f"{MODALITY_NAMES[modality]}_token")
        return token

    def options_for(self, modality: common_pb2.Modality, options: Mapping[str, Any], field: str) -> tuple[dict[str, Any], set[str]]:
        """The options for an item of a modality, without nesting, and the names that were used.

        `images_kwargs`, `audio_kwargs` and `videos_kwargs` hold the options of one modality. Other options apply to each modality
        whose processor knows them.

        Raises:
            InvalidRequestError: no part of the model's processor knows an option.
        """
        own, used = {}, set()
        for name, value in options.items():
            if name in _KINDS.values():
                if not isinstance(value, dict):
                    raise InvalidRequestError(f"{field}: {name} must be an object", field=field, limit="object", value=name)
                self._check_known(value, [item for item, kind in _KINDS.items() if kind == name], field)
                if name == _KINDS[modality]:
                    used.add(name)
            else:
                self._check_known({name: value}, list(_KINDS), field)
                if name in self._known_options(modality):
                    own[name] = value
                    used.add(name)
        return own | dict(options.get(_KINDS[modality]) or {}), used

    def detail_options(self, modality: common_pb2.Modality, detail: str, field: str) -> dict[str, Any]:
        """The options for an item's `detail`. Raises InvalidRequestError if the model cannot honour it."""
        if modality != IMAGE:
            raise refusal(field, "is for images only", value=detail)
        return detail_options(detail, self._known_options(IMAGE), self._processor.image_processor, field)

    def _check_known(self, options: Mapping[str, Any], modalities: Sequence[common_pb2.Modality], field: str) -> None:
        known = frozenset[str]().union(*(self._known_options(modality) for modality in modalities))
        unknown = sorted(options.keys() - known)
        if unknown:
            names = ", ".join(sorted(known))
            message = f"{field}: this model's processor has no option {unknown[0]!r}; known are {names}"
            raise InvalidRequestError(message, field=field, limit=names, value=unknown[0])

    def _known_options(self, modality: common_pb2.Modality) -> frozenset[str]:
        if modality not in self.modalities:
            return frozenset()
        if modality == VIDEO:
            return VIDEO_OPTIONS
        part = getattr(self._processor, _PARTS[modality])
        # Same rule as in the encoder. Feature extractors have no such options.
        return frozenset(getattr(getattr(part, "valid_kwargs", None), "__annotations__", ())) - NOT_FOR_REQUESTS

    def expand(self, header: MediaHeader, options: Mapping[str, Any], field: str) -> Expansion:
        """The expansion of an item. Results are cached by size and options.

        Raises:
            InvalidRequestError: the model's processor refuses the size or the options.
            ContextLengthError: the item takes more tokens than the model's context has.
        """
        try:
            expansion = self._cached(header, canonical_options(options))
        except _TooLargeError as error:
            message = f"{field} takes {error.num_embeds} tokens; the model's context has {self.max_embeds}"
            raise ContextLengthError(message, field=field, limit=self.max_embeds, value=error.num_embeds) from None
        # The processor's own code may raise any exception for sizes and options that it does not support.
        except Exception as error:
            message = f"{field}: the model's processor refuses it: {first_line(error)}"
            raise InvalidRequestError(message, field=field) from error
        if not expansion.num_embeds:
            raise refusal(field, "is too small: it would take no token", 1, 0)
        return expansion

    def _expand(self, header: MediaHeader, options_json: str) -> Expansion:
        options = json.loads(options_json or "{}")
        if isinstance(header, ImageHeader):
            return self._expand_image(header, options)
        if isinstance(header, AudioHeader):
            return self._expand_audio(header, options)
        return self._expand_video(header, options)

    def _expand_image(self, header: ImageHeader, options: dict[str, Any]) -> Expansion:
        image = zeros(3, header.height, header.width, dtype=np.uint8)
        merged = merged_options(self._processor, "images_kwargs", options)
        inputs, texts = self._processor._process_images([image], **merged)
        grid = inputs.get("image_grid_thw")
        return self._expansion(texts[0], {} if grid is None else {"image_grid_thw": grid})

    def _expand_audio(self, header: AudioHeader, options: dict[str, Any]) -> Expansion:
        rate = int(self._processor.feature_extractor.sampling_rate)
        samples = zeros(resampled_length(header.num_samples, header.sampling_rate, rate))
        merged = merged_options(self._processor, "audio_kwargs", {**options, "sampling_rate": rate})
        inputs, texts = self._processor._process_audio([samples], **merged)
        mask = inputs.get("feature_attention_mask")
        # Of the families with three-dimensional rotary positions, only Omni models need the lengths of audio.
        return self._expansion(texts[0], {"audio_seqlens": np.asarray(mask).sum(-1)} if self._is_omni and mask is not None else {})

    def _expand_video(self, header: VideoHeader, options: dict[str, Any]) -> Expansion:
        from transformers.video_utils import VideoMetadata

        geometry = self._processor.video_processor
        indices = FrameSampling.from_config(geometry.config, options).indices(header.num_frames, header.fps)
        grid = np.array([geometry.grid(len(indices), header.height, header.width, options)], np.int64)
        if (num_embeds := int(grid.prod()) // geometry.merge_size**2) > self.max_embeds:
            raise _TooLargeError(num_embeds)
        metadata = VideoMetadata(
            total_num_frames=header.num_frames, fps=header.fps, duration=header.duration_s, frames_indices=indices.tolist()
        )
        layout = {"video_grid_thw": grid}
        if type(self._processor).__name__ == "Qwen2_5_VLProcessor":
            layout["second_per_grid_ts"] = np.array([geometry.temporal_patch_size / metadata.sampled_fps], np.float32)
        inputs = {"video_grid_thw": grid, "video_metadata": [metadata]}
        return self._expansion(self._processor.replace_video_token(inputs, 0), layout)

    def _expansion(self, text: str, layout: Mapping[str, Any]) -> Expansion:
        num_embeds = sum(token_id in self.embed_token_ids for token_id in self._encode(text))
        tensors = ((name, np.asarray(value)) for name, value in layout.items())
        wire = ((name, array.astype(np.float32 if array.dtype.kind == "f" else np.int64)) for name, array in tensors)
        return Expansion(text, num_embeds, tuple(wire))


class _TooLargeError(Exception):
    """An item takes more tokens than the model's context has."""

    def __init__(self, num_embeds: int) -> None:
        self.num_embeds = num_embeds


def detail_options(detail: str, known: Set[str], image_processor: Any, field: str) -> dict[str, Any]:
    """The options for an image. "auto" is the model's own; where a model takes any number of pixels, "high" is too.

    Args:
        known: the names of the processor's options.
        field: of the detail in the request.

    Raises:
        InvalidRequestError: the detail is not known, or the model looks at all images in the same way.
    """
    check_one_of(field, detail, DETAILS)
    if detail == "auto":
        return {}
    tiles = next((name for name in _TILES if name in known), None)
    if tiles is not None:
        return {tiles: detail == "high"}
    size = getattr(image_processor, "size", None)
    most, least = getattr(size, "longest_edge", None), getattr(size, "shortest_edge", None)
    if "max_pixels" in known and most is not None and least is not None:
        # Such processors call numbers of pixels edges.
        low = {"longest_edge": max(min(_LOW_PIXELS, most), least), "shortest_edge": least}
        return {} if detail == "high" else {"size": low}
    message = f"this model looks at all images in the same detail; {field} may be auto; given: {detail!r}"
    raise InvalidRequestError(message, field=field, limit="auto", value=detail)


def _embed_token_ids(config: Any) -> frozenset[int]:
    configs = (config, getattr(config, "thinker_config", None))
    names = [f"{modality}_{suffix}" for modality in MODALITY_NAMES.values() for suffix in ("token_id", "token_index")]
    found = (getattr(one, name, None) for one in configs if one is not None for name in names)
    return frozenset(int(token_id) for token_id in found if token_id is not None)


def placeholder_ranges(
    token_ids: Sequence[int], embed_token_ids: frozenset[int], num_embeds: Sequence[tuple[int, int]]
) -> list[common_pb2.PlaceholderRange]:
    """The positions of each item's embeddings in a prompt.

    Args:
        num_embeds: each item's index and its number of tokens, in the order of the prompt.

    Raises:
        ValueError: the prompt's number of placeholder tokens differs from the items' total.
    """
    ids = np.asarray(token_ids, np.int64)
    positions = np.flatnonzero(np.isin(ids, np.fromiter(embed_token_ids, np.int64)))
    expected = sum(count for _, count in num_embeds)
    if len(positions) != expected:
        raise ValueError(f"the prompt has {len(positions)} placeholder tokens; its media items take {expected}")
    ranges, start = [], 0
    for media_index, count in num_embeds:
        own = positions[start : start + count]
        start += count
        # A new range begins where positions are not consecutive.
        for run in np.split(own, np.flatnonzero(np.diff(own) != 1) + 1):
            ranges.append(common_pb2.PlaceholderRange(offset=int(run[0]), length=len(run), media_index=media_index))
    return ranges
