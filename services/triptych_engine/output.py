"""What travels between scheduler, runner and servicer in one step. Plain data, no torch, no protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field

from triptych_engine.media import NO_MEDIA, EmbeddingSlice, EmbeddingSource, Modality, PromptMedia
from triptych_engine.request import FinishReason, SamplingParams, TokenLogprobs


@dataclass(slots=True)
class NewSequence:
    """A sequence that the runner has not seen, or has forgotten since it was preempted."""

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    media: PromptMedia = NO_MEDIA


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work for the runner."""

    new: list[NewSequence] = field(default_factory=list)
    #: request_id -> blocks added since the last step, of sequences that the runner knows.
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    #: request_id -> tokens to compute now, in the order of the batch.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    #: Sequences that the runner shall forget before this step: finished, aborted or preempted since the last.
    dropped: list[str] = field(default_factory=list)
    #: request_id -> embeddings that stand for some of its scheduled tokens.
    embeddings: dict[str, list[EmbeddingSlice]] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """What the runner made of a SchedulerOutput."""

    #: request_id -> sampled token, for sequences whose last token was computed in this step.
    token_ids: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    #: request_id -> log probabilities of the prompt tokens that this step's chunk predicts.
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    #: request_id -> what went wrong with this sequence alone.
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Timings:
    """Wall time per stage, in seconds."""

    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class MediaFetch:
    """What it took to have the embeddings of one item. source: None when the sequence ended before they were asked for."""

    source: EmbeddingSource | None
    fetch_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MediaUsage:
    """What the media of a sequence took."""

    num_tokens: dict[Modality, int]
    num_cached_tokens: int
    fetches: tuple[MediaFetch, ...]  # in the order of the items


@dataclass(slots=True)
class SequenceOutput:
    """What one step brought one sequence."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    #: On the last output: prompt, output and cached tokens.
    usage: tuple[int, int, int] | None = None
    timings: Timings | None = None
    #: On the last output of a sequence with media.
    media: MediaUsage | None = None
    error: Exception | None = None
