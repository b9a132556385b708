"""POST /tokenize and /detokenize, in vLLM's format."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.schemas.common import JsonObject, Schema, TokenId, at, optional
from triptych_gateway.schemas.conversation import Messages
from triptych_gateway.schemas.tools import Tools

_CHAT_ONLY = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "mm_processor_kwargs", "tools")


class TokenizeRequest(Schema):
    """A text, or messages for the model's chat template."""

    model: str | None = optional("A name from /v1/models; by default the only one.")
    prompt: str | None = None
    add_special_tokens: bool | None = optional("Let the tokenizer add its own to the prompt. Default true.")
    messages: Messages | None = None
    add_generation_prompt: bool | None = optional("End with the start of an assistant turn. Default true.")
    continue_final_message: bool | None = optional("Leave the last message, the assistant's, open.")
    chat_template_kwargs: JsonObject | None = optional("Further variables for the chat template.")
    mm_processor_kwargs: JsonObject | None = optional("Options of the model's processor for media.")
    return_token_strs: bool | None = optional("Send each token's string too; not with messages.")
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

    model: str | None = optional("A name from /v1/models; by default the only one.")
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The text."""

    prompt: str
