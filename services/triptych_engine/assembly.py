"""From the settings of an engine to its parts."""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from triptych.errors import StartupError
from triptych.v1 import common_pb2
from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.memory import private_memory
from triptych_common.model import store as model_store
from triptych_common.model.pooling import PoolingModel, served_model

from triptych_engine.executor.link import read_secret
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.node import Node
from triptych_engine.executor.nodes import NodeHello, Nodes
from triptych_engine.executor.protocol import Executor, ExecutorInfo
from triptych_engine.executor.simulated import SimulatedEngine, SimulatedExecutor
from triptych_engine.executor.worker import WorkerConfig, executor_of_worker
from triptych_engine.kv_offload.disk_tier import DiskTier
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.scheduling.cache.cross_cache import CrossCache
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.cache.layer_groups import LayerGroups
from triptych_engine.scheduling.cache.state_cache import StateCache
from triptych_engine.scheduling.cache.window_cache import WindowCache
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.speculation.drafter import PromptLookupDrafter
from triptych_engine.settings import EngineSettings

log = logging.getLogger(__name__)


def new_executor(
    settings: EngineSettings,
    model: common_pb2.ModelInfo,
    path: Path,
    pooling: PoolingModel | None = None,
    on_worker_lost: Callable[[], None] = lambda: None,
    host_memory: HostMemory | None = None,
) -> Executor:
    """The executor that the settings ask for. Raises StartupError.

    Args:
        path: directory of the model.
        pooling: how the model's hidden states become vectors or labels; None if it generates text.
        on_worker_lost: called on another thread when the worker process has ended by itself.
        host_memory: where blocks are that were evicted from the KV cache; None if they are dropped.
    """
    if settings.simulate is not None:
        if pooling is not None or settings.nnodes > 1:
            raise StartupError("simulate needs a model that generates text, and no nnodes")
        log.warning("this engine is simulated: it computes nothing, and answers with made-up words")
        return SimulatedExecutor(SimulatedEngine.read(settings.simulate), path, model.vocab_size, settings)
    nodes = _nodes(settings, model, host_memory)
    if settings.distributed_executor_backend == "mp" or settings.tensor_parallel_size > 1:
        make = partial(executor_of_worker, settings, model, path, pooling, private_memory(), host_memory)
        descriptors = () if host_memory is None else (host_memory.descriptor,)
        worker = WorkerConfig(make, descriptors=descriptors, log_level=settings.log_level, log_format=settings.log_format)
        return MultiprocExecutor(worker, settings.execute_model_timeout_s, on_worker_lost, settings.tensor_parallel_size, nodes)
    with startup_objects_frozen():  # these import torch, which this process does not need if a worker computes
        from triptych_engine.executor.in_process import InProcessExecutor
        from triptych_engine.runner.config import runner_config
    return InProcessExecutor(runner_config(settings, model, path, pooling, host_memory), keeps_verdicts=True)


def _nodes(settings: EngineSettings, model: common_pb2.ModelInfo, host_memory: HostMemory | None) -> Nodes | None:
    """The other hosts that compute the model with this one; None if the settings name none. Raises StartupError."""
    if settings.nnodes == 1:
        return None
    if settings.tensor_parallel_size % settings.nnodes:
        raise StartupError(
            f"tensor_parallel_size ({settings.tensor_parallel_size}) must be a multiple of nnodes ({settings.nnodes})"
        )
    if host_memory is not None:
        raise StartupError("kv_offloading_memory and kv_role need all ranks on one host, not nnodes")
    return Nodes(settings.nnodes, settings.master_port, read_secret(settings.node_key_file), _files_fingerprint(model))


def new_node(settings: EngineSettings) -> Node:
    """What an engine is whose node_rank is not 0. Raises StartupError."""
    if settings.node_rank >= settings.nnodes:
        raise StartupError(f"node_rank ({settings.node_rank}) must be below nnodes ({settings.nnodes})")
    secret = read_secret(settings.node_key_file)
    path = model_store.resolve_model(settings.model, model_store.WEIGHT_PATTERNS)
    model, _ = served_model(path, model_store.served_name(settings.model), settings.max_model_len, settings.task)
    hello = NodeHello(settings.node_rank, settings.nnodes, secrets.token_hex(16), _files_fingerprint(model), path)
    return Node(hello, settings.master_addr, settings.master_port, secret)


def _files_fingerprint(model: common_pb2.ModelInfo) -> str:
    """The same on all hosts that have the same files of a model."""
    return f"{model.fingerprint} {model.weights_fingerprint}"


def new_host_memory(settings: EngineSettings, pooling: PoolingModel | None = None) -> HostMemory | None:
    """Memory for blocks that the KV cache evicts, if the settings ask for it. Raises StartupError if blocks are of no use later."""
    if settings.kv_role == "decode" and not settings.kv_peer_addresses:
        raise StartupError("kv_role decode needs kv_peer_addresses")
    if not (num_bytes := settings.host_memory_bytes):
        if settings.kv_offloading_dir is not None:
            raise StartupError("kv_offloading_dir needs kv_offloading_memory, through which its blocks pass")
        return None
    if settings.simulate is not None or pooling is not None or not settings.enable_prefix_caching:
        raise StartupError("kv_offloading_memory and kv_role need a model that generates text, and enable_prefix_caching")
    return HostMemory.create(num_bytes)


