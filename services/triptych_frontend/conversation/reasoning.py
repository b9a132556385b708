"""How much a model reasons, as variables of its chat template."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import generation_pb2

from triptych_frontend.errors import refusal

#: Variables that turn reasoning on and off. Templates read one of them.
_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"


@dataclass(frozen=True)
class ReasoningLimit:
    """How long a choice may reason."""

    max_tokens: int
    #: The tokens that end the reasoning.
    end_token_ids: tuple[int, ...]


def reasoning_variables(reasoning: generation_pb2.Reasoning, can_reason: bool, known: Set[str]) -> dict[str, Any]:
    """The template's variables for a request's `reasoning`.

    Args:
        can_reason: the model tells reasoning apart from its answer.
        known: the variables that the template reads.

    Raises:
        InvalidRequestError: the model does not reason, or its template cannot change how much it does.
    """
    switches = [name for name in _SWITCHES if name in known and can_reason]
    if reasoning.HasField("max_tokens") and reasoning.max_tokens and not can_reason:
        raise _cannot_reason("reasoning.max_tokens", 0, reasoning.max_tokens)
    if not reasoning.HasField("effort"):
        # Who limits the reasoning wants some, also of a model that does not reason by itself.
        return dict.fromkeys(switches, reasoning.max_tokens > 0) if reasoning.HasField("max_tokens") else {}
    effort, field = reasoning.effort, "reasoning.effort"
    if not effort:
        raise refusal(field, "must not be empty")
    if not can_reason:
        if effort == "none":
            return {}
        raise _cannot_reason(field, "none", effort)
    variables: dict[str, Any] = dict.fromkeys(switches, effort != "none")
    if _EFFORT in known:
        variables[_EFFORT] = effort
    if not variables:
        message = f"the model's chat template cannot change how much the model reasons; given: {effort!r}"
        raise InvalidRequestError(message, field=field, value=effort)
    return variables


def _cannot_reason(field: str, limit: object, value: object) -> InvalidRequestError:
    message = f"this model does not reason; {field} may be {limit!r}; given: {value!r}"
    return InvalidRequestError(message, field=field, limit=limit, value=value)
