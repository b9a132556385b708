"""The stand-in for transformers' video processors, which need torchvision, against the parts of them that do not."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.builders.media import a_picture
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen2
from triptych_encoder.media.video_processor import QwenVideoProcessor

# By its full name: the package hides the module where torchvision is absent.
qwen3 = importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")
SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}


@given(st.integers(2, 40), st.integers(8, 900), st.integers(8, 900))
@settings(max_examples=200)
def test_qwen3_sizes_are_those_of_transformers(num_frames: int, height: int, width: int) -> None:
    processor = QwenVideoProcessor({"patch_size": 14, "size": SIZE}, budget_per_video=True)
    expected = qwen3.smart_resize(num_frames, height, width, 2, 28, SIZE["shortest_edge"], SIZE["longest_edge"])
    assert processor._resized(num_frames, height, width, SIZE["shortest_edge"], SIZE["longest_edge"]) == expected


@given(st.integers(2, 40), st.integers(8, 900), st.integers(8, 900))
@settings(max_examples=200)
def test_qwen2_sizes_are_those_of_transformers(num_frames: int, height: int, width: int) -> None:
    assume(max(height, width) / min(height, width) <= 200)
    processor = QwenVideoProcessor({"patch_size": 14, "size": SIZE}, budget_per_video=False)
    expected = qwen2.smart_resize(height, width, 28, SIZE["shortest_edge"], SIZE["longest_edge"])
    assert processor._resized(num_frames, height, width, SIZE["shortest_edge"], SIZE["longest_edge"]) == expected


@pytest.mark.parametrize("num_frames", [2, 5])
def test_patches_are_those_of_transformers(num_frames: int) -> None:
    processor = QwenVideoProcessor({"patch_size": 14, "size": SIZE}, budget_per_video=True)
    frames = torch.randn(num_frames, 3, 56, 84)
    patches, grid = processor._patchify(frames)
    expected, *expected_grid = qwen3.Qwen3VLVideoProcessor.patchify(None, frames[None], 14, 2, 2)
    assert grid == expected_grid
    torch.testing.assert_close(patches, expected[0])


def test_a_still_video_is_its_picture() -> None:
    """Two equal frames of the right size give what the family's image processor gives for the frame."""
    picture = a_picture(112, 56)
    images = qwen2.Qwen2VLImageProcessorPil(size=SIZE)
    expected = images([picture], return_tensors="pt")
    processor = QwenVideoProcessor({"size": SIZE}, budget_per_video=False)
    got = processor([np.stack([np.asarray(picture)] * 2)])
    assert got["video_grid_thw"].tolist() == expected["image_grid_thw"].tolist()
    torch.testing.assert_close(got["pixel_values_videos"], expected["pixel_values"], atol=1e-5, rtol=1e-5)


def test_extreme_aspect_ratios_are_refused() -> None:
    processor = QwenVideoProcessor({"size": SIZE}, budget_per_video=False)
    with pytest.raises(ValueError, match="aspect ratio"):
        processor([np.zeros((2, 2, 500, 3), np.uint8)])
