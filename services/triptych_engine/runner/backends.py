"""Chooses what computes a model on its device: its attention, and the parts of its layers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from triptych.errors import StartupError

from triptych_engine.runner.attention.paged import AttentionBackend, AttentionMetadata, LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.latent_attention import LatentAttention
from triptych_engine.runner.fusion.kernels import FusedKernels
from triptych_engine.runner.quantization.formats import ON_THE_FLY

log = logging.getLogger(__name__)
#: Query heads per key head in the trial.
_GROUP = 4
#: Smallest cosine similarity that rounding to 16 bits can explain.
_MIN_SIMILARITY = 0.999


def choose_backend(
    name: str,
    device: torch.device,
    layers: dict[int, LayerShape],
    block_size: int,
    dtype: torch.dtype,
    kernels: CpuKernels | None,
    *,
    cache_dtype: torch.dtype | None = None,
) -> AttentionBackend:
    """The backend with this name, or for `auto` the fastest one that supports the model. The caller must allocate the KV cache.

    Args:
        name: auto, cpu, cuda or torch.
        dtype: dtype of the model.
        cache_dtype: dtype of the KV cache; by default the model's.
        kernels: CPU kernels; None if they are not available.

    Raises:
        StartupError: the backend that was requested by name does not work here.
    """
    cache_dtype = cache_dtype or dtype
    fast = {"cpu": "cpu", "cuda": "cuda"}.get(device.type)
    if cache_dtype == torch.int8:
        if fast != "cpu" or name not in ("auto", "cpu"):
            raise StartupError(f"--kv-cache-dtype int8 needs the CPU kernels, not --attention {name} on {device}")
        name = "cpu"  # there is nothing to fall back to
    if name == "torch" or (name == "auto" and fast is None):
        return TorchAttention(device)
    if name not in ("auto", fast):
        raise StartupError(f"{name} attention was requested; the device is {device}")
    try:
        if fast == "cpu":
            return _cpu(layers, block_size, cache_dtype, kernels)
        return _cuda(device, layers, block_size, cache_dtype)
    except ValueError as error:
        if name != "auto":
            raise StartupError(str(error)) from error
        log.warning("%s; falling back to plain torch, which is several times slower", error)
        return TorchAttention(device)


def fused_kernels(config: RunnerConfig, kernels: CpuKernels | None) -> FusedKernels | None:
    """What computes the parts of models on this device; None if nothing does, or if plain torch was requested on a GPU."""
    if config.device.type == "cpu":
        return CpuFusedKernels(kernels, form=ON_THE_FLY.get(config.quantization), batch_invariant=config.batch_invariant)
    if config.device.type != "cuda" or config.attention == "torch":
        return None
    try:
        from triptych_engine.runner.cuda.fused import CudaFusedKernels

        fused = CudaFusedKernels(config.device)
        one = torch.ones(1, 16, device=config.device)
        fused.rms_norm(one, one[0], 0.0, torch.float32)
    except Exception as error:  # triton comes with torch's CUDA builds; it needs a C compiler, and a GPU that it knows
        log.warning("the model's own layers are used, which is slower: %s", error)
        return None
    return fused


def _cpu(layers: dict[int, LayerShape], block_size: int, dtype: torch.dtype, kernels: CpuKernels | None) -> AttentionBackend:
    if kernels is None:
        raise ValueError("the CPU attention kernel is not available")
    keep_latents = any(shape.values_in_keys for shape in layers.values())
    backend = LatentAttention(kernels) if keep_latents else CpuAttention(kernels)
    backend.allocate(layers, 1, block_size, dtype)  # raises ValueError if it does not support the model
    return backend


def _cuda(device: torch.device, layers: dict[int, LayerShape], block_size: int, dtype: torch.dtype) -> AttentionBackend:
    try:
        from triptych_engine.runner.cuda.attention import CudaAttention
    except ImportError as error:  # triton comes with torch's CUDA builds
        raise ValueError(f"the kernels for GPUs need triton ({error})") from error
    backend = CudaAttention(device)
    backend.allocate(layers, 1, block_size, dtype)  # raises ValueError if it does not support the model
    for shape in set(layers.values()):
        try_backend(backend, device, shape, block_size, dtype)
    backend.free()
    return backend


@torch.inference_mode()
def try_backend(backend: AttentionBackend, device: torch.device, shape: LayerShape, block_size: int, dtype: torch.dtype) -> None:
    """Compare a backend with plain torch: a ragged prefill over unordered pages, then a decode step with long and short contexts.

    Raises:
        ValueError: a kernel fails, or its results differ.
    """
    lengths = [5 * block_size + 3, 2, block_size]
    table = np.arange(3 * 6, dtype=np.int32)[::-1].reshape(3, 6).copy()
    backends: list[AttentionBackend] = [backend, TorchAttention(device)]
    for one in backends:
        one.allocate({0: shape}, table.size, block_size, dtype)
    generator = torch.Generator(device).manual_seed(0)
    computed = [0, 0, 0]
    for step in (lengths, [1, 1, 1]):
        sizes = (
            (shape.num_kv_heads * _GROUP, shape.head_dim),
            (shape.num_kv_heads, shape.head_dim),
            (shape.num_kv_heads, shape.v_head_dim),
        )
        query, key, value = (torch.randn(sum(step), *size, generator=generator, device=device).to(dtype) for size in sizes)
        outputs = []
        for one in backends:
            one.begin(_trial_step(step, computed, table, block_size))
            options: Any = {"scaling": shape.head_dim**-0.5, "window": 0, "softcap": 0.0, "sinks": None}
            try:
                outputs.append(one.forward(0, query, key, value, **options).float().flatten(1))
            except Exception as error:  # a compiler's, a driver's
                raise ValueError(f"{one.name} attention fails on {device}: {str(error).splitlines()[0]}") from error
        similarity = torch.nn.functional.cosine_similarity(outputs[0], outputs[1], dim=-1).min().item()
        if not similarity >= _MIN_SIMILARITY:
            raise ValueError(f"{backend.name} attention is wrong on {device} (cosine similarity {similarity:.4f})")
        computed = [c + n for c, n in zip(computed, step, strict=True)]


def _trial_step(lengths: list[int], computed: list[int], table: np.ndarray, block_size: int) -> AttentionMetadata:
    positions = np.concatenate([np.arange(c, c + n) for n, c in zip(lengths, computed, strict=True)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return AttentionMetadata(
        query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        seq_lens=(np.array(computed) + lengths).astype(np.int32),
        block_table=table,
        slots=table[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        positions=positions.astype(np.int32),
    )
