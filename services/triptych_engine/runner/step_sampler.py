"""Samples the sequences of a step, and verifies its draft tokens.

Draft tokens are verified round by round. The first round samples one token for each sequence, as in any step. A sequence whose
token is its first draft token goes on to the next round, with the logits behind that draft token, until a draft token was wrong
or none is left. So each token is chosen with the penalties, the constraint and the random number of its place, and the text is
the same as without draft tokens. A round costs what the sampling of these tokens would have cost in steps of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from triptych_common.constraints.cache import ConstraintCache

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.launched_step import LaunchedStep, StepSample
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.rules.token_rules import TokenRules
from triptych_engine.runner.sampling.sampler import Sampler
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.output import NewSequence, StepResult


class StepSampler:
    """What chooses the next tokens of rows of the batch.

    Args:
        batch: the sequences' tokens.
        kernels: CPU kernels; None if the device is not a CPU or they are not available.
        cache: compiled constraints.
        num_threads: threads that compute masks of constraints; None takes most cores.
    """

    def __init__(
        self,
        max_num_seqs: int,
        device: torch.device,
        batch: InputBatch,
        kernels: CpuKernels | None,
        cache: ConstraintCache,
        num_threads: int | None,
    ) -> None:
        self._batch = batch
        self._transfer = HostToDevice(device)
        self._sampler = Sampler(max_num_seqs, device, kernels)
        self._rules = TokenRules(max_num_seqs, batch, cache, num_threads)
        #: [rows] int64, the newest token of each row, on the device. The host may not know it yet.
        self.newest_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def add(self, row: int, sequence: NewSequence) -> None:
        """Add a sequence in a free row."""
        self._sampler.add(row, sequence.sampling, sequence.token_ids, sequence.num_prompt_tokens)
        self._rules.add(row, sequence.sampling)

    def remove(self, row: int) -> None:
        """Remove the sequence in a row."""
        self._sampler.remove(row)
        self._rules.remove(row)

    def launch(self, step: LaunchedStep, inputs: StepInputs, logits: torch.Tensor, draft_logits: torch.Tensor | None) -> None:
        """Launch the sampling of all sequences whose last token is in the step. Those whose rules need tokens that are not known
        yet are sampled later.

        Args:
            logits: [num_sampled, vocab_size] of the last tokens, in the order of the batch.
            draft_logits: [num_draft_tokens, vocab_size] of the draft tokens.
        """
        indices = np.flatnonzero(inputs.samples)
        if draft_logits is not None:
            step.verify = self._verification(inputs, draft_logits)
        waits = self._rules.must_wait(inputs.rows[indices])
        if not waits.any():
            step.samples.append(self._sampling_of(inputs, indices)(logits))
            return
        now, later = np.flatnonzero(~waits), np.flatnonzero(waits)
        lines, later_lines = self._transfer(now, later)
        if len(now):
            step.samples.append(self._sampling_of(inputs, indices[now])(logits[lines]))
        launch = self._sampling_of(inputs, indices[later])
        step.later = lambda: launch(logits[later_lines])

    def _sampling_of(self, inputs: StepInputs, indices: np.ndarray) -> Callable[[torch.Tensor], StepSample]:
        """What launches the sampling of sequences of the step, given their logits. It may be called later. The sequences expect
        their tokens from now on."""
        rows = inputs.rows[indices]
        positions = self._batch.num_tokens[rows] - self._batch.num_prompt_tokens[rows]
        request_ids = [inputs.request_ids[index] for index in indices.tolist()]
        expected = self._batch.expect_tokens(rows)

        @torch.inference_mode()
        def launch(logits: torch.Tensor) -> StepSample:
            pending = self._sampler.sample(logits, SamplingMetadata(rows, positions, self._rules.of_step(rows)))
            (on_device,) = self._transfer(rows)
            self.newest_tokens.index_copy_(0, on_device, pending.token_ids)
            return StepSample(request_ids, pending, self._batch, expected, self._rules)

        return launch

    def _verification(self, inputs: StepInputs, logits: torch.Tensor) -> Callable[[StepResult], None]:
        """What verifies the draft tokens of a step, given its result without them. logits: [num_draft_tokens, vocab_size]."""
        first_lines = np.cumsum(inputs.num_drafts) - inputs.num_drafts
        places = self._batch.places(inputs.rows)

        def verify(result: StepResult) -> None:
            indices = np.flatnonzero((inputs.num_drafts > 0) & self._batch.are_here(places))
            for number in itertools.count():
                is_right = [_is_right(inputs, index, number, result) for index in indices.tolist()]
                indices = indices[np.array(is_right, np.bool_)]
                if not len(indices):
                    return
                self._batch.accept_draft(inputs.rows[indices])
                (lines,) = self._transfer(first_lines[indices] + number)
                further = StepResult()
                self._sampling_of(inputs, indices)(logits[lines]).collect(further)
                # A sequence that cannot go on has got the tokens before. Its next step says why.
                is_good = np.array([_take_over(inputs.request_ids[index], further, result) for index in indices.tolist()], np.bool_)
                self._batch.take_back(inputs.rows[indices[~is_good]])
                indices = indices[is_good]

        return verify


def _is_right(inputs: StepInputs, index: int, number: int, result: StepResult) -> bool:
    """Whether the newest token of a sequence of the step is its draft token with this number, and may be followed by others."""
    request_id = inputs.request_ids[index]
    drafts = inputs.draft_token_ids[request_id]
    if number >= len(drafts) or request_id in result.errors or request_id in result.refusals or request_id in result.complete:
        return False
    return result.token_ids[request_id][-1] == drafts[number]


def _take_over(request_id: str, further: StepResult, result: StepResult) -> bool:
    """Add what a round brought for a sequence to the step's result. Returns False, and adds nothing, if it brought no token."""
    if request_id in further.errors or request_id in further.refusals:
        return False
    result.token_ids[request_id] += further.token_ids[request_id]
    if request_id in further.logprobs:
        result.logprobs[request_id] += further.logprobs[request_id]
    if request_id in further.complete:
        result.complete.add(request_id)
    return True
