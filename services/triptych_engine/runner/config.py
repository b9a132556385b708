"""Configuration of the runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from triptych_common.model.pooling import PoolingModel

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Derived from the engine's settings and the model."""

    model_path: Path
    model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    #: Size of the KV cache; None follows from the memory that is left.
    kv_cache_bytes: int | None
    #: Memory that this process may take on a CPU, in bytes, and its share of that or of a GPU's; None: see memory.py.
    memory_limit: int = 0
    memory_utilization: float | None = None
    #: Memory that the process needs later, besides the model and the KV cache, in bytes.
    reserved_bytes: int = 0
    dtype: torch.dtype | None = None
    #: Dtype of keys and values; None chooses it by the model (precision.py).
    kv_cache_dtype: torch.dtype | None = None
    #: Touch the memory of the KV cache before requests use it, where the first use of a page is slow.
    prefault_kv_cache: bool = False
    device: torch.device = _CPU
    attention: str = "auto"  # auto, cpu, cuda, torch
    quantization: str = "none"  # none, int8, int4
    #: Compute a token's logits to the same bits whatever is computed with it, or refuse the model.
    batch_invariant: bool = False
    #: Number of compute threads; None leaves it unchanged.
    num_threads: int | None = None
    #: The same while media are encoded, which may happen on the same cores.
    num_threads_while_encoding: int | None = None
    #: Record decode steps once and replay them, if the device supports it.
    cuda_graphs: bool = True
    #: How the model's hidden states become vectors or labels; None if it generates text.
    pooling: PoolingModel | None = None
    #: Directory of the adapters that requests can name; None for none.
    lora_dir: Path | None = None
    #: Adapters that may be loaded at once.
    max_loras: int = 8
