"""Log probabilities as JSON: of output tokens in OpenAI's form, of prompt tokens in vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field
from triptych.v1 import generation_pb2

#: OpenAI's value for log probabilities that are too low.
_LOWEST_LOGPROB = -9999.0


class PromptLogprob(BaseModel):
    """Log probability of one token at a position of the prompt."""

    logprob: float
    rank: Annotated[int, Field(description="1 for the likeliest token.")]
    decoded_token: str


#: One entry per prompt token: token id -> log probability, for the token itself and the likeliest ones. null for the first token.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


def finite_logprob(logprob: float) -> float:
    """The log probability with a lower bound, because JSON has no minus infinity."""
    return max(logprob, _LOWEST_LOGPROB)


def token_json(entry: generation_pb2.TokenLogprob | generation_pb2.TopLogprob) -> dict[str, Any]:
    """A token without its alternatives."""
    return {"token": entry.token, "logprob": finite_logprob(entry.logprob), "bytes": list(entry.utf8)}


def tokens_json(entries: Iterable[generation_pb2.TokenLogprob]) -> list[dict[str, Any]]:
    """Output tokens, each with its likeliest alternatives."""
    return [token_json(entry) | {"top_logprobs": [token_json(top) for top in entry.top]} for entry in entries]


def prompt_logprobs_json(entries: Sequence[generation_pb2.TokenLogprob]) -> list[dict[str, Any] | None]:
    """One object per prompt token: token id -> log probability, the token itself first. null for the first token."""
    return [_position(entry) if entry.HasField("logprob") else None for entry in entries]


def _position(entry: generation_pb2.TokenLogprob) -> dict[str, Any]:
    position = {str(entry.token_id): _logprob(entry, entry.rank)}
    for rank, top in enumerate(entry.top, start=1):
        position.setdefault(str(top.token_id), _logprob(top, rank))
    return position


def _logprob(entry: generation_pb2.TokenLogprob | generation_pb2.TopLogprob, rank: int) -> dict[str, Any]:
    return {"logprob": finite_logprob(entry.logprob), "rank": rank, "decoded_token": entry.token}
