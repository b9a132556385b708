"""POST /v1/responses, its /compact and /input_tokens: requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from triptych_gateway.apis.responses.items import Input
from triptych_gateway.wire.generation import GenerationRequest, StreamOptions
from triptych_gateway.wire.schema import UINT32_MAX, JsonObject, JsonSchema, Metadata, NoOp, Schema, at, optional, refuse
from triptych_gateway.wire.tools import FunctionDefinition

MAX_TOOLS = 512
_NAME = r"^[a-zA-Z0-9_.-]+$"
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=_NAME)]


def _is_function(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "function":
        raise refuse(f"tools of type {value['type'][:40]!r} are not served; only functions are", "unsupported")
    return value


class ResponseTool(FunctionDefinition):
    """A function that the model may call. The client runs it."""

    type: Literal["function"]
    name: ToolName
    allowed_callers: Annotated[Any, NoOp(["direct"])] = None
    defer_loading: Annotated[Any, NoOp(False)] = None
    output_schema: Annotated[Any, NoOp()] = None


Tools = Annotated[list[Annotated[ResponseTool, BeforeValidator(_is_function)]], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ResponseToolName(Schema):
    """The name of a function."""

    type: Literal["function"]
    name: ToolName


Named = Annotated[ResponseToolName, BeforeValidator(_is_function)]


class ResponseAllowedTools(Schema):
    """The tools that may be called, out of all that the model sees."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] | None = optional("Default auto.")
    tools: Annotated[list[Named], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


def _choice_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "mode" if isinstance(value, str) else getattr(value, "type", "mode")
    given = value.get("type")
    return given if isinstance(given, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[ResponseToolName, Tag("function")]
    | Annotated[ResponseAllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_kind),
]


def check_tools(tools: list[ResponseTool] | None, choice: ToolChoice | None) -> None:
    """Raise an error if names of tools repeat, or if the choice names a tool that is not there."""
    names = [tool.name for tool in tools or ()]
    if len(set(names)) < len(names):
        raise at("tools", "two tools have the same name")
    wanted: list[ResponseToolName] = []
    if isinstance(choice, ResponseAllowedTools):
        wanted = list(choice.tools)
    elif isinstance(choice, ResponseToolName):
        wanted = [choice]
    missing = next((tool.name for tool in wanted if tool.name not in names), None)
    if missing is not None:
        raise at("tool_choice", f"there is no tool {missing!r} in tools")
    if choice == "required" and not names:
        raise at("tool_choice", "required needs tools")


class TextPlain(Schema):
    """Any text."""

    type: Literal["text"]


class TextJsonObject(Schema):
    """Any JSON object."""

    type: Literal["json_object"]


class TextJsonSchema(Schema):
    """JSON of a schema. The text always keeps to it, whether `strict` is set or not."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


TextFormat = Annotated[TextPlain | TextJsonObject | TextJsonSchema, Field(discriminator="type")]


class TextOptions(Schema):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, NoOp("medium")] = None


class ReasoningOptions(Schema):
    """Options of reasoning."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = optional(
        "As the model's chat template knows it."
    )
    summary: Literal["auto", "detailed"] | None = optional("Send the whole reasoning as its summary instead of as its content.")
    generate_summary: Literal["auto", "detailed"] | None = optional("Older name of summary.")
    context: Annotated[Any, NoOp("auto")] = None
    mode: Annotated[Any, NoOp("standard")] = None


LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
#: All but LOGPROBS and ENCRYPTED_REASONING are about items that this server always sends whole, or never makes.
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ConversationFields(Schema):
    """A conversation: the input, and what it continues."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: Input | None = optional("A text of the user, or items.")
    instructions: str | None = optional("A system message before all items. Responses that continue this one do not take it over.")
    previous_response_id: str | None = optional("The conversation up to this stored response, before the input.", max_length=128)

    def needs_input(self) -> None:
        """Raise an error if there is nothing to answer."""
        if self.input is None and self.previous_response_id is None:
            raise at("input", "this field is required, unless previous_response_id is given")


class PromptFields(ConversationFields):
    """The fields of a response that become its prompt, and those beside them that OpenAI counts with it."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = optional("Whether one response may have several calls.")
    text: TextOptions | None = optional("The format of the text. It is not part of the prompt.")
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = optional("auto leaves out the oldest turns where all are too long.")
    conversation: Annotated[Any, NoOp(because="send previous_response_id")] = None

    @model_validator(mode="after")
    def _tools_fit_together(self) -> Self:
        check_tools(self.tools, self.tool_choice)
        return self


