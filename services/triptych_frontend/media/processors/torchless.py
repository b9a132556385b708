"""Replacements for the parts of transformers' processors that need torch, which this process does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class VideoGeometry:
    """The sizes that a video processor computes, without decoding or resizing.

    Args:
        config: the checkpoint's video processor configuration.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.temporal_patch_size: int = config.get("temporal_patch_size") or 2
        self.merge_size: int = config.get("merge_size") or 2
        self.patch_size: int = config.get("patch_size") or (16 if self._is_qwen3 else 14)

    @property
    def _is_qwen3(self) -> bool:
        return "Qwen3" in str(self.config.get("video_processor_type", ""))

    def grid(self, num_frames: int, height: int, width: int, options: dict[str, Any]) -> tuple[int, int, int]:
        """Patches in time, height and width of a video after the resize of Qwen's video processors.

        Args:
            num_frames: sampled frames of the video.

        Raises:
            ValueError: the ratio of the sides exceeds 200, or the video has too few frames.
        """
        config = {**self.config, **options}
        factor = self.patch_size * self.merge_size
        shortest, longest = self._pixel_limits(options)
        capped = bool(config.get("cap_pixels_per_frame"))
        if self._is_qwen3:
            if capped:
                frame_cap = (config.get("max_video_tokens") or 768) * factor * factor
                longest = max(min(frame_cap, longest // num_frames), int(shortest * 1.05)) * num_frames
            new = _resized_video(num_frames, height, width, self.temporal_patch_size, factor, shortest, longest)
        else:
            if capped:
                budget = int((config.get("max_video_tokens") or 128_000) * factor * factor * 0.9)
                longest = max(min(longest, budget * self.temporal_patch_size // num_frames), int(shortest * 1.05))
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

            new = smart_resize(height, width, factor=factor, min_pixels=shortest, max_pixels=longest)
        num_steps = -(-num_frames // self.temporal_patch_size)
        return num_steps, new[0] // self.patch_size, new[1] // self.patch_size

    def _pixel_limits(self, options: dict[str, Any]) -> tuple[int, int]:
        """Fewest and most pixels. A request's options take precedence. The old names min_pixels and max_pixels override `size`."""
        unit = 32 * 32 if self._is_qwen3 else 28 * 28
        limits = {"shortest_edge": 128 * unit, "longest_edge": 768 * unit}
        for source in (self.config, options):
            limits.update({name: value for name, value in (source.get("size") or {}).items() if value})
            for name, old_name in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
                if source.get(old_name):
                    limits[name] = source[old_name]
        return int(limits["shortest_edge"]), int(limits["longest_edge"])


def _resized_video(
    num_frames: int, height: int, width: int, temporal_factor: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Height and width like `smart_resize` of transformers' video_processing_qwen3_vl, which cannot be imported without torch."""
    if num_frames < temporal_factor:
        raise ValueError(f"a video needs at least {temporal_factor} frames; it has {num_frames}")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > 200:
        raise ValueError(f"the aspect ratio must be below 200; it is {max(height, width) / min(height, width):.0f}")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    new_frames = round(num_frames / temporal_factor) * temporal_factor
    num_pixels = num_frames * height * width
    if new_frames * new_height * new_width > max_pixels:
        beta = (num_pixels / max_pixels) ** 0.5
        return max(factor, int(height / beta / factor) * factor), max(factor, int(width / beta / factor) * factor)
    if new_frames * new_height * new_width < min_pixels:
        beta = (min_pixels / num_pixels) ** 0.5
        return -int(-height * beta // factor) * factor, -int(-width * beta // factor) * factor
    return new_height, new_width


class WindowedAudio:
    """For AudioFlamingo3's processor, which cuts audio into windows. Its own code needs torch."""

    def _process_audio(self: Any, audio: Sequence[np.ndarray], **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        extractor = self.feature_extractor
        window = int(extractor.sampling_rate * extractor.chunk_length)
        longest = int(self.max_audio_len // extractor.chunk_length) * window
        counts = []
        for sound in audio:
            num_samples = min(len(sound), longest)
            full, rest = divmod(num_samples, window)
            num_frames = full * (window // extractor.hop_length) + -(-rest // extractor.hop_length)
            counts.append(int(self._get_audio_token_length(num_frames)))
        inputs = {"num_audio_tokens": counts}
        return inputs, [self.replace_audio_token(inputs, index) for index in range(len(audio))]


class PaddedAudio:
    """For Voxtral's processor, which expands placeholders inside mistral-common. Each started window of 30 s takes 375 tokens."""

    _window_s, _tokens_per_window = 30, 375

    def _process_audio(self: Any, audio: Sequence[np.ndarray], **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        window = self.feature_extractor.sampling_rate * self._window_s
        return {}, [self.audio_token * (-(-len(sound) // window) * self._tokens_per_window) for sound in audio]


def pixtral_processor() -> type:
    """transformers' PixtralProcessor, whose module cannot be imported without torch."""
    from transformers import ProcessorMixin

    class PixtralProcessor(ProcessorMixin):
        """Rows of image tokens. A break token follows each row except the last, which an end token follows."""

        def __init__(
            self,
            image_processor: Any = None,
            tokenizer: Any = None,
            patch_size: int = 16,
            spatial_merge_size: int = 1,
            chat_template: str | None = None,
            image_token: str = "[IMG]",  # noqa: S107 - a token, not a password
            image_break_token: str = "[IMG_BREAK]",  # noqa: S107
            image_end_token: str = "[IMG_END]",  # noqa: S107
            **kwargs: Any,
        ) -> None:
            super().__init__(image_processor, tokenizer, chat_template=chat_template)
            self._patch_size = patch_size * spatial_merge_size
            self.image_token, self._break, self._end = image_token, image_break_token, image_end_token

        def _process_images(self, images: Any, **images_kwargs: Any) -> Any:
            return super()._process_images(images, **{**images_kwargs, "patch_size": self._patch_size})

        def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
            height, width = image_inputs["image_sizes"][image_idx]
            row = self.image_token * (int(width) // self._patch_size)
            num_rows = int(height) // self._patch_size
            return (row + self._break) * (num_rows - 1) + row + self._end

    return PixtralProcessor


class MarkedTiles:
    """For LFM2-VL's processor, which writes tokens around tiles unless it is told not to."""

    def _process_images(self: Any, images: Any, **kwargs: Any) -> Any:
        marks = getattr(self, "use_image_special_tokens", True)  # older releases have no such attribute
        return super()._process_images(images, **{"use_image_special_tokens": marks, **kwargs})  # type: ignore[misc]


#: Class of a processor -> class whose methods replace the processor's.
ADAPTERS: dict[str, type] = {
    "AudioFlamingo3Processor": WindowedAudio,
    "Lfm2VlProcessor": MarkedTiles,
    "MusicFlamingoProcessor": WindowedAudio,
    "VoxtralProcessor": PaddedAudio,
}
#: Most audio items per prompt, of processors with such a limit.
MAX_ITEMS: dict[str, int] = {"AudioFlamingo3Processor": 1, "MusicFlamingoProcessor": 1}
#: Class of a processor -> a chat template for checkpoints without one. It writes prompts as the processor does.
CHAT_TEMPLATES = {
    "PaliGemmaProcessor": (
        "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}<image>{% endif %}{% endfor %}"
        "{% endfor %}{{ bos_token }}{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}"
        "{{ part.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
    )
}
