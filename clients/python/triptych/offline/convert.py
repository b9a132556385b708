"""Responses of the contracts as the outputs of `LLM`."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.offline.outputs import CompletionOutput, Logprob, LogprobsAt, RequestOutput
from triptych.v1 import common_pb2, generation_pb2

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


def request_output(
    response: generation_pb2.ChatResponse | generation_pb2.CompleteResponse, prompt: str | None, token_ids: Sequence[int]
) -> RequestOutput:
    """The output for one prompt, of which all choices have ended."""
    first = response.choices[0]
    return RequestOutput(
        request_id=response.request_id,
        prompt=prompt,
        prompt_token_ids=list(token_ids),
        outputs=[completion_output(choice) for choice in response.choices],
        prompt_logprobs=[_prompt_logprobs_at(token) for token in first.prompt_logprobs] or None,
        num_cached_tokens=response.usage.cached_tokens,
        usage=response.usage,
        metrics=response.timings,
        media=list(response.media),
    )


def completion_output(choice: generation_pb2.Choice) -> CompletionOutput:
    """One choice."""
    matched = choice.WhichOneof("matched_stop")
    return CompletionOutput(
        index=choice.index,
        text=choice.text,
        token_ids=list(choice.token_ids),
        cumulative_logprob=sum(token.logprob for token in choice.logprobs) if choice.logprobs else None,
        logprobs=[_logprobs_at(token) for token in choice.logprobs] or None,
        finish_reason=_FINISH_REASONS.get(choice.finish_reason),
        stop_reason=getattr(choice, matched) if matched else None,
    )


def _prompt_logprobs_at(token: generation_pb2.TokenLogprob) -> LogprobsAt | None:
    return _logprobs_at(token) if token.HasField("logprob") else None


def _logprobs_at(token: generation_pb2.TokenLogprob) -> LogprobsAt:
    """The token itself, and the likeliest ones."""
    at = {token.token_id: Logprob(token.logprob, token.rank, token.token)}
    for rank, top in enumerate(token.top, start=1):
        at.setdefault(top.token_id, Logprob(top.logprob, rank, top.token))
    return at