class CompactRequest(ConversationFields):
    """A conversation that shall become shorter."""

    prompt_cache_key: str | None = optional("A label; it changes nothing.", max_length=512)
    image: Annotated[Any, NoOp()] = None
    prompt_cache_options: Annotated[Any, NoOp()] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    service_tier: Annotated[Any, NoOp("auto", "default")] = None

    @model_validator(mode="after")
    def _something_to_compact(self) -> Self:
        self.needs_input()
        return self


class InputTokensRequest(PromptFields):
    """A prompt whose tokens are counted."""

    personality: Annotated[Any, NoOp(because="send instructions")] = None


class InputTokens(BaseModel):
    """The number of tokens of the prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseStreamOptions(StreamOptions):
    """Options of a streamed answer."""

    include_usage: Annotated[Any, NoOp(because="the last event always has the usage")] = None
    continuous_usage_stats: Annotated[Any, NoOp(False)] = None


class ResponseRequest(PromptFields, GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    store: bool | None = optional("Keep the response. Default true.")
    background: bool | None = optional("Answer at once and work on; needs store.")
    stream_options: ResponseStreamOptions | None = None

    max_output_tokens: int | None = optional("Most tokens, reasoning included.", ge=1, le=UINT32_MAX)
    max_tool_calls: int | None = optional("About tools that the server runs; here are none.", ge=1, le=1024)
    top_logprobs: int | None = optional("Likeliest alternatives to send per token.", ge=0, le=20)
    include: Annotated[list[Include], Field(max_length=16, fail_fast=True)] | None = None

    metadata: Metadata | None = optional("Labels that are kept with the response.")
    client_metadata: JsonObject | None = optional("Labels of the client, such as the Codex CLI's. They change nothing.")
    safety_identifier: str | None = optional("A label of the end user.", max_length=512)
    chat_template_kwargs: JsonObject | None = optional("Further variables for the chat template.")
    mm_processor_kwargs: JsonObject | None = optional("Options of the model's processor for all media.")

    n: Annotated[Any, NoOp(1)] = None
    best_of: Annotated[Any, NoOp(1)] = None
    use_beam_search: Annotated[Any, NoOp(False)] = None
    length_penalty: Annotated[Any, NoOp(1)] = None
    prompt_logprobs: Annotated[Any, NoOp()] = None
    return_token_ids: Annotated[Any, NoOp(False)] = None
    response_format: Annotated[Any, NoOp(because="send text.format")] = None
    access_programs: Annotated[Any, NoOp()] = None
    context_management: Annotated[Any, NoOp([])] = None
    image: Annotated[Any, NoOp()] = None
    moderation: Annotated[Any, NoOp()] = None
    prompt: Annotated[Any, NoOp()] = None
    prompt_cache_options: Annotated[Any, NoOp()] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    service_tier: Annotated[Any, NoOp("auto", "default")] = None

    @property
    def token_limit(self) -> int | None:
        return self.max_output_tokens

    @property
    def token_limit_name(self) -> str:
        return "max_output_tokens"

    @property
    def include_usage(self) -> bool:
        return False

    @property
    def num_logprobs(self) -> int | None:
        wants = LOGPROBS in (self.include or ()) or self.top_logprobs
        return (self.top_logprobs or 0) if wants else None

    @property
    def summarizes(self) -> bool:
        """Whether reasoning is sent as a summary."""
        return self.reasoning is not None and bool(self.reasoning.summary or self.reasoning.generate_summary)

    @model_validator(mode="after")
    def _response_options_fit_together(self) -> Self:
        if self.background and self.store is False:
            raise at("background", "needs store, because its result is only in the store")
        self.needs_input()
        if self.truncation == "auto" and self.truncate_prompt_tokens is not None:
            raise at("truncation", "cannot be auto together with truncate_prompt_tokens")
        if self.structured_outputs is not None and self.text is not None and self.text.format is not None:
            raise at("structured_outputs", "cannot be sent together with text.format; both constrain the output")
        return self
