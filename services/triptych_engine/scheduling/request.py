"""A request as the engine sees it: token ids in, token ids out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from triptych_common.constraints.spec import ConstraintSpec

from triptych_engine.media.item import NO_MEDIA, PromptMedia


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like."""

    spec: ConstraintSpec
    #: The constraint begins after the first of these tokens; empty: it begins at `start`.
    starts_after_token_ids: tuple[int, ...] = ()
    #: Output tokens before the constraint, of a sequence that another engine began.
    start: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen; defaults and ranges as in the contract (common.proto)."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[int, ...] = ()
    #: Each has at least two tokens.
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    #: Tokens with which the output does not begin.
    first_bad_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    #: Tokens that end the sequence: the request's own and, unless ignore_eos, the model's.
    stop_token_ids: frozenset[int] = frozenset()
    #: 64 bits; requests without a seed get a fresh one.
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What becomes of the hidden states of a request that generates nothing; defaults as in the contract (common.proto)."""

    #: One vector per token, not one for all.
    per_token: bool = False
    #: Length of the vectors; None: the model's.
    dimensions: int | None = None
    #: None: as the model was made.
    normalize: bool | None = None
    activation: bool = True
    #: Index of the first token of the second text of a pair; 0 if there is one text.
    second_text_start: int = 0


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, natural logarithm."""

    token_id: int
    logprob: float
    rank: int
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class RequestStatus(Enum):
    """The state of a request. Only `RequestStates` changes it."""

    NEW = "new"  # the scheduler does not know it yet
    WAITING = "waiting"  # waits for blocks and to be one of max_num_seqs; holds no blocks
    PARKED = "parked"  # waits for embeddings; holds no blocks
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """One sequence and its progress. `RequestStates` owns it from `add` to its end."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    #: Output tokens that it begins with, because another engine computed them.
    carried_token_ids: Sequence[int] = ()
    priority: int = 0
    cache_salt: str = ""
    #: Name of the adapter that it is computed with; empty for none.
    lora: str = ""
    #: Of the adapter, once it is loaded: see LoraAdapter.
    lora_digest: str = ""
    #: Whose request it is; empty for anonymous callers, who are one tenant.
    tenant: str = ""
    #: Keeps what the executor prepared for the request, such as its compiled constraint or its adapter, while the request lives.
    prepared: object = None
    media: PromptMedia = NO_MEDIA
    #: For a request that generates nothing: its sampling has max_tokens 0.
    pooling: PoolingParams | None = None
    #: Position in the order of arrival, set by `RequestStates.add`.
    arrival: int = 0
    arrival_time: float = field(default_factory=time.monotonic)

    status: RequestStatus = RequestStatus.NEW
    #: Prompt and output tokens, in order.
    token_ids: list[int] = field(init=False)
    #: Length at which the sequence ends, prompt included.
    max_num_tokens: int = field(init=False)
    #: Tokens whose keys and values are in the cache.
    num_computed_tokens: int = 0
    #: Tokens that steps in flight compute.
    num_in_flight_tokens: int = 0
    #: Steps in flight that sample. Each returns at least one token, which has its position in the sequence but is not known yet.
    num_unknown_tokens: int = 0
    #: A step in flight may return more than one token. The start of the next step is not known until its result arrives.
    awaits_result: bool = False
    #: Blocks of it were loaded from the tier since it began to wait. What is missing then is computed.
    has_loaded: bool = False
    #: Prompt tokens that were found in the prefix cache at the first admission; not those of the carried output.
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    #: How often the executor was lost in a step with it.
    num_losses: int = 0
    #: When it was preempted.
    preemption_times: tuple[float, ...] = ()
    #: KV blocks, in order of the tokens that they hold.
    block_ids: list[int] = field(default_factory=list)
    #: Chained hash of each full block of tokens, as far as computed.
    block_hashes: list[bytes] = field(default_factory=list)
    #: The same for layers with a window; -1 for blocks behind it. See WindowCache.
    window_block_ids: list[int] = field(default_factory=list)
    #: Index of the first of them that is held.
    first_window_block: int = 0
    #: How many are reserved.
    window_reserved: int = 0
    #: Slot of its recurrent state, and that of the snapshot with which the state begins: see StateCache.
    state_slot: int | None = None
    state_source: int | None = None
    #: Snapshots that steps in flight make: number of tokens before -> slot.
    snapshots: dict[int, int] = field(default_factory=dict)
    #: Slot of the keys and values of its encoder's states, and whether it still has to be filled: see CrossCache.
    cross_slot: int | None = None
    fills_cross_slot: bool = False
    #: Blocks of which StateCache knows that a live request has them.
    num_live_blocks: int = 0
    #: The prefix of the last snapshot that was made in its output.
    output_snapshot: bytes | None = None
    #: What a request that generates nothing asked for, once it is computed.
    pooled: np.ndarray | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    #: What the drafter knows of it.
    drafting: object = None
    #: Log probabilities of the prompt, collected chunk by chunk until they are sent with the first output token; then None.
    prompt_logprobs: list[TokenLogprobs] | None = field(default_factory=list)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    #: When the newest tokens came.
    last_token_time: float = 0.0

    def __post_init__(self) -> None:
        self.token_ids = [*self.prompt_token_ids, *self.carried_token_ids]
        self.max_num_tokens = self.num_prompt_tokens + self.sampling.max_tokens

    @property
    def is_running(self) -> bool:
        return self.status is RequestStatus.RUNNING

    @property
    def is_resuming(self) -> bool:
        """Whether its client has output already, and waits for the next token while the output is computed again."""
        return bool(self.carried_token_ids) and self.first_token_time is None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens, including those that are not known yet."""
        return len(self.token_ids) + self.num_unknown_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens that are computed, or that a step in flight computes."""
        return self.num_computed_tokens + self.num_in_flight_tokens

    @property
    def num_left(self) -> int:
        """Tokens that are not computed and in no step yet. 0 if a step in flight returns the last one, or an unknown number."""
        num_tokens = len(self.token_ids) + self.num_unknown_tokens
        if self.awaits_result or (self.num_unknown_tokens and num_tokens >= self.max_num_tokens):
            return 0
        return num_tokens - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def decodes(self) -> bool:
        """Whether a running request has only its newest token left to compute."""
        return self.num_left == 1

    @property
    def queue_key(self) -> tuple[int, int]:
        """Requests with a smaller key run first. What another engine began counts as having come before all others."""
        return self.priority, self.arrival

    @property
    def shortness_key(self) -> tuple[int, bool, int, int]:
        """Orders by priority, then what another engine began, whose clients wait in the middle of an answer; then by tokens left to
        compute, then by arrival."""
        return self.priority, not self.carried_token_ids, self.num_left, self.arrival

    def append(self, token_ids: Sequence[int], *, is_complete: bool = False) -> FinishReason | None:
        """Append new tokens up to the one that ends the sequence; drop the rest. Returns why it ends, or None if it continues.

        Args:
            is_complete: nothing may follow the last of them.
        """
        sampling = self.sampling
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if token_id in sampling.stop_token_ids and self.num_output_tokens > sampling.min_tokens:
                self.stop_token_id = token_id
                return FinishReason.STOP
            if len(self.token_ids) >= self.max_num_tokens:
                return FinishReason.STOP if is_complete else FinishReason.LENGTH
        return FinishReason.STOP if is_complete else None
