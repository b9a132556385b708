"""Placeholders against transformers' own processors, which get real pixels and samples of the same sizes."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.builders.media_files import checkpoint
from support.builders.multimodal import FAMILIES
from support.drivers.media_templates import loaded, turn
from support.lfm2_vl_reference import reference_image_processor
from triptych.errors import InvalidRequestError
from triptych_common.media.geometry import FrameSampling, resampled_length
from triptych_common.model.store import read_json
from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.media.item import AUDIO, IMAGE, MODALITY_NAMES, VIDEO, AudioHeader, ImageHeader, MediaPart, VideoHeader
from triptych_frontend.media.processors.loading import _class_of_transformers
from triptych_frontend.media.processors.placeholders import detail_options
from triptych_frontend.media.processors.torchless import VideoGeometry

RATE = 16_000


IMAGE_FAMILIES = [family for family in FAMILIES if family not in ("qwen2_audio", "voxtral", "audioflamingo3")]


AUDIO_FAMILIES = ["qwen2_audio", "audioflamingo3", "qwen2_5_omni", "qwen3_omni"]


VIDEO_FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


many = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


sides = st.integers(1, 300)


@functools.cache
def reference(family: str) -> Any:
    """transformers' processor with real parts, but for videos, whose processors need torchvision."""
    path = checkpoint(family)
    # Its own module needs torchvision, for a name that the PIL backend's module has as well.
    from transformers.models.pixtral import image_processing_pil_pixtral

    sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", image_processing_pil_pixtral)
    base = _class_of_transformers(read_json(path / "processor_config.json")["processor_class"])
    own = {"check_argument_for_proper_class": lambda *_: None, "__init__": base.__init__, "__repr__": object.__repr__}
    cls = type(base.__name__, (base,), own)
    loaders = {
        "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(path),
        "image_processor": lambda: (
            reference_image_processor(path)
            if family == "lfm2_vl"
            else transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
        ),
        "feature_extractor": lambda: transformers.AutoFeatureExtractor.from_pretrained(path),
        "video_processor": lambda: VideoGeometry(read_json(path / "video_preprocessor_config.json")),
    }
    return cls.from_args_and_dict([loaders[part]() for part in cls.get_attributes()], cls.get_processor_dict(path)[0])


def rendered_text(family: str, chat: ChatTurn) -> str:
    content = [
        {"type": MODALITY_NAMES[part.modality]} if isinstance(part, MediaPart) else {"type": "text", "text": part}
        for part in chat.parts
    ]
    hf = loaded(family)[0].hf
    return hf.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)


def check_prompt(family: str, chat: ChatTurn, headers: list[Any], expected_ids: list[int], **options: Any) -> None:
    """The prompt is transformers', and the ranges cover its placeholder tokens, item after item."""
    _, expander, template = loaded(family)
    modalities = [part.modality for part in chat.media]
    expansions = [expander.expand(header, options, "item") for header in headers]
    prompt = template.render([chat], {}, True, False, list(zip(modalities, expansions, strict=True)))
    assert prompt.token_ids == expected_ids
    covered = [place for found in prompt.placeholders for place in range(found.offset, found.offset + found.length)]
    assert covered == [place for place, token_id in enumerate(prompt.token_ids) if token_id in expander.embed_token_ids]
    for index, expansion in enumerate(expansions):
        assert sum(found.length for found in prompt.placeholders if found.media_index == index) == expansion.num_embeds


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_images_take_what_transformers_gives_them(family: str) -> None:
    processor = reference(family)

    @many
    @given(st.lists(st.tuples(sides, sides), min_size=1, max_size=2))
    def check(sizes: list[tuple[int, int]]) -> None:
        chat = turn(*[IMAGE] * len(sizes))
        text = rendered_text(family, chat)
        images = [Image.new("RGB", size) for size in sizes]
        nested = [images] if family in ("idefics3", "smolvlm", "gemma3", "lfm2_vl") else images
        prefix = "" if family != "paligemma" else None
        try:
            inputs = _reference_ids(processor, text, nested, prefix)
        except ValueError:
            with pytest.raises(InvalidRequestError, match="item"):
                [loaded(family)[1].expand(ImageHeader(*size), {}, "item") for size in sizes]
            return
        check_prompt(family, chat, [ImageHeader(*size) for size in sizes], inputs)

    check()


def test_a_strip_that_the_tower_of_lfm2_vl_does_not_take_is_refused() -> None:
    expander = loaded("lfm2_vl")[1]
    with pytest.raises(InvalidRequestError, match=r"item: .* sides differ too much"):
        expander.expand(ImageHeader(300, 2), {"min_image_tokens": 10}, "item")
    with pytest.raises(InvalidRequestError, match=r"item: .* tile_size must be a multiple of 16; given: 40"):
        expander.expand(ImageHeader(300, 2), {"tile_size": 40}, "item")


