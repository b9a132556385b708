"""A step that was launched on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from triptych_engine.runner.input_batch import ExpectedTokens, InputBatch, StepInputs
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.rules.token_rules import TokenRules
from triptych_engine.runner.sampling.sampler import PendingSample
from triptych_engine.scheduling.output import StepResult


@dataclass(slots=True)
class ModelOutput:
    """The result of a step's forward pass; empty if there was nothing to compute."""

    inputs: StepInputs | None = None
    #: [n, vocab_size] of the last token of each sequence that samples and, with `prompt_lines`, of prompt tokens.
    logits: torch.Tensor | None = None
    #: [num_draft_tokens, vocab_size] of the draft tokens, in the order of the batch; None if there are none.
    draft_logits: torch.Tensor | None = None
    #: For each line of the logits, the flat index of its token [n] and the index of its sequence in the batch [n]; None if all are
    #: last tokens.
    prompt_lines: tuple[np.ndarray, np.ndarray] | None = None
    #: request_id -> what was pooled, on the device, of prompts that end with this step.
    pooled: dict[str, torch.Tensor] = field(default_factory=dict)
    #: request_id -> why it cannot be computed.
    errors: dict[str, str] = field(default_factory=dict)
    #: Waits for the end of the forward pass. A step with only prompt chunks has no other result to wait for.
    wait: Callable[[], None] | None = None


@dataclass(slots=True)
class LaunchedStep:
    """The pending results of a step; empty if there was nothing to compute."""

    #: request_id -> why it cannot be computed.
    errors: dict[str, str] = field(default_factory=dict)
    prompt_logprobs: dict[str, PendingLogprobs] = field(default_factory=dict)
    #: As in ModelOutput.
    pooled: dict[str, torch.Tensor] = field(default_factory=dict)
    samples: list[StepSample] = field(default_factory=list)
    #: Samples the sequences whose rules need the tokens of the step before; None if there are none (left).
    later: Callable[[], StepSample] | None = None
    #: Verifies the draft tokens, given the result without them; None if there are none.
    verify: Callable[[StepResult], None] | None = None
    #: As in ModelOutput.
    wait: Callable[[], None] | None = None

    #: Raised by `result`.
    failure: Exception | None = None

    def sample_rest(self) -> None:
        """Launch the sampling that had to wait. Called when the results of the steps before are known."""
        if self.later is None:
            return
        later, self.later = self.later, None
        try:
            self.samples.append(later())
        except Exception as error:  # of this step, not of the one whose result is being taken
            self.failure = error

    def result(self) -> StepResult:
        """Wait for the step and return its result. Must be called once per step, in launch order."""
        self.sample_rest()
        if self.failure is not None:
            raise self.failure
        if self.wait is not None:
            self.wait()
        result = StepResult(prompt_logprobs={key: pending.entries() for key, pending in self.prompt_logprobs.items()})
        result.pooled = {request_id: tensor.cpu().numpy() for request_id, tensor in self.pooled.items()}
        for sample in self.samples:
            sample.collect(result)
        if self.verify is not None:
            self.verify(result)
        result.errors.update(self.errors)
        return result


@dataclass(frozen=True, slots=True)
class StepSample:
    """The tokens that a step samples, and their places in the batch."""

    request_ids: list[str]
    pending: PendingSample
    batch: InputBatch
    places: ExpectedTokens
    rules: TokenRules

    def collect(self, result: StepResult) -> None:
        """Wait for the tokens and store them in the result and in the batch."""
        sampled = self.pending.result()
        is_here = self.batch.learn_tokens(self.places, sampled.token_ids)
        request_ids = self.request_ids
        result.token_ids.update(zip(request_ids, sampled.token_ids[:, None].tolist(), strict=True))
        result.logprobs.update((request_ids[index], [entry]) for index, entry in sampled.logprobs.items())
        for index in sampled.invalid:
            result.errors[request_ids[index]] = "the model's logits for this request hold no finite value"
        if self.rules.apply_to(self.places.rows):
            self._check_rules(result, np.flatnonzero(is_here), sampled.invalid)

    def _check_rules(self, result: StepResult, here: np.ndarray, invalid: list[int]) -> None:
        """Find out which sequences are complete, and which cannot go on. here: the sequences that are still in their rows."""
        rows = self.places.rows[here]
        complete, reasons = self.rules.verdicts(rows, np.flatnonzero(np.isin(here, invalid)).tolist())
        result.complete.update(self.request_ids[here[index]] for index in complete)
        result.refusals.update((self.request_ids[here[index]], reason) for index, reason in reasons.items())
