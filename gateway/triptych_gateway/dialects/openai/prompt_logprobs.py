"""Log probabilities of a prompt as JSON, in vLLM's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triptych.v1 import generation_pb2

#: OpenAI's value for log probabilities that are too low.
_LOWEST_LOGPROB = -9999.0


def finite_logprob(logprob: float) -> float:
    """The log probability with a lower bound, because JSON has no minus infinity."""
    return max(logprob, _LOWEST_LOGPROB)


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
