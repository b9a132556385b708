"""Cross-attention by each backend: every token of a ragged batch sees all states of its slot, and no others."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner.attention.paged import AttentionBackend
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cross_attention.layers import CrossAttention, CrossLayers

NUM_STATES, HEADS, HEAD_DIM = 41, 2, 16
HIDDEN = HEADS * HEAD_DIM
CPU = torch.device("cpu")


def _cuda() -> AttentionBackend:
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter, where there is no GPU")
    from triptych_engine.runner.cuda.attention import CudaAttention

    return CudaAttention(CPU)


def _cpu() -> AttentionBackend:
    if not isas_of_this_cpu() or (kernels := load_kernels()) is None:
        pytest.skip("there are no kernels for this CPU")
    return CpuAttention(kernels)


BACKENDS = {"torch": lambda: TorchAttention(CPU), "cpu": _cpu, "cuda": _cuda}


def cross_layers(backend: AttentionBackend, num_layers: int = 2) -> CrossLayers:
    torch.manual_seed(0)
    layers = CrossLayers(torch.randn(NUM_STATES, HIDDEN))
    layers.backend = backend
    for index in range(num_layers):
        projections: dict[str, Any] = {name: nn.Linear(HIDDEN, HIDDEN) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        original = SimpleNamespace(num_heads=HEADS, head_dim=HEAD_DIM, scaling=HEAD_DIM**-0.5, layer_idx=index, **projections)
        layers.layers[index] = CrossAttention(original, layers)
    return layers


def expected(layer: CrossAttention, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """[num_tokens, HIDDEN] of one sequence, by its formula."""
    query = (layer.query(hidden) * HEAD_DIM**-0.5).view(-1, HEADS, HEAD_DIM)
    keys, values = (part(states).view(-1, HEADS, HEAD_DIM) for part in (layer.keys, layer.values))
    weights = torch.einsum("qhd,khd->hqk", query, keys).softmax(-1)
    return layer.output(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("lengths", [[1, 1, 1], [5, 1, 3], [70]], ids=str)
@torch.inference_mode()
def test_a_ragged_batch(name: str, lengths: list[int]) -> None:
    layers = cross_layers(BACKENDS[name]())
    layers.allocate(4, 16, torch.float32)
    states = {slot: torch.randn(NUM_STATES, HIDDEN) for slot in (3, 0, 2)}
    for slot, of_slot in states.items():
        layers.fill(slot, of_slot)
    slots = [*states][: len(lengths)]
    hidden = torch.randn(1, sum(lengths), HIDDEN)
    borders = np.cumsum([0, *lengths]).astype(np.int32)
    for layer in layers.layers.values():
        with layers.computing(borders, slots):
            out, _ = layer(hidden, key_value_states=None)
        for index, slot in enumerate(slots):
            tokens = slice(borders[index], borders[index + 1])
            torch.testing.assert_close(out[0, tokens], expected(layer, hidden[0, tokens], states[slot]), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@torch.inference_mode()
def test_a_narrower_cache(dtype: torch.dtype) -> None:
    layers = cross_layers(_cpu())
    layers.allocate(2, 16, dtype)
    states, hidden = torch.randn(NUM_STATES, HIDDEN), torch.randn(1, 3, HIDDEN)
    layers.fill(1, states)
    with layers.computing(np.array([0, 3], np.int32), [1]):
        out, _ = layers.layers[0](hidden)
    assert nn.functional.cosine_similarity(out[0], expected(layers.layers[0], hidden[0], states)).min() > 0.999


@torch.inference_mode()
def test_without_a_step_the_probe_is_attended_to() -> None:
    layers, hidden = cross_layers(TorchAttention(CPU)), torch.randn(1, 3, HIDDEN)
    out, _ = layers.layers[1](hidden)
    torch.testing.assert_close(out[0], expected(layers.layers[1], hidden[0], layers.probe), atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_the_probe_has_a_slot_until_a_sequence_takes_it() -> None:
    layers, hidden = cross_layers(TorchAttention(CPU)), torch.randn(1, 1, HIDDEN)
    layers.allocate(2, 16, torch.float32)
    for others in ([], [torch.randn(NUM_STATES, HIDDEN)]):
        for states in others:
            layers.fill(0, states)
        with layers.computing(np.array([0, 1], np.int32), [layers.fill_probe()]):
            out, _ = layers.layers[0](hidden)
        torch.testing.assert_close(out[0], expected(layers.layers[0], hidden[0], layers.probe), atol=2e-5, rtol=1e-4)


def test_the_size_of_a_slot() -> None:
    layers = cross_layers(TorchAttention(CPU))
    assert layers.slot_bytes(torch.float32, 16) == 2 * 48 * HEADS * 2 * HEAD_DIM * 4  # layers, tokens of three blocks
