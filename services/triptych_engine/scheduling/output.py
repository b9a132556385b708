"""What travels between scheduler, runner and servicer in one step. Plain data, no torch, no protobuf."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from triptych_common.rpc.errors import TriptychError

from triptych_engine.media.item import NO_MEDIA, EmbeddingSlice, EmbeddingSource, Modality, PromptMedia
from triptych_engine.scheduling.request import FinishReason, Request, SamplingParams, TokenLogprobs


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

    @classmethod
    def of(cls, request: Request) -> NewSequence:
        """A request that was just given its blocks."""
        return cls(
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=request.num_computed_tokens,
            block_ids=list(request.block_ids),
            sampling=request.sampling,
            media=request.media,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """What one request has in a step."""

    request: Request
    num_tokens: int
    #: Its last token is among them, so the next one is sampled.
    samples: bool


@dataclass(eq=False, slots=True)
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
    #: Sequences that compute their newest token alone, and tokens of all others.
    num_decoding: int = 0
    num_prompt_tokens: int = 0
    #: Media of some request are being encoded or on their way.
    awaits_embeddings: bool = False
    #: The scheduler's own account of the step, by which it books it. An id may be another request's by then.
    parts: list[Part] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for the runner to do."""
        return not (self.num_scheduled_tokens or self.dropped)


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


def last_output(request: Request, error: TriptychError | None = None) -> SequenceOutput:
    """What a request that has ended gets last: why, and what it took."""
    return SequenceOutput(
        request.request_id,
        finish_reason=request.finish_reason,
        stop_token_id=request.stop_token_id,
        usage=(request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0),
        timings=_timings(request),
        media=_media_usage(request) if request.media.items else None,
        error=error,
    )


def _media_usage(request: Request) -> MediaUsage:
    media, num_cached = request.media, request.num_cached_tokens or 0
    spared = EmbeddingSource.PREFIX_CACHE
    fetches = (
        MediaFetch(spared if item.source is None and item.end <= num_cached else item.source, item.fetch_s, item.num_bytes)
        for item in media.items
    )
    num_tokens = {item.modality: media.num_tokens(item.modality) for item in media.items}
    return MediaUsage(num_tokens, media.num_cached(num_cached), tuple(fetches))


def _timings(request: Request) -> Timings:
    now = time.monotonic()
    scheduled = request.first_scheduled_time or now
    first_token = request.first_token_time or now
    return Timings(
        queue_s=scheduled - request.arrival_time,
        prefill_s=first_token - scheduled,
        decode_s=now - first_token,
        num_preemptions=request.num_preemptions,
    )
