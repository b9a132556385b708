"""Writes the answers of /v1/completions: OpenAI's text_completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triptych.v1 import generation_pb2

from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.apis.openai_events import OpenAiWriter
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.logprobs import finite_logprob, prompt_logprobs_json


class CompletionWriter(OpenAiWriter):
    """Writes the answer to one request. Its arguments are those of OpenAiWriter."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"
    content_field = "text"

    def __init__(self, request_id: str, fingerprint: str | None, body: CompletionRequest) -> None:
        super().__init__(request_id, fingerprint, body)
        self._num_choices = body.num_choices
        self._with_echo = bool(body.echo)

    def _num_new_tokens(self, delta: generation_pb2.ChoiceDelta) -> int:
        return len(delta.token_ids) - (delta.prompt_tokens if self._with_echo else 0)

    def _chunk_choice(self, index: int, delta: generation_pb2.ChoiceDelta) -> dict[str, Any]:
        return {"index": index, "text": delta.text}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {"index": index, "text": choice.text}

    def _finish_whole(self, answer: dict[str, Any], choices: Sequence[Choice]) -> None:
        if self._with_prompt_logprobs:
            for index, written in enumerate(answer["choices"]):
                # All choices of a prompt say the same; the contract has it on the first.
                first = choices[index - index % self._num_choices]
                written["prompt_logprobs"] = prompt_logprobs_json(first.prompt_logprobs)

    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        return {
            "tokens": [entry.token for entry in logprobs],
            "token_logprobs": [finite_logprob(entry.logprob) if entry.HasField("logprob") else None for entry in logprobs],
            "top_logprobs": [_alternatives(entry) for entry in logprobs],
            "text_offset": [entry.text_offset for entry in logprobs],
        }


def _alternatives(entry: generation_pb2.TokenLogprob) -> dict[str, float] | None:
    """Token -> log probability, likeliest first, including the chosen token. None for the first prompt token, which has none."""
    if not entry.HasField("logprob"):
        return None
    best = {top.token: finite_logprob(top.logprob) for top in reversed(entry.top)}
    # Different tokens can have the same text. `entry.top` is reversed here, so that the likelier one is written last and stays.
    alternatives = dict(reversed(best.items()))
    alternatives.setdefault(entry.token, finite_logprob(entry.logprob))
    return alternatives
