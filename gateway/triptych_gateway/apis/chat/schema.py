"""POST /v1/chat/completions and its /render: requests and answers."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.wire.conversation import ChatPrompt, Messages
from triptych_gateway.wire.cost import TriptychExtension, Usage
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.logprobs import PromptLogprobs
from triptych_gateway.wire.schema import UINT32_MAX, NoOp, at, optional
from triptych_gateway.wire.tools import ToolChoice, Tools, chosen_names


class ChatCompletionRequest(ChatPrompt, GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    messages: Annotated[Messages, Field(description="The conversation.")]
    max_completion_tokens: int | None = optional("Most tokens per choice. Default: up to the context length.", ge=1, le=UINT32_MAX)
    max_tokens: int | None = optional("Older name of max_completion_tokens.", ge=1, le=UINT32_MAX)
    logprobs: bool | None = optional("Send the log probability of each output token.")
    top_logprobs: int | None = optional("Likeliest alternatives to send per token.", ge=0, le=20)

    # Labels and hints that do not change the answer, by OpenAI's definition.
    metadata: Annotated[dict[str, str], Field(max_length=16, fail_fast=True)] | None = optional(
        "Labels for stored completions; nothing is stored here."
    )
    safety_identifier: str | None = optional("A label of the end user; it changes nothing here.")
    tools: Tools | None = None
    tool_choice: ToolChoice | None = optional(
        "Whether tools are called, which one, or which are allowed. Default: auto if there are tools."
    )
    parallel_tool_calls: bool | None = optional(
        "Whether one turn may call several tools. Default true. Without tools it says nothing."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = optional(
        "How much a model that reasons does so, in the words of its chat template. Default: the model's."
    )
    thinking_token_budget: int | None = optional("Most tokens of reasoning; then the answer begins.", ge=0, le=UINT32_MAX)
    include_reasoning: bool | None = optional("Send the reasoning. Default true.")
    service_tier: Literal["auto", "default"] | None = optional("There is one tier; the answer names it: default.")

    audio: Annotated[Any, NoOp()] = None
    function_call: Annotated[Any, NoOp("none", because="deprecated; send tool_choice")] = None
    functions: Annotated[Any, NoOp([], because="deprecated; send tools")] = None
    modalities: Annotated[Any, NoOp(["text"])] = None
    moderation: Annotated[Any, NoOp()] = None
    prediction: Annotated[Any, NoOp(because="it would change nothing but the speed")] = None
    prompt_cache_options: Annotated[Any, NoOp(because="the prefix cache finds equal prompts by itself")] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    store: Annotated[Any, NoOp(False)] = None
    verbosity: Annotated[Any, NoOp("medium")] = None
    web_search_options: Annotated[Any, NoOp()] = None
    # Of vLLM.
    add_special_tokens: Annotated[Any, NoOp(False, because="the chat template writes the special tokens")] = None
    chat_template: Annotated[Any, NoOp(because="the model's template is used; chat_template_kwargs are its variables")] = None
    documents: Annotated[Any, NoOp([], because="send chat_template_kwargs.documents")] = None
    echo: Annotated[Any, NoOp(False)] = None
    media_io_kwargs: Annotated[Any, NoOp({}, because="send mm_processor_kwargs")] = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def token_limit_name(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _chat_options_fit_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise at("top_logprobs", "only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise at("max_tokens", f"is the older name of max_completion_tokens; given: {both[0]} and {both[1]}")
        self.check_end()
        return self

    @model_validator(mode="after")
    def _tools_fit_together(self) -> Self:
        names = Counter(tool.function.name for tool in self.tools or ())
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise at("tools", f"two tools have the name {twice[:60]!r}")
        if not names and self.tool_choice not in (None, "none"):
            raise at("tool_choice", "only allowed with tools")
        for place, name in chosen_names(self.tool_choice):
            if name not in names:
                raise at(f"tool_choice.{place}", f"no tool has the name {name[:60]!r}; there are: {', '.join(names)[:200]}")
        return self


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
