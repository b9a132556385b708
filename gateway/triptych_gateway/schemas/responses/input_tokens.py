"""POST /v1/responses/input_tokens: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from triptych_gateway.schemas.common import NoOp, Schema, optional
from triptych_gateway.schemas.responses.items import Input
from triptych_gateway.schemas.responses.tools import ReasoningOptions, TextOptions, ToolChoice, Tools, check_tools


class InputTokensRequest(Schema):
    """The fields of a response that become its prompt, and those beside them that OpenAI takes here."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: Input | None = optional("A text of the user, or items.")
    previous_response_id: str | None = optional("The conversation up to this stored response, before the input.", max_length=128)
    instructions: str | None = optional("A system message before all items.")
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = optional("Whether one response may have several calls.")
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = optional("It is checked. A format of the text is not part of the prompt.")
    truncation: Literal["auto", "disabled"] | None = optional("auto: count what is left of a conversation that is too long.")
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
