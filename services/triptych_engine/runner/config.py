"""Configuration of the runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from triptych.errors import StartupError
from triptych.v1 import common_pb2
from triptych_common.host.cores import num_usable_cores
from triptych_common.host.memory import private_memory, usable_memory
from triptych_common.model.pooling import PoolingModel

from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.runner.place import ALONE, Place
from triptych_engine.settings import EngineSettings

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
    #: This process' place among those that compute the model together.
    place: Place = ALONE
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
    #: Where blocks are that were evicted from the KV cache.
    host_memory: HostMemory | None = None


def share_of_resources(config: RunnerConfig) -> RunnerConfig:
    """The configuration of a rank, whose place it has already: its device, and its part of the cores and the memory of a CPU.

    Raises:
        StartupError: what is asked for cannot be computed by several ranks, or there are fewer GPUs.
    """
    if config.lora_dir is not None:
        raise StartupError("lora_dir: adapters are not supported with tensor_parallel_size")
    if config.pooling is not None and config.pooling.is_bidirectional:
        raise StartupError("tensor_parallel_size: models whose tokens attend to all others are computed by one rank")
    if config.kv_cache_bytes is not None:
        config = replace(config, kv_cache_bytes=config.kv_cache_bytes // config.place.size)
    size = config.place.local_size
    if config.device.type != "cpu":
        first = config.device.index or 0
        if torch.cuda.device_count() < first + size:
            gpus = f"the GPUs {first} to {first + size - 1}; this host has {torch.cuda.device_count()}"
            raise StartupError(f"tensor_parallel_size {config.place.size} needs {gpus}")
        return replace(config, device=torch.device("cuda", first + config.place.local_rank))
    num_threads = max(1, (config.num_threads or num_usable_cores()) // size)
    torch.set_num_threads(num_threads)
    return replace(
        config,
        num_threads=num_threads,
        num_threads_while_encoding=min(num_threads, max(1, (config.num_threads_while_encoding or num_threads) // size)),
        memory_limit=config.memory_limit // size,
        reserved_bytes=config.reserved_bytes // size,
    )


def runner_config(
    settings: EngineSettings,
    model: common_pb2.ModelInfo,
    path: Path,
    pooling: PoolingModel | None = None,
    host_memory: HostMemory | None = None,
) -> RunnerConfig:
    """The configuration that follows from an engine's settings. Raises StartupError.

    Also sets the number of compute threads of this process.
    """
    num_threads = None
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device)
    if device.type == "cpu":
        num_threads = settings.num_threads or num_usable_cores()
        torch.set_num_threads(num_threads)
    is_whole = pooling is not None and pooling.is_bidirectional  # a text is computed in one step
    least = model.max_model_len if is_whole else 0
    budget = settings.token_budget(on_cpu=device.type == "cpu", generates=pooling is None, least=least)
    return RunnerConfig(
        model_path=path,
        model_name=model.name,
        max_model_len=model.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=budget,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_memory,
        memory_limit=settings.memory_limit or usable_memory().available + private_memory(),
        memory_utilization=settings.memory_utilization,
        reserved_bytes=(settings.embedding_cache_memory if settings.encoder_addresses else 0)
        + (host_memory.num_bytes if host_memory is not None else 0),
        dtype=None if settings.dtype == "auto" else getattr(torch, settings.dtype),
        kv_cache_dtype=None if settings.kv_cache_dtype == "auto" else getattr(torch, settings.kv_cache_dtype),
        prefault_kv_cache=settings.prefault_kv_cache,
        device=device,
        attention=settings.attention,
        cuda_graphs=settings.cuda_graphs,
        batch_invariant=settings.batch_invariant,
        quantization=settings.quantization,
        pooling=pooling,
        lora_dir=settings.lora_dir,
        max_loras=settings.max_loras,
        host_memory=host_memory,
        num_threads=num_threads,
        num_threads_while_encoding=num_threads and min(num_threads, settings.num_threads_while_encoding or num_threads),
    )
