"""POST /v1/responses/input_tokens: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.schemas.common import NoOp, Schema
from triptych_gateway.schemas.responses.items import Input
from triptych_gateway.schemas.responses.tools import ReasoningOptions, TextOptions, ToolChoice, Tools, check_tools


class InputTokensRequest(Schema):
    """The fields of a response that become its prompt, and those beside them that OpenAI takes here."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: Annotated[Input | None, Field(description="A text of the user, or items.")] = None
    previous_response_id: Annotated[
        str | None, Field(max_length=128, description="The conversation up to this stored response, before the input.")
    ] = None
    instructions: Annotated[str | None, Field(description="A system message before all items.")] = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Annotated[bool | None, Field(description="Whether one response may have several calls.")] = None
    reasoning: ReasoningOptions | None = None
    text: Annotated[TextOptions | None, Field(description="It is checked. A format of the text is not part of the prompt.")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, Field(description="auto: count what is left of a conversation that is too long.")
    ] = None
    conversation: Annotated[Any, NoOp(because="send previous_response_id")] = None
    personality: Annotated[Any, NoOp(because="send instructions")] = None

    @model_validator(mode="after")
    def _tools_fit_together(self) -> Self:
        check_tools(self.tools, self.tool_choice)
        return self


class InputTokens(BaseModel):
    """The number of tokens of the prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
