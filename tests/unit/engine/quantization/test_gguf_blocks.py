"""Blocks of GGUF files: the very numbers of gguf's own reference."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.gguf_files import random_blocks
from triptych_common.model.gguf import TENSOR_TYPES
from triptych_engine.runner.quantization.gguf_blocks import BLOCK_TYPES


@pytest.mark.parametrize("name", BLOCK_TYPES)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 1 << 30), wild=st.booleans())
@settings(max_examples=25)
def test_weights_are_those_of_the_reference(name: str, rows: int, blocks: int, seed: int, wild: bool):
    kind, generator = BLOCK_TYPES[name], np.random.default_rng(seed)
    raw = random_blocks(name, rows, blocks * kind.block, generator)
    if wild:
        raw = generator.integers(0, 256, raw.shape, np.uint8)
    with warnings.catch_warnings(action="ignore"):  # NaN among wild bytes
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    got = kind.rows(torch.from_numpy(raw)).dequantize().numpy()
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[finite], expected[finite])
    assert not np.isfinite(got[~finite]).any()


def test_sizes_are_those_of_the_format():
    for number, (name, block, num_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, num_bytes))
    for name, block in BLOCK_TYPES.items():
        assert (block.block, block.num_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
