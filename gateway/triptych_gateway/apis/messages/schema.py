"""POST /v1/messages and /v1/messages/count_tokens: requests. Every field of Anthropic's API is declared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from triptych_common.limits import MAX_STOP_STRINGS

from triptych_gateway.apis.messages.blocks import (
    AssistantTurn,
    Cacheable,
    CacheControl,
    Messages,
    TextOrBlocks,
    ToolInput,
    ToolUseBlock,
)
from triptych_gateway.wire.schema import UINT32_MAX, JsonSchema, NoOp, Schema, at, optional, refuse

MAX_TOOLS = 1024


class Tool(Cacheable):
    """A function of the client that the model may call. Tools of Anthropic's servers are refused by name."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = optional("What the tool does, for the model.")
    input_schema: Annotated[
        JsonSchema, Field(description="JSON schema of the tool's input, an object. The order of its properties is kept.")
    ]
    strict: bool | None = optional("Constrain the input to the schema.")
    input_examples: list[ToolInput] | None = optional(
        "Examples of the input. The model sees them as `examples` of the schema.", max_length=64, fail_fast=True
    )
    eager_input_streaming: bool | None = optional("Changes nothing: the input is always streamed as it is generated.")
    defer_loading: Annotated[Any, NoOp(False, because="there is no tool search; the model sees all tools")] = None
    allowed_callers: Annotated[Any, NoOp(["direct"], because="there is no code execution")] = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_clients_own(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise refuse(f"{kind[:60]!r} is a tool of Anthropic's; only custom tools are served", "unsupported")
        return value


class _MayCallSeveral(Schema):
    disable_parallel_tool_use: bool | None = optional("Call at most one tool in a turn.")


class ToolChoiceAuto(_MayCallSeveral):
    """The model decides whether it calls tools."""

    type: Literal["auto"]


class ToolChoiceAny(_MayCallSeveral):
    """The model must call a tool."""

    type: Literal["any"]


class ToolChoiceTool(_MayCallSeveral):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str


class ToolChoiceNone(Schema):
    """The model calls no tool."""

    type: Literal["none"]


ToolChoice = Annotated[ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone, Field(discriminator="type")]


Display = Annotated[
    Literal["summarized", "omitted"] | None,
    Field(description="omitted: thinking has no text; its signature carries it. Otherwise it is sent as the model wrote it."),
]


class ThinkingEnabled(Schema):
    """The model thinks before it answers."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=UINT32_MAX, description="Most tokens of thinking; less than max_tokens.")]
    display: Display = None


class ThinkingAdaptive(Schema):
    """The model decides how much it thinks."""

    type: Literal["adaptive"]
    display: Display = None


class ThinkingDisabled(Schema):
    """The model does not think before it answers."""

    type: Literal["disabled"]


Thinking = Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")]


class JsonOutputFormat(Schema):
    """The answer is JSON of this schema."""

    type: Literal["json_schema"]
    # `schema` is a method of pydantic's models.
    json_schema: Annotated[JsonSchema, Field(alias="schema", description="The schema that the answer follows.")]


class OutputConfig(Schema):
    """Options of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = optional(
        "How much the model thinks, as far as its chat template knows this level."
    )
    format: JsonOutputFormat | None = optional("JSON of a schema. Default: text.")


class Metadata(Schema):
    """Labels of the request."""

    user_id: str | None = optional("A label of the end user; it changes nothing here.")


class PromptFields(Schema):
    """The fields that both requests have."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    messages: Annotated[
        Messages, Field(description="The conversation. If the last turn is the assistant's, the answer goes on with it.")
    ]
    system: TextOrBlocks | None = optional("Instructions before the conversation.")
    tools: list[Tool] | None = optional("Tools the model may call.", max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoice | None = optional("Whether tools are called, and which. Default auto.")
    thinking: Thinking | None = optional("Whether the model thinks. Default: as the model was made.")
    output_config: OutputConfig | None = optional("How much the model thinks, and the format of the answer.")
    output_format: JsonOutputFormat | None = optional("Older name of output_config.format.")
    cache_control: CacheControl | None = optional("Changes nothing: the prefix cache finds equal prompts by itself.")
    user_profile_id: Annotated[Any, NoOp(because="send metadata.user_id")] = None
    workspace_id: Annotated[Any, NoOp(because="there are no workspaces")] = None
    speed: Annotated[Any, NoOp("standard", because="there is one speed")] = None
    context_management: Annotated[Any, NoOp(because="send the messages that the model shall see")] = None
    mcp_servers: Annotated[Any, NoOp([], because="call the tools of MCP servers in the client")] = None

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer."""
        config = self.output_config.format if self.output_config else None
        chosen = config or self.output_format
        return chosen.json_schema if chosen else None

    @model_validator(mode="after")
    def _prompt_fits_together(self) -> Self:
        names = [tool.name for tool in self.tools or ()]
        twice = next((index for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise at(f"tools[{twice}].name", f"another tool has the name {names[twice]!r} already")
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not names:
            raise at("tool_choice", f"{choice.type!r} needs tools; there are none")
        if isinstance(choice, ToolChoiceTool) and choice.name not in names:
            raise at("tool_choice.name", f"no tool has the name {choice.name[:100]!r}")
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise at("output_format", "is the older name of output_config.format; send one of them")
        last = self.messages[-1]
        if isinstance(last, AssistantTurn) and any(isinstance(block, ToolUseBlock) for block in last.content):
            raise at(f"messages[{len(self.messages) - 1}]", "calls tools; a message with their tool_result must follow")
        return self


class CountTokensRequest(PromptFields):
    """A prompt whose tokens are counted."""


class MessagesRequest(PromptFields):
    """Anthropic's request."""

    max_tokens: Annotated[int, Field(ge=0, le=UINT32_MAX, description="Most tokens of the answer; 0 computes the prompt only.")]
    stream: bool | None = optional("Send server-sent events as the answer appears.")
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = optional(
        "Strings that end the answer; they are not sent.", max_length=MAX_STOP_STRINGS, fail_fast=True
    )
    temperature: float | None = optional("Divides the logits; 0 is greedy. Default 1.", ge=0, le=1)
    top_p: float | None = optional("Smallest set of tokens with this probability. Default 1.", gt=0, le=1)
    top_k: int | None = optional("Keep the k likeliest tokens; 0 keeps all.", ge=0, le=UINT32_MAX)
    metadata: Metadata | None = optional("Labels; they change nothing here.")

    service_tier: Annotated[Any, NoOp("auto", "standard_only", because="there is one tier")] = None
    container: Annotated[Any, NoOp(because="there is no code execution")] = None
    diagnostics: Annotated[Any, NoOp(because="usage says what the cache had")] = None
    inference_geo: Annotated[Any, NoOp(because="there is one place, where this server runs")] = None
    # Of Anthropic's beta API.
    billing_policy: Annotated[Any, NoOp(because="nothing is billed")] = None
    compaction: Annotated[Any, NoOp(because="send the messages that the model shall see")] = None
    fallback_credit_token: Annotated[Any, NoOp(because="nothing is billed")] = None
    fallbacks: Annotated[Any, NoOp(because="ask the other model in the client")] = None
    thread: Annotated[Any, NoOp(because="nothing is stored; send the whole conversation")] = None

    @property
    def shows_thinking(self) -> bool:
        """Whether thinking is sent as text."""
        return getattr(self.thinking, "display", None) != "omitted"

    @model_validator(mode="after")
    def _budget_is_less_than_the_limit(self) -> Self:
        if isinstance(self.thinking, ThinkingEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            given = f"given: {self.thinking.budget_tokens}"
            raise at("thinking.budget_tokens", f"must be less than max_tokens ({self.max_tokens}); {given}")
        return self
