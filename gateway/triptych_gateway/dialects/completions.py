"""OpenAI's text_completion."""

from __future__ import annotations

from typing import Any

from triptych_common.pb import generation_pb2

from triptych_gateway.dialects.common import AnswerFormat, finite_logprob


class CompletionFormat(AnswerFormat):
    """Answers of /v1/completions."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def _chunk_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text}

    def _whole_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text}

    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        return {
            "tokens": [entry.token for entry in logprobs],
            "token_logprobs": [finite_logprob(entry.logprob) if entry.HasField("logprob") else None for entry in logprobs],
            "top_logprobs": [_alternatives(entry) for entry in logprobs],
            "text_offset": [entry.text_offset for entry in logprobs],
        }


def _alternatives(entry: generation_pb2.TokenLogprob) -> dict[str, float] | None:
    """Token -> log probability, best first, the chosen token among them; None for the first prompt token, which has none."""
    if not entry.HasField("logprob"):
        return None
    best = {top.token: finite_logprob(top.logprob) for top in reversed(entry.top)}
    # Different tokens can have the same text: the likelier one, which comes later here, stays.
    alternatives = dict(reversed(best.items()))
    alternatives.setdefault(entry.token, finite_logprob(entry.logprob))
    return alternatives
