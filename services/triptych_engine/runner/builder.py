"""Builds a complete runner: loads the model, optimises it, checks it against transformers, quantises it."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import replace
from pathlib import Path

import torch
from triptych.errors import StartupError
from triptych_common.host.memory import return_free_memory
from triptych_common.model.pooling import PoolingModel

from triptych_engine.runner.attention.paged import AttentionBackend
from triptych_engine.runner.backends import choose_backend, fused_kernels
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.cpu.latent_attention import latent_keeper
from triptych_engine.runner.cpu.linear.quantized_modules import CpuQuantizedModules
from triptych_engine.runner.cpu.quantize import quantize
from triptych_engine.runner.cuda.graphed_decode import Recorder
from triptych_engine.runner.encoder_runner import EncoderRunner
from triptych_engine.runner.fusion.decoder import find_decoder
from triptych_engine.runner.fusion.kernels import FusedKernels
from triptych_engine.runner.fusion.optimize import optimize
from triptych_engine.runner.fusion.parallel import ParallelKernels
from triptych_engine.runner.load_checks import (
    check_batch_invariance,
    check_cache,
    check_media,
    check_structure,
    invariance_tokens,
    num_probe_blocks,
)
from triptych_engine.runner.lora.enable import enable_lora
from triptych_engine.runner.media_inputs import MediaInputs
from triptych_engine.runner.memory import CacheBytes, CacheSize, known_size, measured_kv_cache_bytes
from triptych_engine.runner.model.loader import LoadedModel, load_model
from triptych_engine.runner.model.media_traits import media_traits
from triptych_engine.runner.model.parity import check_parity
from triptych_engine.runner.model.precision import check_quantization, kv_cache_dtype
from triptych_engine.runner.model_runner import ModelRunner, RunnerParts
from triptych_engine.runner.parallel.group import AgreedVerdicts, RankGroup, rank_group
from triptych_engine.runner.pooling.encoder_model import load_encoder
from triptych_engine.runner.pooling.heads import decoder_head
from triptych_engine.runner.pooling.optimize import optimize_encoder
from triptych_engine.runner.pooling.pooler import Pooler
from triptych_engine.runner.pooling_runner import PoolingRunner
from triptych_engine.runner.quantization.formats import ON_THE_FLY
from triptych_engine.runner.transfer import use_device
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import SamplingParams

log = logging.getLogger(__name__)
#: Rows of a step that decodes a few sequences.
_FEW_ROWS = 4


def build_runner(config: RunnerConfig, recorder: Recorder | None = None, verdicts: Verdicts | None = None) -> ModelRunner:
    """A runner with its model and its KV cache, checked against transformers.

    Args:
        recorder: records decode steps; by default a recorder of CUDA graphs on a GPU.
        verdicts: of the same configuration when it was built before in this process; what they hold is not checked again.

    Raises:
        StartupError: the KV cache is too small, or the model cannot be loaded.
        UnsupportedModelError: the model cannot be run correctly.
    """
    started = time.monotonic()
    use_device(config.device)
    group, verdicts = rank_group(config), verdicts or Verdicts()
    if group is not None:
        verdicts = AgreedVerdicts(verdicts, group)
    parts = _load(config, recorder, verdicts, group)
    runner = _runner(parts)
    verdicts.of("structure", lambda: check_structure(runner, parts))
    runner.allocate_cache()
    verdicts.of("cache", lambda: check_cache(runner, parts))
    refusal = verdicts.of("media", lambda: check_media(runner, parts))
    if refusal is not None:
        log.warning("media are refused: %s", refusal)
        runner = _runner(replace(parts, media=None, media_traits=refusal))
    if config.quantization != "none" or parts.model.is_quantized:
        _quantize(runner, parts, verdicts, group)
    if config.batch_invariant:
        verdicts.of(("batch invariance", invariance_tokens(runner)), lambda: check_batch_invariance(runner, parts.model.config))
    if config.lora_dir is not None:
        _enable_lora(runner, parts, config.lora_dir)
    parts.model.probe_logits = torch.empty(0)
    return_free_memory()  # what the checks took: 40 MB with the shape of a model of 1 B
    verdicts.of("passed", lambda: True)
    size = runner.size
    more = f"{size.num_window_blocks} of layers with a window, " if size.num_window_blocks else ""
    more += f"{size.num_states} recurrent states, " if size.num_states else ""
    more += f"{size.num_cross_slots} slots of encoder states, " if size.num_cross_slots else ""
    dtype = str(parts.cache_dtype).removeprefix("torch.")
    what = "%s loaded in %.1f s: %d KV blocks of %d tokens in %s, %s%s attention"
    log.info(
        what, config.model_name, time.monotonic() - started, runner.num_blocks, config.block_size, dtype, more, parts.backend.name
    )
    return runner


def build_encoder_runner(config: RunnerConfig, pooling: PoolingModel) -> EncoderRunner:
    """A runner for a model whose tokens attend to all tokens of their text. It has no KV cache. Raises like `build_runner`."""
    started = time.monotonic()
    use_device(config.device)
    model = load_encoder(config, pooling)
    optimize_encoder(model, config.device)
    log.info("%s loaded in %.1f s%s", config.model_name, time.monotonic() - started, "" if model.is_flat else ", by equal lengths")
    return EncoderRunner(config, model, Pooler(pooling, model.head))


def _runner(parts: RunnerParts) -> ModelRunner:
    return ModelRunner(parts) if parts.pooler is None else PoolingRunner(parts, parts.pooler)


def _load(config: RunnerConfig, recorder: Recorder | None, verdicts: Verdicts, group: RankGroup | None) -> RunnerParts:
    kernels = load_kernels() if config.device.type == "cpu" and config.attention != "torch" else None
    if group is not None:
        kernels = _agreed_kernels(config, kernels, group)
    form = ON_THE_FLY.get(config.quantization)
    if form is not None:
        check_quantization(config.quantization, config.device, config.dtype, kernels is not None)
    model = load_model(
        config.model_path,
        config.model_name,
        dtype=config.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
        generates=config.pooling is None,
        verdicts=verdicts,
        group=group,
        quantized_modules=None if kernels is None else CpuQuantizedModules(kernels, batch_invariant=config.batch_invariant),
        # Adapters may change the weights that attentions with latents absorb.
        keep_latents=None
        if config.device.type != "cpu" or config.lora_dir is not None
        else latent_keeper(kernels, batch_invariant=config.batch_invariant),
    )
    if form is not None and model.is_quantized:
        why = "its weights are quantised already"
        raise StartupError(f"{config.model_name} cannot be served with --quantization {config.quantization}: {why}")
    trial = _trial(config, model)
    fused = fused_kernels(config, kernels)
    if group is not None:
        fused = (
            ParallelKernels(fused, group.memory) if group.agree(fused is not None, "fused kernels") and fused is not None else None
        )
    if fused is not None:
        optimize(model.model, fused, *trial, verdicts=verdicts)
        model.decoder = find_decoder(model.model, fused, *trial, verdicts=verdicts)
    if model.recurrent is not None and kernels is not None:
        model.recurrent.ops = kernels.new_recurrent_ops()
    gc.collect()
    traits = media_traits(model.model, model.config, model.num_position_axes, 0 if model.cross is None else model.cross.num_states)
    pooling = config.pooling
    pooler = None if pooling is None else Pooler(pooling, decoder_head(config.model_path, pooling, model.device))
    cache_dtype = kv_cache_dtype(
        config.kv_cache_dtype,
        model.checkpoint_dtype,
        model.dtype,
        is_own_choice=config.dtype is None,
        is_quantized=model.is_quantized,
    )
    of_model = config.block_size, model.dtype, kernels
    backend = choose_backend(config.attention, config.device, model.layers, *of_model, cache_dtype=cache_dtype)
    if (cross := model.cross) is not None:
        cross.backend = choose_backend(config.attention, config.device, cross.shapes, *of_model, cache_dtype=cache_dtype)
    return RunnerParts(
        config=config,
        model=model,
        backend=backend,
        kernels=kernels,
        cache_dtype=cache_dtype,
        size=_cache_size(config, model, backend, cache_dtype, verdicts),
        media=MediaInputs.of(model.model, traits, model.num_position_axes),
        media_traits=traits,
        recorder=recorder,
        pooler=pooler,
        agree=(lambda number: number) if group is None else group.agree,
    )


def _agreed_kernels(config: RunnerConfig, kernels: CpuKernels | None, group: RankGroup) -> CpuKernels | None:
    """The kernels if all ranks have them; then they exchange tensors through memory, where they can."""
    if not group.agree(kernels is not None, "kernels") or kernels is None:
        return None
    can_share = group.agree(config.place.shared_memory >= 0, "shared memory")
    if can_share and group.memory is None:
        group.memory = kernels.ranks.open(config.place.shared_memory, group.rank, group.size)
    return kernels


def _trial(config: RunnerConfig, model: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and position ids of a short sequence whose positions are spread over the context."""
    probe = model.probe_token_ids
    spread = torch.linspace(0, config.max_model_len - 1, len(probe), dtype=torch.float64).long()
    return probe, model.position_ids(spread.to(probe.device))


