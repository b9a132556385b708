"""From the settings of an engine to its parts."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from triptych.errors import StartupError
from triptych.v1 import common_pb2
from triptych_common.host.cores import num_usable_cores
from triptych_common.host.memory import private_memory, usable_memory
from triptych_common.model.pooling import PoolingModel

from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.executor.protocol import Executor, ExecutorInfo
from triptych_engine.executor.simulated import SimulatedEngine, SimulatedExecutor
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.scheduling.kv_cache import KVCacheManager
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.speculation.drafter import PromptLookupDrafter
from triptych_engine.settings import EngineSettings

log = logging.getLogger(__name__)
#: Token budget of a step: (on a CPU, generates text) -> tokens.
_DEFAULT_BUDGETS = {(True, True): 512, (True, False): 2048, (False, True): 8192, (False, False): 16384}


def new_executor(settings: EngineSettings, config: RunnerConfig, vocab_size: int) -> Executor:
    """The executor that the settings ask for. Raises StartupError."""
    if settings.simulate is None:
        return InProcessExecutor(config)
    if config.pooling is not None:
        raise StartupError("simulate needs a model that generates text")
    log.warning("this engine is simulated: it computes nothing, and answers with made-up words")
    return SimulatedExecutor(SimulatedEngine.read(settings.simulate), config.model_path, vocab_size, config.block_size)


def make_scheduler(settings: EngineSettings, config: RunnerConfig, loaded: ExecutorInfo) -> Scheduler:
    """The scheduler for a loaded model. Steps are limited by time, and draft tokens weighed, if the executor has measured costs."""
    pacer = None if loaded.costs is None else StepPacer(loaded.costs, settings.max_step_ms / 1e3)
    takes_drafts = settings.prompt_lookup and loaded.takes_drafts and not settings.async_scheduling
    return Scheduler(
        KVCacheManager(loaded.num_blocks, loaded.block_size, settings.enable_prefix_caching and config.pooling is None),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_waiting=settings.max_waiting,
        max_model_len=config.max_model_len,
        max_embeddings=settings.embedding_cache_memory // loaded.embedding_bytes,
        can_chunk=loaded.can_chunk,
        pacer=pacer,
        drafter=PromptLookupDrafter(pacer) if pacer is not None and takes_drafts else None,
    )


def runner_config(
    settings: EngineSettings, model: common_pb2.ModelInfo, path: Path, pooling: PoolingModel | None = None
) -> RunnerConfig:
    """Derive the runner's configuration. Also sets the number of compute threads of this process."""
    num_threads = None
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device)
    if device.type == "cpu":
        num_threads = settings.num_threads or num_usable_cores()
        torch.set_num_threads(num_threads)
    budget = settings.max_num_batched_tokens or _DEFAULT_BUDGETS[device.type == "cpu", pooling is None]
    if pooling is not None and pooling.is_bidirectional:
        budget = max(budget, model.max_model_len)  # a text is computed whole
    if budget < settings.max_num_seqs:
        raise StartupError(f"max_num_batched_tokens ({budget}) must be at least max_num_seqs ({settings.max_num_seqs})")
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
        reserved_bytes=settings.embedding_cache_memory if settings.encoder_addresses else 0,
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
        num_threads=num_threads,
        num_threads_while_encoding=num_threads and min(num_threads, settings.num_threads_while_encoding or num_threads),
    )
