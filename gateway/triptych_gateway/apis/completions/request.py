"""Converts completion requests to the contract. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from triptych.v1 import generation_pb2

from triptych_gateway.apis.completions.schema import MAX_PROMPTS, CompletionRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.wire.contract import generation_options, output_mode

#: The contract's limit. The frontend replaces longer ids.
_MAX_REQUEST_ID_CHARS = 128


def complete_calls(body: CompletionRequest, request_id: str, parts: FileParts) -> list[FrontendCall]:
    """One Complete call per prompt."""
    # Concurrent calls need different ids. The stem is cut, because the frontend would replace an id that is too long.
    stem = request_id[: _MAX_REQUEST_ID_CHARS - len(f"-{MAX_PROMPTS}")]
    options = generation_options(body, parts)
    return [
        FrontendCall(
            generation_pb2.CompleteRequest(
                model=body.model,
                text=prompt if isinstance(prompt, str) else None,
                token_ids=generation_pb2.TokenIds(ids=prompt) if isinstance(prompt, list) else None,
                options=options,
                echo=body.echo,
                add_special_tokens=body.add_special_tokens,
            ),
            request_id if len(body.prompts) == 1 else f"{stem}-{number}",
            output_mode(body.stream),
        )
        for number, prompt in enumerate(body.prompts)
    ]