def _cache_size(
    config: RunnerConfig, model: LoadedModel, backend: AttentionBackend, cache_dtype: torch.dtype, verdicts: Verdicts
) -> CacheSize:
    """How much of the cache fits in the configured memory. Ranks agree on each number, because theirs may differ.

    Raises:
        StartupError: the checks at start need more.
    """
    parts = _cache_bytes(config, model, backend, cache_dtype)
    size = _cache_memory(config, parts)
    if not verdicts.of(("cache", "is divided"), lambda: parts.divide(config, size).num_window_blocks > 0) and parts.window_block:
        parts = parts.joined()
        size = _cache_memory(config, parts)
    own = parts.divide(config, size)
    lacks = (parts.state and not own.num_states) or (parts.cross and not own.num_cross_slots)
    if own.num_blocks < num_probe_blocks(config) or lacks:
        what = (
            "a KV cache of" if config.kv_cache_bytes is not None else "too little memory is left beside the weights: a KV cache of"
        )
        raise StartupError(
            f"{what} {size} bytes holds {own.num_blocks} blocks of {parts.block} bytes"
            + (f" and {own.num_states} recurrent states of {parts.state}" if parts.state else "")
            + (f" and {own.num_cross_slots} slots of {parts.cross} for encoder states" if parts.cross else "")
            + f"; at least {num_probe_blocks(config)}{' and 1' if parts.state or parts.cross else ''} are needed "
            "(--kv-cache-memory)"
        )
    return known_size(own, verdicts)