def test_a_small_picture_cannot_ask_lfm2_vl_for_many_long_parts() -> None:
    """The tower's mask would take 90 GB."""
    options = {"tile_size": 32, "min_tiles": 64, "max_tiles": 64, "min_image_tokens": 4096, "max_image_tokens": 4096}
    with pytest.raises(InvalidRequestError, match=r"item: .* it would be 65 parts of up to \d+ patches, too many"):
        loaded("lfm2_vl")[1].expand(ImageHeader(64, 64), options | {"max_pixels_tolerance": 0}, "item")


def _reference_ids(processor: Any, text: str, images: Any, prefix: str | None) -> list[int]:
    if prefix is None:
        # PaliGemma's processor rebuilds the prompt around the images; its placeholder text is what counts here.
        merged = processor._merge_kwargs()["images_kwargs"]
        _, replacements = processor._process_images(images, **merged)
        (text,), _ = processor.get_text_with_replacements([text], replacements)
        return processor.tokenizer(text)["input_ids"]
    ids = processor(text=[text], images=images, return_tensors="np")["input_ids"][0]
    return [int(token_id) for token_id in ids]


@pytest.mark.parametrize("family", AUDIO_FAMILIES)
def test_sounds_take_what_transformers_gives_them(family: str) -> None:
    processor = reference(family)
    # AudioFlamingo3 takes one. Qwen3-Omni's extractor pads a sound to the longest of its batch, which changes its number of frames
    # there; here each is taken by itself.
    max_sounds = 1 if family in ("audioflamingo3", "qwen3_omni") else 2

    @many
    @given(st.lists(st.integers(700, 70_000), min_size=1, max_size=max_sounds))
    def check(lengths: list[int]) -> None:
        chat = turn(*[AUDIO] * len(lengths))
        sounds = [np.zeros(length, np.float32) for length in lengths]
        tensors = "pt" if family == "audioflamingo3" else "np"
        inputs = processor(text=[rendered_text(family, chat)], audio=sounds, sampling_rate=RATE, return_tensors=tensors)
        ids = [int(token_id) for token_id in inputs["input_ids"][0]]
        check_prompt(family, chat, [AudioHeader(length, RATE) for length in lengths], ids)

    check()


def test_omni_models_get_the_lengths_of_sounds() -> None:
    _, expander, _ = loaded("qwen2_5_omni")
    (layout,) = expander.expand(AudioHeader(16_000, RATE), {}, "item").layout
    assert (layout[0], layout[1].tolist()) == ("audio_seqlens", [100])


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_videos_take_what_transformers_gives_them(family: str) -> None:
    """Frames and grids by torch's code of the family, read without torchvision; the text by the family's processor."""
    from transformers.video_utils import VideoMetadata

    processor, expander = reference(family), loaded(family)[1]
    config = read_json(checkpoint(family) / "video_preprocessor_config.json")

    @many
    @given(st.integers(4, 90), st.integers(20, 200), st.integers(20, 200), st.sampled_from([1.0, 7.5, 10.0, 29.97]))
    @example(75, 20, 20, 10.0)
    def check(num_frames: int, width: int, height: int, fps: float) -> None:
        indices = _torch_sample(config, num_frames, fps)
        grid = _torch_grid(config, len(indices), height, width)
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, frames_indices=list(indices))
        expected = processor.replace_video_token({"video_grid_thw": np.array([grid]), "video_metadata": [metadata]}, 0)
        expansion = expander.expand(VideoHeader(width, height, num_frames, fps), {}, "item")
        assert expansion.text == expected
        layout = dict(expansion.layout)
        assert layout["video_grid_thw"].tolist() == [list(grid)]
        assert ("second_per_grid_ts" in layout) == (family == "qwen2_5_vl")
        if family == "qwen2_5_vl":
            assert layout["second_per_grid_ts"][0] == pytest.approx(2 / (len(indices) / num_frames * fps))

    check()


def _torch_sample(config: dict[str, Any], num_frames: int, fps: float) -> list[int]:
    """transformers' `sample_frames`, line by line but for its checks."""
    import torch

    if config["video_processor_type"] == "Qwen3VLVideoProcessor":
        count = int(num_frames / fps * config["fps"])
        count = min(max(count, config["min_frames"]), config["max_frames"], num_frames)
        return np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
    longest = min(config["max_frames"], num_frames) // 2 * 2
    count = min(max(num_frames / fps * config["fps"], config["min_frames"]), longest, num_frames) // 2 * 2
    # By rounding it gives one more, here and there; nobody means that.
    return torch.arange(0, num_frames, num_frames / count).int().tolist()[: int(count)]


