"""The answer of /v1/chat/completions when stream is not set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from triptych_gateway.schemas.answers import PromptLogprobs, TriptychExtension, Usage
from triptych_gateway.schemas.common import optional


class TopLogprob(BaseModel):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """An output token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of the output tokens."""

    content: list[TokenLogprob]
    refusal: None


class FunctionCall(BaseModel):
    """The function of a tool call."""

    name: str
    arguments: Annotated[str, Field(description="As the model wrote them: JSON text if it kept to the format and was not cut.")]


class ToolCall(BaseModel):
    """A tool that the model calls."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    """The message that the model generated."""

    role: Literal["assistant"]
    content: Annotated[str | None, Field(description="null if the message has only tool calls.")]
    refusal: None
    tool_calls: list[ToolCall] | None = optional("Present when the model calls tools.")
    reasoning_content: str | None = optional("Present when the model reasoned.")
    reasoning: str | None = optional("The same, by vLLM's newer name.")


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: Annotated[str | int | None, Field(description="The stop string or stop token id that ended it.")]
    token_ids: list[int] | None = optional("Present when return_token_ids is true.")


class ChatCompletion(BaseModel):
    """The answer when stream is not set."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage
    triptych: TriptychExtension
    service_tier: Literal["default"] | None = optional("Present when service_tier was given.")
    prompt_logprobs: PromptLogprobs | None = optional("Present when prompt_logprobs was given.")
