"""What the runner needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

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
    kv_cache_bytes: int
    dtype: torch.dtype | None = None
    #: Of keys and values; None takes what suits the model (precision.py).
    kv_cache_dtype: torch.dtype | None = None
    #: Take the memory of the KV cache from the system before requests use it, where its first use is slow.
    prefault_kv_cache: bool = False
    device: torch.device = _CPU
    attention: str = "auto"  # auto, cpu, cuda, torch
    quantization: str = "none"  # none, int8
    #: Compute threads, and compute threads while media are encoded, perhaps on the same cores. None leaves them as they are.
    num_threads: int | None = None
    num_threads_while_encoding: int | None = None
    #: Record decode steps once and replay them, where the device can.
    cuda_graphs: bool = True