def new_tier(memory: HostMemory | None, loaded: ExecutorInfo) -> HostTier | None:
    """The second tier of the prefix cache in this memory. Raises StartupError if it holds no block."""
    if memory is None:
        return None
    if loaded.num_states:
        raise StartupError("kv_offloading_memory and kv_role are not supported for models with recurrent layers")
    if loaded.num_cross_slots:
        raise StartupError("kv_offloading_memory and kv_role are not supported for encoder-decoder models")
    tier = HostTier(memory, loaded.block_bytes)
    if not tier.num_slots:
        raise StartupError(f"kv_offloading_memory ({memory.num_bytes} bytes) holds no block of {sum(loaded.block_bytes)} bytes")
    log.info("%d tokens of evicted prefixes are kept in the host's memory", tier.num_slots * loaded.block_size)
    return tier


def new_disk_tier(settings: EngineSettings, layout: str, tier: HostTier) -> DiskTier | None:
    """The third tier of the prefix cache, if the settings ask for it. Raises StartupError if its directory cannot be used.

    Args:
        layout: see `kv_layout`.
    """
    if settings.kv_offloading_dir is None:
        return None
    try:
        return DiskTier(settings.kv_offloading_dir, settings.kv_offloading_dir_size, layout, tier)
    except OSError as error:
        raise StartupError(f"kv_offloading_dir: {settings.kv_offloading_dir}: {error.strerror}") from error


def kv_layout(model: common_pb2.ModelInfo, loaded: ExecutorInfo) -> str:
    """What the bytes of a block depend on: equal for engines that can use each other's."""
    parts = (
        model.fingerprint,
        model.weights_fingerprint,
        model.quantization,
        loaded.kv_layout,
        loaded.block_size,
        loaded.block_bytes,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def make_scheduler(
    settings: EngineSettings,
    loaded: ExecutorInfo,
    max_model_len: int,
    tier: HostTier | None = None,
    *,
    generates: bool = True,
) -> Scheduler:
    """The scheduler for a loaded model. Steps are limited by time, and draft tokens weighed, if the executor has measured costs."""
    pacer = None if loaded.costs is None else StepPacer(loaded.costs, settings.max_step_ms / 1e3 or math.inf)
    takes_drafts = settings.prompt_lookup and loaded.takes_drafts and not schedules_ahead(settings, loaded)
    return Scheduler(
        KVCacheManager(
            loaded.num_blocks,
            loaded.block_size,
            settings.enable_prefix_caching and generates,
            tier,
            offers_prompts=settings.kv_role == "prefill",
            groups=_layer_groups(loaded, num_steps=2 if schedules_ahead(settings, loaded) else 1),
        ),
        max_num_seqs=min(settings.max_num_seqs, loaded.num_states or loaded.num_cross_slots or settings.max_num_seqs),
        max_num_batched_tokens=loaded.max_num_batched_tokens,
        max_waiting=settings.max_waiting,
        max_model_len=max_model_len,
        max_embeddings=settings.embedding_cache_memory // loaded.embedding_bytes,
        can_chunk=loaded.can_chunk,
        pacer=pacer,
        drafter=PromptLookupDrafter(pacer) if pacer is not None and takes_drafts else None,
    )


def _layer_groups(loaded: ExecutorInfo, num_steps: int) -> LayerGroups | None:
    """The caches of layers that do not keep keys and values of all tokens; None for a model without them.

    Args:
        num_steps: that may be in flight.
    """
    if not (loaded.num_states or loaded.num_window_blocks or loaded.num_cross_slots):
        return None
    windows = None
    if loaded.num_window_blocks:
        step_tokens = num_steps * loaded.max_num_batched_tokens
        windows = WindowCache(loaded.num_window_blocks, loaded.block_size, loaded.window, step_tokens)
    states = StateCache(loaded.num_states, loaded.block_size) if loaded.num_states else None
    return LayerGroups(windows, states, CrossCache(loaded.num_cross_slots) if loaded.num_cross_slots else None)


def schedules_ahead(settings: EngineSettings, loaded: ExecutorInfo) -> bool:
    """Whether a step is scheduled while the one before it runs. By default, wherever this process does not compute it."""
    return loaded.is_asynchronous if settings.async_scheduling is None else settings.async_scheduling


def fitting_context(max_model_len: int, capacity: int, *, is_explicit: bool) -> int:
    """The longest sequence, in tokens, lowered to what the KV cache holds (`capacity`).

    Raises:
        StartupError: it would have to be lowered, but the user asked for it.
    """
    if max_model_len <= capacity:
        return max_model_len
    if is_explicit:
        raise StartupError(
            f"max_model_len {max_model_len} does not fit: the KV cache holds {capacity} tokens; lower max_model_len to that, "
            "or raise kv_cache_memory"
        )
    log.warning(
        "the model's context of %d tokens does not fit: the KV cache holds %d tokens, which max_model_len is lowered to; raise "
        "kv_cache_memory for longer sequences",
        max_model_len,
        capacity,
    )
    return capacity
