"""The dialect of /v1/completions: OpenAI's text_completion."""

from __future__ import annotations

from typing import Any

from triptych_common.pb import generation_pb2

from triptych_gateway.dialects import convert
from triptych_gateway.dialects.dialect import Call, Encoder
from triptych_gateway.dialects.openai import FIELD_NAMES, OpenAiEncoder, finite_logprob
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
        return Call(convert.complete_calls(body, ids), body.num_choices, bool(body.stream), FIELD_NAMES)

    def encoder(self, body: CompletionRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return CompletionEncoder(
            request_id,
            body.model,
            fingerprint,
            include_usage=body.include_usage,
            with_logprobs=body.num_logprobs is not None,
            with_token_ids=bool(body.return_token_ids),
        )


class CompletionEncoder(OpenAiEncoder):
    """Writes answers of /v1/completions."""

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
    """Token -> log probability, likeliest first, including the chosen token. None for the first prompt token, which has none."""
    if not entry.HasField("logprob"):
        return None
    best = {top.token: finite_logprob(top.logprob) for top in reversed(entry.top)}
    # Different tokens can have the same text. `entry.top` is reversed here, so that the likelier one is written last and stays.
    alternatives = dict(reversed(best.items()))
    alternatives.setdefault(entry.token, finite_logprob(entry.logprob))
    return alternatives
