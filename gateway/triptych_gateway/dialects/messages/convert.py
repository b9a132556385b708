"""Converts validated Messages requests to the contract's ChatRequest. Sets only what the client set."""

from __future__ import annotations

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.dialects.conversation import check_all_taken
from triptych_gateway.dialects.fields import FieldNames
from triptych_gateway.dialects.messages.conversation import ConversationWriter
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.schemas.messages.blocks import AssistantTurn
from triptych_gateway.schemas.messages.request import MessagesRequest, PromptFields, ThinkingDisabled, ThinkingEnabled
from triptych_gateway.schemas.messages.tools import ToolChoiceNone, ToolChoiceTool

_FIELD_NAMES = {
    "options": "",
    "options.sampling": "",
    "sampling": "",
    "options.stop": "stop_sequences",
    "options.constraint": "output_config.format",
    "options.constraint.json_schema": "output_config.format.schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning": "thinking",
    "reasoning.max_tokens": "thinking.budget_tokens",
    "continue_final_message": "messages",
}
_MODES = {
    "auto": generation_pb2.ToolChoice.MODE_AUTO,
    "any": generation_pb2.ToolChoice.MODE_REQUIRED,
    "tool": generation_pb2.ToolChoice.MODE_REQUIRED,
    "none": generation_pb2.ToolChoice.MODE_NONE,
}


def chat_request(body: PromptFields, parts: FileParts) -> tuple[generation_pb2.ChatRequest, list[MediaFile], FieldNames]:
    """The prompt as a ChatRequest, its files, and the client's names of the contract's fields.

    Args:
        parts: files that were cut out of the body.

    Raises:
        InvalidRequestError: see ConversationWriter; or a file was cut out of a place that takes none.
    """
    chat = generation_pb2.ChatRequest(model=body.model)
    writer = ConversationWriter(chat, parts)
    if body.system is not None:
        writer.write_system(body.system)
    for index, message in enumerate(body.messages):
        writer.write(message, f"messages[{index}]")
    if isinstance(body.messages[-1], AssistantTurn):
        chat.continue_final_message = True
    names = _FIELD_NAMES | writer.names | _write_tools(chat, body, parts) | _write_reasoning(chat, body)
    if body.answer_schema is not None:
        chat.options.constraint.json_schema = parts.json_text(body.answer_schema)
    check_all_taken(parts)
    return chat, writer.files, names


def set_options(chat: generation_pb2.ChatRequest, body: MessagesRequest) -> None:
    """Write the options of generation."""
    chat.options.sampling.MergeFrom(
        common_pb2.SamplingParams(max_tokens=body.max_tokens, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)
    )
    chat.options.stop.extend(body.stop_sequences or ())
    # Anthropic's clients must send max_tokens, and send large values. There, the context ends the answer.
    chat.options.clamp_max_tokens = True


def _write_tools(chat: generation_pb2.ChatRequest, body: PromptFields, parts: FileParts) -> dict[str, str]:
    names = {}
    for index, tool in enumerate(body.tools or ()):
        # `examples` is JSON schema's own keyword for what Anthropic has beside the schema.
        schema = tool.input_schema if tool.input_examples is None else tool.input_schema | {"examples": tool.input_examples}
        chat.tools.add(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=parts.json_text(schema),
            strict=tool.strict,
        )
        names[f"tools[{index}].parameters_json_schema"] = f"tools[{index}].input_schema"
    choice = body.tool_choice
    if choice is None:
        return names
    chat.tool_choice.mode = _MODES[choice.type]
    if isinstance(choice, ToolChoiceTool):
        chat.tool_choice.allowed_names.append(choice.name)
    if not isinstance(choice, ToolChoiceNone) and choice.disable_parallel_tool_use is not None:
        chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    return names


def _write_reasoning(chat: generation_pb2.ChatRequest, body: PromptFields) -> dict[str, str]:
    effort = body.output_config.effort if body.output_config else None
    if effort is not None:
        chat.reasoning.effort = effort
    if isinstance(body.thinking, ThinkingEnabled):
        chat.reasoning.max_tokens = body.thinking.budget_tokens
    elif isinstance(body.thinking, ThinkingDisabled):
        # The level is about thinking. Without thinking there is nothing left for it to say.
        chat.reasoning.effort = "none"
        return {"reasoning.effort": "thinking"}
    return {"reasoning.effort": "output_config.effort"} | ({"reasoning": "output_config.effort"} if body.thinking is None else {})
