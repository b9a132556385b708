"""Converts completion requests to the contract. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from triptych.v1 import generation_pb2

from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, numbered
from triptych_gateway.wire.contract import generation_options, output_mode


def complete_calls(body: CompletionRequest, request_id: str, parts: FileParts) -> list[FrontendCall]:
    """One Complete call per prompt."""
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
                suffix=body.suffix,
            ),
            one_id,
            output_mode(body.stream),
        )
        for one_id, prompt in zip(numbered(request_id, len(body.prompts)), body.prompts, strict=True)
    ]
