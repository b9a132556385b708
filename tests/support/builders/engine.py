"""Builders for engine tests: requests, schedulers, tiny checkpoints. Everything that a test does not set has a default."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig
from triptych.v1 import common_pb2, engine_pb2
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.media.item import Bidirectional, MediaTraits, Modality
from triptych_engine.rpc.convert_media import to_prompt_media
from triptych_engine.scheduling.cache.cross_cache import CrossCache
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.cache.layer_groups import LayerGroups
from triptych_engine.scheduling.cache.state_cache import StateCache
from triptych_engine.scheduling.cache.window_cache import WindowCache
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.request import Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def a_request(request_id: str = "r", prompt: list[int] | None = None, **sampling: Any) -> Request:
    """A greedy request of eight tokens; keyword arguments change its sampling."""
    return Request(request_id, [1, 2, 3] if prompt is None else prompt, replace(GREEDY, **sampling))


#: Placeholder token for images in prompts of `a_media_request`.
PLACEHOLDER = 49


def traits(bidirectional: Bidirectional = Bidirectional.NONE, **more: Any) -> MediaTraits:
    """Traits of a model that takes images."""
    return MediaTraits({Modality.IMAGE: frozenset({PLACEHOLDER})}, hidden_size=1, bidirectional=bidirectional, **more)


def a_media_message(
    request_id: str, parts: Sequence[int | tuple[bytes, Sequence[int]]], address: str = "encoder:1"
) -> engine_pb2.EngineRequest:
    """A prompt of tokens and items. Each item has a name and the lengths of its runs; one token separates two runs."""
    prompt: list[int] = []
    message = engine_pb2.EngineRequest(request_id=request_id)
    for part in parts:
        if isinstance(part, int):
            prompt.append(part)
            continue
        name, lengths = part
        for number, length in enumerate(lengths):
            prompt += [3] if number else []
            message.placeholders.add(offset=len(prompt), length=length, media_index=len(message.media))
            prompt += [PLACEHOLDER] * length
        message.media.add(modality=common_pb2.MODALITY_IMAGE, key=name.ljust(32, b"."), encoder_instance_id=address)
    message.prompt_token_ids.extend(prompt)
    return message


def a_media_request(
    request_id: str,
    parts: Sequence[int | tuple[bytes, Sequence[int]]],
    bidirectional: Bidirectional = Bidirectional.NONE,
    address: str = "encoder:1",
    **sampling: Any,
) -> Request:
    """A greedy request of eight tokens about images; see `a_media_message`."""
    message = a_media_message(request_id, parts, address)
    request = a_request(request_id, list(message.prompt_token_ids), **sampling)
    request.media = to_prompt_media(message, request.prompt_token_ids, traits(bidirectional))
    return request


def layer_groups(windows: WindowCache | None, num_states: int, block_size: int, num_cross_slots: int = 0) -> LayerGroups | None:
    """The caches of layers that keep something else than keys and values of all tokens."""
    states = StateCache(num_states, block_size) if num_states else None
    cross = CrossCache(num_cross_slots) if num_cross_slots else None
    return None if windows is None and states is None and cross is None else LayerGroups(windows, states, cross)


class FixedDrafter:
    """Proposes so many tokens for each request. Which of them are right is decided by the fake executor."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts

    def begin_step(self, num_decoding: int, *, had_prompts: bool, encoding: bool) -> bool:
        return True

    def propose(self, request: Request, most: int) -> list[int]:
        return [0] * min(self._num_drafts, most)

    def observe(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_draft_tokens


def a_scheduler(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    max_waiting: int = 1000,
    max_model_len: int = 256,
    num_drafts: int = 0,
    max_embeddings: int = 1000,
    enable_prefix_caching: bool = True,
    pacer: StepPacer | None = None,
    tier: HostTier | None = None,
    offers_prompts: bool = False,
    num_states: int = 0,
    num_window_blocks: int = 0,
    window: int = 8,
    num_steps: int = 1,
) -> Scheduler:
    """num_steps: how many may be in flight."""
    most = num_steps * max_num_batched_tokens
    windows = WindowCache(num_window_blocks, block_size, window, most, 1) if num_window_blocks else None
    return Scheduler(
        KVCacheManager(
            num_blocks,
            block_size,
            enable_prefix_caching,
            tier,
            offers_prompts=offers_prompts,
            groups=layer_groups(windows, num_states, block_size),
        ),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_waiting=max_waiting,
        max_model_len=max_model_len,
        max_embeddings=max_embeddings,
        pacer=pacer,
        drafter=FixedDrafter(num_drafts) if num_drafts else None,
    )


def a_host_tier(num_slots: int, slot_bytes: int = 1 << 10) -> HostTier:
    """A tier with a multiple of four slots."""
    memory = HostMemory.create(num_slots * slot_bytes)
    tier = HostTier(memory, [slot_bytes])
    weakref.finalize(tier, memory.close)
    return tier


def a_tiny_llama_config(**overrides: Any) -> LlamaConfig:
    values: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**(values | overrides))


#: What families call their recurrent modules.
_RECURRENT = ("mamba", "linear_attn", "conv", "mixer")


def save_random_model(
    folder: Path, config: PretrainedConfig, auto: Any = AutoModelForCausalLM, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Path:
    """A checkpoint with random weights, large enough that greedy choices are not ties."""
    torch.manual_seed(seed)
    model = auto.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.15)
        elif name.endswith(("A_log", "dt_bias")):
            torch.nn.init.uniform_(parameter, -2, 1)
        elif any(part in _RECURRENT for part in name.split(".")):  # else a fault in a head's or a channel's would not be seen
            torch.nn.init.normal_(parameter, mean=float(name.endswith(("norm.weight", "D"))), std=0.3)
    model.to(dtype).save_pretrained(folder)
    return folder
