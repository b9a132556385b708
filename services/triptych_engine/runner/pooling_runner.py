"""Runs the scheduler's steps of a decoder whose hidden states are pooled: prompts in chunks, over the KV cache."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.input_batch import StepInputs
from triptych_engine.runner.launched_step import ModelOutput
from triptych_engine.runner.media_inputs import PlacedSlice
from triptych_engine.runner.model_runner import ModelRunner, RunnerParts
from triptych_engine.runner.pooling.pooler import PooledBatch, Pooler
from triptych_engine.runner.transfer import end_of_work
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.request import PoolingParams


class PoolingRunner(ModelRunner):
    """A runner whose sequences are all pooled. Not thread-safe."""

    def __init__(self, parts: RunnerParts, pooler: Pooler) -> None:
        super().__init__(parts)
        self._pooler = pooler
        self._pooling: dict[str, PoolingParams] = {}  # request_id -> parameters

    @torch.inference_mode()
    def forward(self, scheduled: SchedulerOutput) -> ModelOutput:
        """Launch the forward pass of the scheduled tokens, and the pooling of prompts that end with them."""
        self._set_threads(scheduled.awaits_embeddings)
        self._update_states(scheduled)
        if not scheduled.num_scheduled_tokens:
            return ModelOutput()
        inputs = self._batch.gather(scheduled)
        hidden = self._hidden(inputs, self._place(inputs, scheduled) if scheduled.embeddings else [])
        starts = inputs.metadata.query_start_loc.astype(np.int64)
        params = [self._pooling.get(request_id, PoolingParams()) for request_id in inputs.request_ids]
        batch = PooledBatch(inputs.request_ids, params, starts, inputs.positions[starts[:-1]], inputs.samples)
        pooled = self._pooler.pool(hidden, batch)
        self._batch.advance(inputs)
        return ModelOutput(inputs, pooled=pooled, errors=self._errors, wait=end_of_work(self.config.device))

    def _hidden(self, inputs: StepInputs, slices: list[PlacedSlice]) -> torch.Tensor:
        """[num_tokens, hidden_size] of the step, whose tokens at `slices` are media."""
        self._backend.begin(inputs.metadata)
        positions = inputs.positions if inputs.axis_positions is None else inputs.axis_positions
        token_ids, position_ids = self._transfer(inputs.token_ids, positions)
        if self._media is None or not slices:
            with self._states.computing(inputs):
                return self._model.hidden(token_ids, position_ids, self._backend)
        with self._media.adding(slices), self._states.computing(inputs):
            return self._model.hidden(token_ids, position_ids, self._backend, self._media.embed(token_ids, slices))

    def _update_states(self, scheduled: SchedulerOutput) -> None:
        super()._update_states(scheduled)
        for request_id in scheduled.dropped:
            self._pooler.drop(request_id)
            self._pooling.pop(request_id, None)
        self._pooling.update({one.request_id: one.pooling for one in scheduled.new if one.pooling is not None})
