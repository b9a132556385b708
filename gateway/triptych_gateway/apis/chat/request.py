"""Converts chat completion requests to the contract. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from triptych.v1 import generation_pb2

from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.wire.contract import TOOL_MODES, ConvertedChat, generation_options, tool, write_prompt
from triptych_gateway.wire.field_names import conversation_fields, generation_fields
from triptych_gateway.wire.tools import AllowedToolsChoice, NamedTool, ToolChoice, chosen_names


def chat_request(body: ChatCompletionRequest, parts: FileParts) -> ConvertedChat:
    """The request, its files, and the client's names of its fields. It decodes the files, so call it in a thread if there are any.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: see `write_prompt`.
    """
    chat = generation_pb2.ChatRequest(
        model=body.model,
        options=generation_options(body, parts),
        tools=[tool(given.function, parts) for given in body.tools or ()],
    )
    files = write_prompt(chat, body, body.messages, parts)
    # Without tools these ask for nothing.
    if body.tools and body.tool_choice is not None:
        chat.tool_choice.CopyFrom(_tool_choice(body.tool_choice))
    if body.tools and body.parallel_tool_calls is not None:
        chat.parallel_tool_calls = body.parallel_tool_calls
    if body.reasoning_effort is not None:
        chat.reasoning.effort = body.reasoning_effort
    if body.thinking_token_budget is not None:
        chat.reasoning.max_tokens = body.thinking_token_budget
    names = {"reasoning.max_tokens": "thinking_token_budget"} if body.thinking_token_budget is not None else {}
    return chat, files, names | generation_fields(body, "top_logprobs") | conversation_fields(body.messages, body.tools)


def _tool_choice(given: ToolChoice) -> generation_pb2.ToolChoice:
    if isinstance(given, NamedTool):
        mode = "required"
    else:
        mode = given.allowed_tools.mode if isinstance(given, AllowedToolsChoice) else given
    return generation_pb2.ToolChoice(mode=TOOL_MODES[mode], allowed_names=[name for _, name in chosen_names(given)])
