"""Runs the scheduler's steps of an encoder: texts are computed whole, in the step in which they arrive, without a KV cache."""

from __future__ import annotations

import logging
import time

import numpy as np
import torch

from triptych_engine.media.item import TEXT_ONLY
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.launched_step import LaunchedStep, ModelOutput
from triptych_engine.runner.pooling.encoder_model import EncoderModel, encoder_batch
from triptych_engine.runner.pooling.pooler import PooledBatch, Pooler
from triptych_engine.runner.transfer import check_device, end_of_work
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import PoolingParams, SamplingParams

log = logging.getLogger(__name__)
#: Tokens of the texts that are computed at once. More of them do not fit into a CPU's caches.
_CHUNK_TOKENS = 1024
_NOTHING = SamplingParams(max_tokens=0)


class EncoderRunner:
    """An encoder on a device. Not thread-safe."""

    media_traits = TEXT_ONLY
    embedding_bytes = 1

    def __init__(self, config: RunnerConfig, model: EncoderModel, pooler: Pooler) -> None:
        self.config = config
        self._model, self._pooler = model, pooler
        #: A text holds one block, which is as long as the context, while it waits for its step.
        self.num_blocks, self.block_size = config.max_num_seqs, config.max_model_len
        self._chunk_tokens = _CHUNK_TOKENS if config.device.type == "cpu" else config.max_num_batched_tokens

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @torch.inference_mode()
    def forward(self, scheduled: SchedulerOutput) -> ModelOutput:
        """Launch the computation of the step's texts."""
        texts = sorted((one for one in scheduled.new if one.request_id in scheduled.num_scheduled_tokens), key=_length)
        output, first = ModelOutput(), 0
        while first < len(texts):
            end, num_tokens = first, 0
            while end < len(texts) and (end == first or num_tokens + _length(texts[end]) <= self._chunk_tokens):
                num_tokens += _length(texts[end])
                end += 1
            output.pooled.update(self._compute(texts[first:end]))
            first = end
        output.wait = end_of_work(self.config.device)
        return output

    def sample(self, output: ModelOutput) -> LaunchedStep:
        """The step's results; nothing is sampled."""
        return LaunchedStep(output.errors, pooled=output.pooled, wait=output.wait)

    def warm_up(self) -> None:
        """Compute the largest step once, so that the first requests find memory and threads ready."""
        config, started = self.config, time.monotonic()
        length = min(config.max_model_len, config.max_num_batched_tokens)
        count = min(config.max_num_seqs, config.max_num_batched_tokens // length)
        new = [NewSequence(f"warm-up-{i}", [0] * length, length, 0, [i], _NOTHING, pooling=PoolingParams()) for i in range(count)]
        self.sample(self.forward(SchedulerOutput(new=new, num_scheduled_tokens={one.request_id: length for one in new}))).result()
        log.info("warmed up in %.1f s", time.monotonic() - started)

    def check_device(self) -> None:
        """Raise RuntimeError if the device can no longer compute."""
        check_device(self.config.device)

    def allocate_cache(self) -> None:
        """There is no cache."""

    def free_cache(self) -> None:
        """There is no cache."""

    def _compute(self, texts: list[NewSequence]) -> dict[str, torch.Tensor]:
        lengths = np.array([_length(one) for one in texts])
        token_ids = np.concatenate([np.array(one.token_ids) for one in texts])
        params = [one.pooling or PoolingParams() for one in texts]
        second_texts = np.array([one.second_text_start for one in params])
        hidden = self._model.hidden(encoder_batch(token_ids, lengths, second_texts, self.config.device))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ids, whole = [one.request_id for one in texts], np.ones(len(texts), bool)
        return self._pooler.pool(hidden, PooledBatch(ids, params, starts, np.zeros(len(texts), np.int64), whole))


def _length(sequence: NewSequence) -> int:
    return len(sequence.token_ids)
