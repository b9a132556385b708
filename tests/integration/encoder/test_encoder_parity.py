"""Tiny random models of all families: embeddings from the encoder over gRPC equal those that the full model's own forward uses.

The reference is what transformers' whole model puts in the places of the placeholders, caught on its way into the language model,
for inputs from transformers' own processor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from support.builders.media import a_picture, a_sound_file, a_video_file, an_image_file, samples
from support.builders.multimodal import FAMILIES, build_checkpoint, modalities
from support.drivers.encoder import RunningEncoder, an_encoder
from support.media_reference import audio_inputs, image_inputs, video_inputs
from triptych_encoder.media.processors import VIDEO_MODEL_TYPES

pytestmark = pytest.mark.model
TOLERANCE = 1e-5
VIDEO_FAMILIES = tuple(family for family in FAMILIES if family in VIDEO_MODEL_TYPES)
CASES = [(family, modality) for family in FAMILIES for modality in modalities(family) if modality != "video"]
#: Sizes of pictures: landscape, portrait, smaller than a patch grid.
SIZES = ((90, 50), (40, 70), (33, 31))
SECONDS = (1.0, 0.37)


class FullModel:
    """transformers' whole model, which shows what its language model is given."""

    def __init__(self, path: Path) -> None:
        self.config = transformers.AutoConfig.from_pretrained(path)
        cls = getattr(transformers, self.config.architectures[0])
        self.model = cls.from_pretrained(path, dtype=torch.float32).eval()
        self._given: dict[str, Any] = {}
        inner = getattr(self.model, self.model.base_model_prefix, self.model)
        decoder = inner.get_decoder() if hasattr(inner, "get_decoder") else inner.language_model
        decoder.register_forward_pre_hook(lambda module, args, kwargs: self._given.update(kwargs), with_kwargs=True)

    def scattered(self, modality: str, num_tokens: int, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What stands in the places of so many placeholders."""
        token_id = getattr(self.config, f"{modality}_token_id", None) or getattr(self.config, f"{modality}_token_index")
        ids = torch.tensor([[5, *[token_id] * num_tokens, 6, 7]])
        is_placeholder = ids[0] == token_id
        more: dict[str, Any] = {}
        if any("grid" in name for name in inputs) and self.config.model_type != "lfm3_vl":  # its positions have one axis
            # Positions have no influence on what is scattered; given, they need not be found.
            more["position_ids"] = torch.arange(ids.shape[1]).expand(3, 1, -1)
        with torch.inference_mode():
            self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs, **more)
        rows = {"embeds": self._given["inputs_embeds"][0][is_placeholder]}
        for layer, features in enumerate(self._given.get("deepstack_visual_embeds") or ()):
            rows[f"deepstack.{layer}"] = features
        return rows


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(expected) <= set(got)
    for name, tensor in expected.items():
        assert got[name].shape == tensor.shape
        assert tensor.abs().max() > 0.01, "nothing to compare"
        torch.testing.assert_close(got[name], tensor, atol=TOLERANCE, rtol=TOLERANCE)


async def check(
    encoder: RunningEncoder, full: FullModel, modality: str, files: list[bytes], inputs: Callable[[int], dict[str, torch.Tensor]]
) -> None:
    """All files in one call, so that they may share batches; each equals the full model's alone."""
    results = await encoder.encode(*(encoder.item(modality, file) for file in files))
    for index, result in enumerate(results):
        assert not result.HasField("error"), result.error
        got = await encoder.fetch(result.key)
        assert_equal(got, full.scattered(modality, result.num_tokens, inputs(index)))


@pytest.mark.parametrize(("family", "modality"), CASES)
async def test_embeddings_are_those_of_the_full_model(family: str, modality: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    full = FullModel(path)
    async with an_encoder(path, dtype="float32") as encoder:
        if modality == "image":
            pictures = [a_picture(*size, seed=seed) for seed, size in enumerate((*SIZES, SIZES[0]))]
            files = [an_image_file("PNG", picture) for picture in pictures]
            await check(encoder, full, "image", files, lambda index: image_inputs(path, pictures[index]))
        else:
            sounds = [samples(seconds, seed=seed)[:, 0] for seed, seconds in enumerate((*SECONDS, SECONDS[0]))]
            files = [a_sound_file(data=sound, subtype="FLOAT") for sound in sounds]
            await check(encoder, full, "audio", files, lambda index: audio_inputs(path, sounds[index]))


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
async def test_embeddings_of_videos_are_those_of_the_full_model(family: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    full = FullModel(path)
    files = [a_video_file(31), a_video_file(45, width=64, height=96, seed=1)]
    async with an_encoder(path, dtype="float32") as encoder:
        await check(encoder, full, "video", files, lambda index: video_inputs(family, files[index]))


async def test_a_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "llava")
    full = FullModel(path)
    file = an_image_file("JPEG", a_picture(120, 80), quality=90)
    (tmp_path / "a.jpg").write_bytes(file)
    async with an_encoder(path, dtype="float32") as encoder:
        with Image.open(tmp_path / "a.jpg") as picture:
            inputs = image_inputs(path, picture.convert("RGB"))
        await check(encoder, full, "image", [file], lambda index: inputs)


async def test_bfloat16_embeddings_are_those_of_float32_rounded(tmp_path: Path) -> None:
    path = build_checkpoint("qwen3_vl", tmp_path / "qwen3_vl")
    picture = a_picture()
    async with an_encoder(path, dtype="bfloat16") as encoder:
        [result] = await encoder.encode(encoder.item("image", an_image_file("PNG", picture)))
        got = await encoder.fetch(result.key)
    assert got["image_grid_thw"].dtype == torch.int64
    for name, expected in FullModel(path).scattered("image", result.num_tokens, image_inputs(path, picture)).items():
        assert got[name].dtype == torch.bfloat16
        assert (got[name].float() - expected).norm() < 0.02 * expected.norm()