def _torch_grid(config: dict[str, Any], num_frames: int, height: int, width: int) -> tuple[int, int, int]:
    size = {"min_pixels": config["size"]["shortest_edge"], "max_pixels": config["size"]["longest_edge"], "factor": 28}
    if config["video_processor_type"] == "Qwen3VLVideoProcessor":
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

        new = smart_resize(num_frames, height, width, temporal_factor=2, **size)
    else:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        new = smart_resize(height, width, **size)
    return -(-num_frames // 2), new[0] // 14, new[1] // 14


def test_options_change_what_an_item_takes() -> None:
    _, expander, _ = loaded("qwen2_5_vl")
    header = ImageHeader(200, 150)
    few = expander.expand(header, {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56}}, "item").num_embeds
    assert 0 < few < expander.expand(header, {}, "item").num_embeds
    video = VideoHeader(100, 80, 60, 10.0)
    frames = [expander.expand(video, {"fps": fps}, "item").layout[0][1][0][0] for fps in (1, 2)]
    assert frames == [3, 6]


@pytest.mark.parametrize(
    ("family", "low", "high"), [("idefics3", 4, 20), ("internvl", 4, 20), ("gemma3", 4, 12), ("qwen2_vl", 20, 20)]
)
def test_detail_changes_what_an_image_takes(family: str, low: int, high: int) -> None:
    _, expander, _ = loaded(family)
    header = ImageHeader(2000, 1500)
    counts = {
        detail: expander.expand(header, expander.detail_options(IMAGE, detail, "item.detail"), "item").num_embeds
        for detail in ("low", "high", "auto")
    }
    assert (counts["low"], counts["high"]) == (low, high)
    assert counts["auto"] == expander.expand(header, {}, "item").num_embeds


def test_coarse_images_have_as_many_pixels_as_openais() -> None:
    size = SimpleNamespace(longest_edge=12_845_056, shortest_edge=3136)
    low = detail_options("low", {"max_pixels"}, SimpleNamespace(size=size), "item.detail")
    assert low == {"size": {"longest_edge": 512 * 512, "shortest_edge": 3136}}


@pytest.mark.parametrize(("family", "detail"), [("llava_clip", "low"), ("llava_siglip", "high"), ("idefics3", "fine")])
def test_details_that_cannot_be_honoured_are_refused(family: str, detail: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        loaded(family)[1].detail_options(IMAGE, detail, "item.detail")
    assert (caught.value.field, caught.value.value) == ("item.detail", detail)


def test_options_that_nobody_knows_are_refused() -> None:
    _, expander, _ = loaded("qwen2_5_vl")
    own, used = expander.options_for(VIDEO, {"fps": 1, "images_kwargs": {"size": {}}, "videos_kwargs": {"max_frames": 4}}, "f")
    assert own == {"fps": 1, "max_frames": 4}
    assert used == {"fps", "videos_kwargs"}
    for options in (
        {"colour": 1},
        {"images_kwargs": {"fps": 1}},
        {"images_kwargs": 3},
        {"return_tensors": "pt"},
        {"device": "cpu"},
    ):
        with pytest.raises(InvalidRequestError, match="f: "):
            expander.options_for(IMAGE, options, "f")


def test_bad_values_of_options_are_told() -> None:
    _, expander, _ = loaded("qwen2_5_vl")
    for options in ({"fps": 0}, {"fps": 1, "num_frames": 4}, {"num_frames": "many"}, {"fps": True}):
        with pytest.raises(InvalidRequestError, match="item: the model's processor refuses it"):
            expander.expand(VideoHeader(100, 80, 60, 10.0), options, "item")
    with pytest.raises(InvalidRequestError, match="item"):
        expander.expand(ImageHeader(10, 10), {"size": "large"}, "item")


@given(st.integers(1, 10**7), st.sampled_from([8000, 22050, 44100, 48000]), st.sampled_from([16000, 24000]))
def test_resampled_lengths(num_samples: int, rate: int, target: int) -> None:
    assert resampled_length(num_samples, rate, target) == -(-num_samples * target // rate)


@given(st.integers(1, 500), st.floats(0.5, 120), st.booleans(), st.sampled_from([{}, {"num_frames": 7}, {"fps": 3}]))
def test_sampled_frames_are_in_the_video(total: int, fps: float, is_qwen3: bool, options: dict[str, Any]) -> None:
    kind = "Qwen3VLVideoProcessor" if is_qwen3 else "Qwen2VLVideoProcessor"
    indices = FrameSampling.from_config({"video_processor_type": kind}, options).indices(total, fps)
    assert 1 <= len(indices) <= total
    assert 0 <= indices.min() <= indices.max() < total
    assert (np.diff(indices) >= 0).all()
