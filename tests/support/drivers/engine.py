"""Runs requests through the real scheduler and the real runner, without threads or gRPC.

With $TRIPTYCH_TEST_EXECUTOR=mp, steps are computed by a worker process, as `make test-mp` does it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from triptych_engine.core import EngineCore
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.executor.worker import WorkerConfig
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.media.item import Embeddings
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.place import Place
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.cache.window_cache import WindowCache
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request, TokenLogprobs
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.speculation.drafter import Drafter

from support.builders.engine import layer_groups

#: Whether the steps of requests are computed by another process, which has a model of its own. `EngineDriver.runner` then computes
#: only what a test asks of it.
IN_A_WORKER = os.environ.get("TRIPTYCH_TEST_EXECUTOR") == "mp"
in_this_process = pytest.mark.skipif(IN_A_WORKER, reason="it changes or reads what the runner does")


class _Loaded(InProcessExecutor):
    """Has its runner already."""

    def load(self) -> ExecutorInfo:
        assert isinstance(self.runner, ModelRunner)
        return ExecutorInfo(self.runner.vocab_size, self.runner.num_blocks, 16, self.runner.media_traits, 2048, 1, None)


def _executor_of_worker(config: RunnerConfig, num_blocks: int, verdicts: Verdicts, place: Place) -> InProcessExecutor:
    runner = build_runner(config, verdicts=verdicts)
    runner.num_blocks = num_blocks
    runner.allocate_cache()
    return _Loaded(config, runner)


@dataclass
class Generated:
    """All output for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: SequenceOutput | None = None


class EngineDriver:
    """A loaded runner that several schedulers can use one after the other."""

    def __init__(
        self,
        path: Path,
        *,
        max_model_len: int = 256,
        max_num_seqs: int = 32,
        block_size: int = 16,
        num_blocks: int = 128,
        dtype: torch.dtype | None = torch.float32,
        attention: str = "auto",
        device: str = os.environ.get("TRIPTYCH_ENGINE_DEVICE", "cpu"),
        quantization: str = "none",
        batch_invariant: bool = False,
        lora_dir: Path | None = None,
        host_memory: HostMemory | None = None,
    ) -> None:
        self.config = RunnerConfig(
            path, "test", max_model_len, max_num_seqs, 2048, block_size, 1 << 30, dtype=dtype, attention=attention,
            device=torch.device(device), quantization=quantization, batch_invariant=batch_invariant,
            lora_dir=lora_dir, host_memory=host_memory,
        )  # fmt: skip
        self.runner = build_runner(self.config)
        self.num_blocks, self.cache_size, self._window = num_blocks, self.runner.size, self.runner.window
        self.runner.num_blocks = num_blocks
        self.runner.allocate_cache()
        self.executor = self._in_a_worker() if IN_A_WORKER else InProcessExecutor(self.config, self.runner)

    def _in_a_worker(self) -> MultiprocExecutor:
        memory = self.config.host_memory
        descriptors = () if memory is None else (memory.descriptor,)
        make = partial(_executor_of_worker, self.config, self.num_blocks)
        executor = MultiprocExecutor(WorkerConfig(make, descriptors=descriptors))
        weakref.finalize(self, executor.close)
        executor.load()
        return executor

    def scheduler(
        self,
        *,
        max_num_batched_tokens: int = 2048,
        num_blocks: int | None = None,
        num_states: int | None = None,
        num_window_blocks: int | None = None,
        num_cross_slots: int | None = None,
        max_embeddings: int = 0,
        caching: bool = True,
        drafter: Drafter | None = None,
        tier: HostTier | None = None,
    ) -> Scheduler:
        size, most = self.config.block_size, max_num_batched_tokens
        num_window_blocks = num_window_blocks or self.cache_size.num_window_blocks
        windows = WindowCache(num_window_blocks, size, self._window, 2 * most) if num_window_blocks else None
        return Scheduler(
            KVCacheManager(
                num_blocks or self.num_blocks,
                size,
                caching,
                tier,
                groups=layer_groups(
                    windows,
                    self.cache_size.num_states if num_states is None else num_states,
                    size,
                    self.cache_size.num_cross_slots if num_cross_slots is None else num_cross_slots,
                ),
            ),
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=10_000,
            max_model_len=self.config.max_model_len,
            max_embeddings=max_embeddings,
            drafter=drafter,
        )

    def run(
        self,
        scheduler: Scheduler,
        requests: Sequence[Request],
        *,
        arrivals: Sequence[int] | None = None,
        async_scheduling: bool = False,
        embeddings: Mapping[bytes, Embeddings] | None = None,
    ) -> dict[str, Generated]:
        """Run all requests to their ends.

        Args:
            embeddings: key of a media item -> what its encoder would send.
            arrivals: the step at which each request arrives; None means that all arrive at the first step.
            async_scheduling: launch a step before the previous step has finished, as the step loop does.
        """
        outputs: list[SequenceOutput] = []
        core = EngineCore(
            scheduler, self.executor, lambda step, some, load: outputs.extend(some), async_scheduling=async_scheduling
        )
        generated = {request.request_id: Generated() for request in requests}
        pending = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True), reverse=True)
        step = 0
        while pending or scheduler.has_work or scheduler.num_waiting or core.num_in_flight:
            while pending and pending[-1][0] <= step:
                scheduler.add(requests[pending.pop()[1]])
            if embeddings is not None:
                for order in scheduler.take_fetches()[0]:
                    scheduler.arrive(order.number, embeddings[order.key])
            core.step()
            while outputs:
                output = outputs.pop(0)
                entry = generated[output.request_id]
                entry.token_ids += output.token_ids
                entry.logprobs += output.logprobs
                entry.prompt_logprobs += output.prompt_logprobs
                entry.last = output
            scheduler.check_integrity()
            step += 1
        return generated


def transformers_greedy(path: Path, prompts: Sequence[list[int]], max_tokens: int, eos_token_id: int | None) -> list[list[int]]:
    """The output of transformers' own `generate` for each prompt, one at a time, in float32."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = eos_token_id
    outputs = []
    for prompt in prompts:
        config = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, eos_token_id=eos_token_id, pad_token_id=0)
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def assert_greedy(
    path: Path, prompts: Sequence[list[int]], texts: Sequence[list[int]], max_tokens: int, eos_token_id: int | None
) -> list[torch.Tensor]:
    """Check that each text is the one of `transformers_greedy`, with one forward pass over it instead of one for each token.

    Returns:
        transformers' logits of each text: [tokens, vocabulary].
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    all_logits = []
    for prompt, text in zip(prompts, texts, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + text]), logits_to_keep=len(text) + 1).logits[0, :-1]
        assert text == logits.argmax(-1).tolist()
        assert eos_token_id not in text[:-1]
        assert len(text) == max_tokens or text[-1] == eos_token_id
        all_logits.append(logits)
    return all_logits
