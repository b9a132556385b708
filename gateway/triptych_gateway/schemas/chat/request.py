"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from triptych_gateway.schemas.common import UINT32_MAX, JsonObject, NoOp, at, optional
from triptych_gateway.schemas.conversation import Messages
from triptych_gateway.schemas.generation import GenerationRequest
from triptych_gateway.schemas.tools import ToolChoice, Tools, chosen_names


class ChatCompletionRequest(GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    messages: Annotated[Messages, Field(description="The conversation.")]
    max_completion_tokens: int | None = optional("Most tokens per choice. Default: up to the context length.", ge=1, le=UINT32_MAX)
    max_tokens: int | None = optional("Older name of max_completion_tokens.", ge=1, le=UINT32_MAX)
    logprobs: bool | None = optional("Send the log probability of each output token.")
    top_logprobs: int | None = optional("Likeliest alternatives to send per token.", ge=0, le=20)

    add_generation_prompt: bool | None = optional("End the prompt with the start of an assistant turn. Default true.")
    continue_final_message: bool | None = optional("Go on with the last message, the assistant's.")
    chat_template_kwargs: JsonObject | None = optional("Further variables for the chat template.")
    mm_processor_kwargs: JsonObject | None = optional(
        "Options of the model's processor for the media of this request, e.g. fps of a video."
    )

    # Labels and hints that do not change the answer, by OpenAI's definition.
    metadata: Annotated[dict[str, str], Field(max_length=16, fail_fast=True)] | None = optional(
        "Labels for stored completions; nothing is stored here."
    )
    safety_identifier: str | None = optional("A label of the end user; it changes nothing here.")
    prompt_cache_key: str | None = optional(
        "A routing hint. The prefix cache finds equal prompts without it; cache_salt keeps them apart."
    )
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
