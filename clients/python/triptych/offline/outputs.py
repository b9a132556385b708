"""What the methods of `LLM` return: the classes and attributes that users of vLLM know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from triptych.v1 import common_pb2, generation_pb2

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability of a token at one position."""

    #: Natural logarithm.
    logprob: float
    #: 1 for the likeliest token of the vocabulary.
    rank: int | None = None
    decoded_token: str | None = None


#: Token id -> its log probability: of the token at this position, and of the likeliest ones.
LogprobsAt = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One generated text."""

    index: int
    text: str
    token_ids: list[int]
    #: Sum of the tokens' log probabilities. None if `logprobs` was not requested.
    cumulative_logprob: float | None = None
    #: One entry per token. None if not requested.
    logprobs: list[LogprobsAt] | None = None
    #: stop or length.
    finish_reason: str | None = None
    #: The stop string or the stop token of the request that ended the text.
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """All texts that were generated for one prompt."""

    request_id: str
    #: The prompt's text, after the chat template. None if the prompt was given as token ids.
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    #: One entry per token of the prompt; None for the first one, which has no log probability. None if not requested.
    prompt_logprobs: list[LogprobsAt | None] | None = None
    #: Always true: outputs are complete.
    finished: bool = True
    #: Tokens of the prompt that came from the prefix cache.
    num_cached_tokens: int = 0
    #: What the request consumed, in tokens.
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    #: What it cost, in seconds per stage.
    metrics: common_pb2.Timings = field(default_factory=common_pb2.Timings)
    #: What its media cost.
    media: list[generation_pb2.MediaReport] = field(default_factory=list)


@dataclass(slots=True)
class PoolingOutput:
    """The data of one input: float32, [dimensions] of `embed`, [tokens, dimensions] of `token_embed`, [labels] of `classify`."""

    data: np.ndarray


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one input."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """A value per label of the model."""

    probs: list[float]
    #: Names of the labels, in the order of the values.
    labels: list[str] = field(default_factory=list)

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How well the texts of a pair fit together."""

    score: float


@dataclass(slots=True)
class _PoolingRequestOutput(Generic[T]):
    request_id: str
    #: Tokens of the input. Empty for pairs of texts, and for inputs with media.
    prompt_token_ids: list[int]
    #: Always true: outputs are complete.
    finished: bool = field(default=True, kw_only=True)
    outputs: T


class PoolingRequestOutput(_PoolingRequestOutput[PoolingOutput]):
    """The result of `LLM.encode` for one input."""

    __slots__ = ()


class EmbeddingRequestOutput(_PoolingRequestOutput[EmbeddingOutput]):
    """The result of `LLM.embed` for one input."""

    __slots__ = ()


class ClassificationRequestOutput(_PoolingRequestOutput[ClassificationOutput]):
    """The result of `LLM.classify` for one input."""

    __slots__ = ()


class ScoringRequestOutput(_PoolingRequestOutput[ScoringOutput]):
    """The result of `LLM.score` for one pair."""

    __slots__ = ()


@dataclass(slots=True)
class BeamSearchSequence:
    """One of the likeliest texts."""

    #: The prompt's tokens, then the generated ones.
    tokens: list[int]
    #: Of the generated tokens, one entry each.
    logprobs: list[LogprobsAt]
    #: Sum of the log probabilities of the generated tokens.
    cum_logprob: float
    #: The prompt's text, then the generated one. Of a prompt that was given as token ids, the generated text alone.
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The likeliest texts for one prompt, best first."""

    sequences: list[BeamSearchSequence]


class GenerationError(Exception):
    """One prompt failed. `__cause__` is the reason: a TriptychError, or what went wrong while the prompt was read.

    Args:
        index: position of the prompt among the prompts.
    """

    def __init__(self, index: int, cause: BaseException | None) -> None:
        super().__init__(f"prompts[{index}]: {cause}")
        self.index = index
        self.__cause__ = cause

    def __reduce__(self) -> tuple[type[GenerationError], tuple[int, BaseException | None]]:
        # Exceptions are pickled with their message alone.
        return type(self), (self.index, self.__cause__)
