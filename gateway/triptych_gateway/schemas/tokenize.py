"""POST /tokenize and /detokenize, in vLLM's format."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.schemas.common import JsonObject, Schema, TokenId, at
from triptych_gateway.schemas.conversation import Messages
from triptych_gateway.schemas.tools import Tools

_CHAT_ONLY = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "mm_processor_kwargs", "tools")


class TokenizeRequest(Schema):
    """A text, or messages for the model's chat template."""

    model: Annotated[str | None, Field(description="A name from /v1/models; by default the only one.")] = None
    prompt: str | None = None
    add_special_tokens: Annotated[bool | None, Field(description="Let the tokenizer add its own to the prompt. Default true.")] = (
        None
    )
    messages: Messages | None = None
    add_generation_prompt: Annotated[bool | None, Field(description="End with the start of an assistant turn. Default true.")] = (
        None
    )
    continue_final_message: Annotated[bool | None, Field(description="Leave the last message, the assistant's, open.")] = None
    chat_template_kwargs: Annotated[JsonObject | None, Field(description="Further variables for the chat template.")] = None
    mm_processor_kwargs: Annotated[JsonObject | None, Field(description="Options of the model's processor for media.")] = None
    return_token_strs: Annotated[bool | None, Field(description="Send each token's string too; not with messages.")] = None
    tools: Tools | None = None

    @model_validator(mode="after")
    def _prompt_or_messages(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise at("prompt", "send either prompt or messages")
        if self.messages is None:
            given = next((name for name in _CHAT_ONLY if getattr(self, name) is not None), None)
            if given:
                raise at(given, "only allowed with messages")
            return self
        if self.add_special_tokens:
            raise at("add_special_tokens", "not with messages: the chat template writes the special tokens itself")
        if self.return_token_strs:
            raise at("return_token_strs", "not supported with messages")
        return self


class TokenizeResponse(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Schema):
    """Token ids."""

    model: Annotated[str | None, Field(description="A name from /v1/models; by default the only one.")] = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The text."""

    prompt: str
