"""What scheduler, executor and servicer exchange in one step: plain data, without torch and protobuf."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import numpy as np
from triptych.errors import InternalError, InvalidRequestError, TriptychError

from triptych_engine.media.item import NO_MEDIA, Embeddings, EmbeddingSlice, EmbeddingSource, Modality, PromptMedia
from triptych_engine.scheduling.request import FinishReason, PoolingParams, Request, SamplingParams, TokenLogprobs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class NewSequence:
    """A sequence that is new to the executor, or that the executor dropped when it was preempted."""

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    media: PromptMedia = NO_MEDIA
    pooling: PoolingParams | None = None
    #: Digest of its adapter; empty for none.
    lora_digest: str = ""
    #: Of layers with a window, if these have blocks of their own; -1 for those that are behind it.
    window_block_ids: list[int] = field(default_factory=list)
    #: Slot of its recurrent state, and that of the snapshot with which it begins; None without such states, and for a zero state.
    state_slot: int | None = None
    state_source: int | None = None
    #: Slot of the keys and values of its encoder's states, for a model with cross-attention; and the states themselves, if the slot
    #: does not hold them yet.
    cross_slot: int | None = None
    encoder_states: Embeddings | None = None

    @classmethod
    def of(cls, request: Request) -> NewSequence:
        """From a request that has just got its blocks."""
        return cls(
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=request.num_computed_tokens,
            block_ids=list(request.block_ids),
            sampling=request.sampling,
            media=request.media,
            pooling=request.pooling,
            lora_digest=request.lora_digest,
            window_block_ids=list(request.window_block_ids),
            state_slot=request.state_slot,
            state_source=request.state_source,
            cross_slot=request.cross_slot,
        )


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work for the executor. Pure data: it can be pickled, and no `Request` is in it."""

    #: Unique id of the step.
    step_id: int = 0
    new: list[NewSequence] = field(default_factory=list)
    #: request_id -> blocks added since the last step, for sequences that the executor knows.
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    #: The same for layers with a window.
    new_window_block_ids: dict[str, list[int]] = field(default_factory=dict)
    #: request_id -> known tokens to compute now, in the order of the batch.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    #: request_id -> maximum number of tokens that the step may return, for sequences whose last known token it computes. If that
    #: is more than one, there are blocks for all but the last of them.
    max_new_tokens: dict[str, int] = field(default_factory=dict)
    #: request_id -> guesses of the tokens after its last known one, which the step computes too. Those up to the first wrong one
    #: are returned, and one token after them.
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    #: Sequences to drop before this step: they have ended or were preempted since the last one.
    dropped: list[str] = field(default_factory=list)
    #: request_id -> embeddings that replace some of its scheduled tokens.
    embeddings: dict[str, list[EmbeddingSlice]] = field(default_factory=dict)
    #: request_id -> snapshots of its recurrent state to make: pairs of the number of tokens before and a slot, in order.
    snapshots: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: Pairs of a block of the KV cache and a slot of the tier: blocks to store before this step overwrites them.
    stores: list[tuple[int, int]] = field(default_factory=list)
    #: The same: blocks to load behind that, before tokens are computed.
    loads: list[tuple[int, int]] = field(default_factory=list)
    #: request_id -> blocks of its prompt to store after this step has computed them: other engines may want them.
    offers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: Number of sequences that compute only their newest token.
    num_decoding: int = 0
    #: Number of tokens of all other sequences.
    num_prompt_tokens: int = 0
    #: Media of at least one request are being encoded or fetched.
    awaits_embeddings: bool = False

    @property
    def num_draft_tokens(self) -> int:
        return sum(map(len, self.draft_token_ids.values()))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for the executor to do."""
        return not (self.num_scheduled_tokens or self.dropped or self.stores or self.loads)


@dataclass(slots=True)
class StepResult:
    """The executor's result for a SchedulerOutput."""

    #: request_id -> sampled tokens, at least one and at most `SchedulerOutput.max_new_tokens`, of the sequences named there.
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    #: request_id -> an entry for each of its sampled tokens, if the request asked for them.
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    #: request_id -> log probabilities of the prompt tokens that this step's chunk predicts.
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    #: request_id -> what the request asked for, float32 [size] or [num_tokens, size], of requests that end with this step because
    #: they generate nothing.
    pooled: dict[str, np.ndarray] = field(default_factory=dict)
    #: request_id -> error message, if only this sequence failed.
    errors: dict[str, str] = field(default_factory=dict)
    #: request_id -> why what the request asks for cannot be generated, if only this sequence failed.
    refusals: dict[str, str] = field(default_factory=dict)
    #: Sequences whose tokens, with those returned here, satisfy their constraint so that nothing may follow.
    complete: set[str] = field(default_factory=set)

    def outcome(self) -> StepResult:
        """What has become of the sequences, which is the same wherever the step was computed."""
        return StepResult(token_ids=self.token_ids, errors=self.errors, refusals=self.refusals, complete=self.complete)

    def error(self, request_id: str) -> TriptychError:
        """Why a sequence failed that has an error or a refusal."""
        if request_id in self.refusals:
            return InvalidRequestError(self.refusals[request_id], field="constraint")
        return InternalError(self.errors[request_id])


@dataclass(slots=True)
class Timings:
    """Wall time per stage, in seconds."""

    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int
    #: From the arrival of the request to each of its preemptions.
    preempted_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MediaFetch:
    """Where the embeddings of one item came from. `source` is None if the sequence ended before they were ordered."""

    source: EmbeddingSource | None
    fetch_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MediaUsage:
    """Usage of the media of a sequence."""

    num_tokens: dict[Modality, int]
    num_cached_tokens: int
    fetches: tuple[MediaFetch, ...]  # in the order of the items


@dataclass(slots=True)
class SequenceOutput:
    """What one step produced for one sequence."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    #: Its tokens are the first ones that this engine has made for the sequence.
    is_first: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    #: On the last output of a request that generates nothing, unless it failed.
    pooled: np.ndarray | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    #: On the last output: prompt, output and cached tokens.
    usage: tuple[int, int, int] | None = None
    timings: Timings | None = None
    #: On the last output of a sequence with media.
    media: MediaUsage | None = None
    error: Exception | None = None

    def follow(self, before: SequenceOutput) -> None:
        """Take over what an earlier output of the same sequence has, which is then not sent."""
        self.token_ids = before.token_ids + self.token_ids
        self.is_first = before.is_first
        self.logprobs = before.logprobs + self.logprobs
        self.prompt_logprobs = before.prompt_logprobs + self.prompt_logprobs
        self.usage = self.usage or before.usage


def last_output(request: Request, error: TriptychError | None = None) -> SequenceOutput:
    """The last output of a request that has ended: why it ended, and what it used."""
    return SequenceOutput(
        request.request_id,
        pooled=request.pooled,
        finish_reason=request.finish_reason,
        stop_token_id=request.stop_token_id,
        usage=(request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0),
        timings=_timings(request),
        media=_media_usage(request) if request.media.items else None,
        error=error,
    )


def failed_output(request: Request, error: Exception) -> SequenceOutput:
    """The last output of a request that ended because of an error in this engine."""
    log.error("request %s failed in the scheduler", request.request_id, exc_info=error)
    return last_output(
        request, InternalError(f"the request failed in the engine's scheduler ({type(error).__name__}); see the log")
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
        preempted_s=tuple(at - request.arrival_time for at in request.preemption_times),
    )
