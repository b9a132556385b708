"""The answer of POST /v1/chat/completions/render."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class Placeholder(BaseModel):
    """Tokens of the prompt that stand for a media item. An item may have several ranges."""

    offset: Annotated[int, Field(description="Index of the first token.")]
    length: Annotated[int, Field(description="Number of tokens.")]
    item: Annotated[int, Field(description="Which item of its modality, counted from 0.")]


class MediaFeatures(BaseModel):
    """The media of a prompt. The lists are by modality: image, audio, video."""

    mm_hashes: Annotated[dict[str, list[str]], Field(description="Keys of the encoder's cache, in hex, in the messages' order.")]
    mm_placeholders: Annotated[dict[str, list[Placeholder]], Field(description="In the order of the prompt.")]


class RenderResponse(BaseModel):
    """What the model would get: the prompt as text and tokens."""

    model: str
    prompt: Annotated[str, Field(description="The text that the chat template wrote.")]
    token_ids: Annotated[list[int], Field(description="With the placeholder tokens of media.")]
    count: Annotated[int, Field(description="Number of tokens.")]
    max_model_len: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]
    features: Annotated[MediaFeatures | None, Field(description="null if the messages have no media.")]
