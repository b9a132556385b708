"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from triptych_gateway.schemas.common import UINT32_MAX, JsonObject, NoOp, at
from triptych_gateway.schemas.conversation import Messages
from triptych_gateway.schemas.generation import GenerationRequest
from triptych_gateway.schemas.tools import ToolChoice, Tools, chosen_names


class ChatCompletionRequest(GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    messages: Annotated[Messages, Field(description="The conversation.")]
    max_completion_tokens: Annotated[
        int | None, Field(ge=1, le=UINT32_MAX, description="Most tokens per choice. Default: up to the context length.")
    ] = None
    max_tokens: Annotated[int | None, Field(ge=1, le=UINT32_MAX, description="Older name of max_completion_tokens.")] = None
    logprobs: Annotated[bool | None, Field(description="Send the log probability of each output token.")] = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20, description="Likeliest alternatives to send per token.")] = None

    add_generation_prompt: Annotated[
        bool | None, Field(description="End the prompt with the start of an assistant turn. Default true.")
    ] = None
    continue_final_message: Annotated[bool | None, Field(description="Go on with the last message, the assistant's.")] = None
    chat_template_kwargs: Annotated[JsonObject | None, Field(description="Further variables for the chat template.")] = None
    mm_processor_kwargs: Annotated[
        JsonObject | None, Field(description="Options of the model's processor for the media of this request, e.g. fps of a video.")
    ] = None

    # Labels and hints that do not change the answer, by OpenAI's definition.
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=16, fail_fast=True)] | None,
        Field(description="Labels for stored completions; nothing is stored here."),
    ] = None
    safety_identifier: Annotated[str | None, Field(description="A label of the end user; it changes nothing here.")] = None
    prompt_cache_key: Annotated[
        str | None,
        Field(description="A routing hint. The prefix cache finds equal prompts without it; cache_salt keeps them apart."),
    ] = None
    tools: Tools | None = None
    tool_choice: Annotated[
        ToolChoice | None,
        Field(description="Whether tools are called, which one, or which are allowed. Default: auto if there are tools."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Field(description="Whether one turn may call several tools. Default true. Without tools it says nothing.")
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Field(description="How much a model that reasons does so, in the words of its chat template. Default: the model's."),
    ] = None
    thinking_token_budget: Annotated[
        int | None, Field(ge=0, le=UINT32_MAX, description="Most tokens of reasoning; then the answer begins.")
    ] = None
    include_reasoning: Annotated[bool | None, Field(description="Send the reasoning. Default true.")] = None
    service_tier: Annotated[
        Literal["auto", "default"] | None, Field(description="There is one tier; the answer names it: default.")
    ] = None

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
        """Alternatives to report per token; None reports nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _chat_options_fit_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise at("top_logprobs", "only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise at("max_tokens", f"is the older name of max_completion_tokens; given: {both[0]} and {both[1]}")
        if self.continue_final_message and self.add_generation_prompt:
            raise at("continue_final_message", "cannot be true together with add_generation_prompt")
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