def _cache_memory(config: RunnerConfig, parts: CacheBytes) -> int:
    return measured_kv_cache_bytes(config, parts.most(config)) if config.kv_cache_bytes is None else config.kv_cache_bytes


def _cache_bytes(config: RunnerConfig, model: LoadedModel, backend: AttentionBackend, cache_dtype: torch.dtype) -> CacheBytes:
    """What the parts of the cache take. Layers with a window have blocks of their own where that saves memory, on CPUs; but not if
    blocks are copied, which are those of all layers."""
    sizes = {index: config.block_size * shape.bytes_per_token(cache_dtype) for index, shape in model.layers.items()}
    windows = {index: shape.window for index, shape in model.layers.items() if shape.window}
    state = 0 if model.recurrent is None else model.recurrent.state_bytes
    cross = 0 if model.cross is None else model.cross.slot_bytes(cache_dtype, config.block_size)
    window = max(windows.values(), default=config.max_model_len)
    is_mixed = len(windows) < len(sizes) and window < config.max_model_len
    if not is_mixed or not isinstance(backend, CpuAttention) or config.host_memory is not None:
        return CacheBytes(sum(sizes.values()), state, cross=cross)
    window_block = sum(sizes[index] for index in windows)
    return CacheBytes(sum(sizes.values()) - window_block, state, window_block, window, cross)


def _enable_lora(runner: ModelRunner, parts: RunnerParts, folder: Path) -> None:
    config, model = parts.config, parts.model
    if config.pooling is not None or model.cross is not None:  # one of several models of a `triptych serve`
        why = "generates no text" if model.cross is None else "is an encoder-decoder model"
        log.warning("lora_dir: %s takes no adapters, because it %s", config.model_name, why)
        return
    if not folder.is_dir():
        raise StartupError(f"lora_dir: there is no directory {folder}")
    probe = model.probe_token_ids.tolist()
    blocks = list(range(-(-len(probe) // config.block_size)))
    sequence = NewSequence("probe", probe, len(probe), 0, blocks, SamplingParams(max_tokens=1, temperature=0.0))

    def step() -> None:
        runner.execute(SchedulerOutput(new=[sequence], num_scheduled_tokens={"probe": len(probe)}))
        runner.execute(SchedulerOutput(dropped=["probe"]))

    uses_kernels = isinstance(parts.backend, CpuAttention)
    runner.loras = enable_lora(model.model, step, len(probe), folder, config.max_loras, uses_kernels=uses_kernels)


def _quantize(runner: ModelRunner, parts: RunnerParts, verdicts: Verdicts, group: RankGroup | None) -> None:
    """Let a model that has passed the checks compute with integers, and check how much its logits change."""
    model, quantization = parts.model, parts.config.quantization
    token_ids, position_ids = _trial(parts.config, model)
    done = quantize(model.model, token_ids, position_ids, verdicts)
    fused: FusedKernels = CpuFusedKernels(parts.kernels)  # quantised models are for CPUs
    if group is not None:
        fused = ParallelKernels(fused, group.memory)
    model.decoder = find_decoder(model.model, fused, token_ids, position_ids, "quantised decoder", verdicts)
    if not done.num_layers and not model.is_quantized:
        raise StartupError(f"--quantization {quantization} supports no layer of this model")
    gc.collect()
    name = "checkpoint" if model.is_quantized else quantization
    if model.is_quantized:
        log.info("%d quantised linear layers: %.0f MB", done.num_layers, done.bytes_after / 1e6)
    else:
        log.info("quantised %d linear layers to %s: %.0f MB instead of %.0f", done.num_layers, name, done.bytes_after / 1e6,
                 done.bytes_before / 1e6)  # fmt: skip

    def check() -> None:
        for rows in (-(-len(token_ids) // 2), _FEW_ROWS):  # they may be multiplied in different ways
            logits = runner.prompt_logits(token_ids.tolist(), num_chunks=-(-len(token_ids) // rows))
            check_parity(model, logits, parts.config.model_name, quantization=name)

    verdicts.of("quantization", check)
