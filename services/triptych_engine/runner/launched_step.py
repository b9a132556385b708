"""A step that was launched on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from triptych_engine.runner.input_batch import ExpectedTokens, InputBatch, StepInputs
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.sampler import PendingSample
from triptych_engine.scheduling.output import StepResult


@dataclass(slots=True)
class ModelOutput:
    """The result of a step's forward pass; empty if there was nothing to compute."""

    inputs: StepInputs | None = None
    #: [n, vocab_size] of the last token of each sequence that samples and, with `prompt_lines`, of prompt tokens.
    logits: torch.Tensor | None = None
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
    sample: StepSample | None = None
    #: As in ModelOutput.
    wait: Callable[[], None] | None = None

    def result(self) -> StepResult:
        """Wait for the step and return its result. Must be called once per step, in launch order."""
        if self.wait is not None:
            self.wait()
        result = StepResult(prompt_logprobs={key: pending.entries() for key, pending in self.prompt_logprobs.items()})
        result.pooled = {request_id: tensor.cpu().numpy() for request_id, tensor in self.pooled.items()}
        if self.sample is not None:
            self.sample.collect(result)
        result.errors.update(self.errors)
        return result


@dataclass(frozen=True, slots=True)
class StepSample:
    """The tokens that a step samples, and their places in the batch."""

    request_ids: list[str]
    pending: PendingSample
    batch: InputBatch
    places: ExpectedTokens

    def collect(self, result: StepResult) -> None:
        """Wait for the tokens and store them in the result and in the batch."""
        sampled = self.pending.result()
        self.batch.learn_tokens(self.places, sampled.token_ids)
        request_ids = self.request_ids
        result.token_ids = dict(zip(request_ids, sampled.token_ids[:, None].tolist(), strict=True))
        result.logprobs = {request_ids[index]: [entry] for index, entry in sampled.logprobs.items()}
        for index in sampled.invalid:
            result.errors[request_ids[index]] = "the model's logits for this request hold no finite value"
