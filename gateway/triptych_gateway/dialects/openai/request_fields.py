"""REST's names of the contract's fields, for errors of the frontend about a request."""

from __future__ import annotations

from triptych_gateway.dialects.media import media_fields
from triptych_gateway.schemas.chat.request import ChatCompletionRequest
from triptych_gateway.schemas.conversation import Message
from triptych_gateway.schemas.generation import GenerationRequest
from triptych_gateway.schemas.tools import Tools

#: REST has the options at the top level.
FIELD_NAMES = {
    "options": "",
    "options.include_stop_in_output": "include_stop_str_in_output",
    "options.sampling": "",
    "options.beam_search": "use_beam_search",
    "options.beam_search.width": "best_of",
    "options.beam_search.length_penalty": "length_penalty",
    "sampling": "",
    "template_kwargs": "chat_template_kwargs",
    "reasoning": "reasoning_effort",
    "reasoning.effort": "reasoning_effort",
}
#: Fields of Constraint -> fields of structured_outputs.
_STRUCTURED = {"json_schema": "json", "json_object": "json_object", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def generation_fields(body: GenerationRequest) -> dict[str, str]:
    """The names for the fields that chat and completions share."""
    constraint = "options.constraint"
    if body.structured_outputs is None:
        names = {constraint: "response_format", f"{constraint}.json_schema": "response_format.json_schema.schema"}
    else:
        names = {constraint: "structured_outputs"}
        names |= {f"{constraint}.{kind}": f"structured_outputs.{name}" for kind, name in _STRUCTURED.items()}
    return FIELD_NAMES | names


def chat_fields(body: ChatCompletionRequest) -> dict[str, str]:
    """The names for a chat request."""
    names = {"reasoning.max_tokens": "thinking_token_budget"} if body.thinking_token_budget is not None else {}
    names |= generation_fields(body)
    for sampling in ("options.sampling", "sampling"):
        names[f"{sampling}.logprobs"] = "top_logprobs"
        names[f"{sampling}.max_tokens"] = body.token_limit_name
    return names | conversation_fields(body.messages, body.tools)


def conversation_fields(messages: list[Message], tools: Tools | None) -> dict[str, str]:
    """The names for messages and tools."""
    names = media_fields(messages)
    for number, message in enumerate(messages):
        if message.thoughts is not None:
            given = "reasoning_content" if message.reasoning_content is not None else "reasoning"
            names[f"messages[{number}].reasoning"] = f"messages[{number}].{given}"
        for call in range(len(message.tool_calls or ())):
            path = f"messages[{number}].tool_calls[{call}]"
            names |= {f"{path}.{name}": f"{path}.function.{name}" for name in ("name", "arguments")}
    for number in range(len(tools or ())):
        names |= {f"tools[{number}].{name}": f"tools[{number}].function.{name}" for name in ("name", "description", "strict")}
        names[f"tools[{number}].parameters_json_schema"] = f"tools[{number}].function.parameters"
    return names
