"""The dialect of /v1/completions: OpenAI's text_completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triptych.v1 import generation_pb2

from triptych_gateway.dialects import convert
from triptych_gateway.dialects.dialect import Call, Choice, Encoder
from triptych_gateway.dialects.openai.encoder import OpenAiEncoder
from triptych_gateway.dialects.openai.prompt_logprobs import finite_logprob, prompt_logprobs_json
from triptych_gateway.dialects.openai.request_fields import generation_fields
from triptych_gateway.file_parts import FileParts
from triptych_gateway.schemas.completions import MAX_PROMPTS, CompletionRequest

#: The contract's limit. The frontend replaces longer ids.
_MAX_REQUEST_ID_CHARS = 128


class CompletionDialect:
    """Requests and answers of /v1/completions."""

    async def parse(self, body: CompletionRequest, request_id: str, files: FileParts) -> Call:
        # Concurrent calls need different ids. The stem is cut, because the frontend would replace an id that is too long.
        stem = request_id[: _MAX_REQUEST_ID_CHARS - len(f"-{MAX_PROMPTS}")]
        num_prompts = len(body.prompts)
        ids = [request_id] if num_prompts == 1 else [f"{stem}-{number}" for number in range(num_prompts)]
        calls = await files.run(lambda: convert.complete_calls(body, ids, files))
        return Call(calls, body.num_choices, bool(body.stream), generation_fields(body))

    def encoder(self, body: CompletionRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return CompletionEncoder(
            request_id,
            body.model,
            fingerprint,
            num_choices=body.num_choices,
            with_echo=bool(body.echo),
            with_prompt_logprobs=body.prompt_logprobs is not None,
            include_usage=body.include_usage,
            continuous_usage=body.has_continuous_usage,
            with_logprobs=body.num_logprobs is not None,
            with_token_ids=bool(body.return_token_ids),
        )


class CompletionEncoder(OpenAiEncoder):
    """Writes answers of /v1/completions.

    Args:
        num_choices: per prompt.
        with_echo: the answer begins with the prompt, and its token ids with those of the prompt.
        with_prompt_logprobs: whether the client requested log probabilities of the prompt.
        options: those of OpenAiEncoder.
    """

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def __init__(
        self,
        request_id: str,
        model: str,
        fingerprint: str | None,
        *,
        num_choices: int = 1,
        with_echo: bool = False,
        with_prompt_logprobs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(request_id, model, fingerprint, **options)
        self._num_choices = num_choices
        self._with_echo = with_echo
        self._with_prompt_logprobs = with_prompt_logprobs

    def _num_new_tokens(self, delta: generation_pb2.ChoiceDelta) -> int:
        return len(delta.token_ids) - (delta.prompt_tokens if self._with_echo else 0)

    def _chunk_choice(self, index: int, delta: generation_pb2.ChoiceDelta) -> dict[str, Any]:
        return {"index": index, "text": delta.text}

    def _has_news(self, choice: dict[str, Any]) -> bool:
        return bool(choice["text"])

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
