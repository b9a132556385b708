"""Converts a request of /v1/responses to a call of the contract."""

from __future__ import annotations

from collections.abc import Mapping

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.dialects.conversation import check_all_taken, template_kwargs
from triptych_gateway.dialects.convert import generation_options, sampling_params
from triptych_gateway.dialects.openai.request_fields import generation_fields
from triptych_gateway.dialects.responses.context import Context
from triptych_gateway.dialects.responses.messages import Conversation
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.schemas.responses.request import ResponseRequest
from triptych_gateway.schemas.responses.tools import (
    ResponseAllowedTools,
    ResponseTool,
    ResponseToolName,
    TextFormat,
    TextJsonObject,
    TextJsonSchema,
)

_Choice = generation_pb2.ToolChoice
_MODES = {"auto": _Choice.MODE_AUTO, "none": _Choice.MODE_NONE, "required": _Choice.MODE_REQUIRED}
#: The contract's field -> the client's field.
_FIELD_NAMES = {
    "messages": "input",
    "reasoning": "reasoning",
    "reasoning.effort": "reasoning.effort",
}
_FORMAT_NAMES = {"options.constraint": "text.format", "options.constraint.json_schema": "text.format.schema"}


def chat_call(
    body: ResponseRequest, request_id: str, context: Context, files: FileParts, is_streamed: bool
) -> tuple[FrontendCall, Mapping[str, str]]:
    """The call, and the client's names of its fields. It decodes files, so call it in a thread if there are media.

    Args:
        is_streamed: whether text is needed as it appears.

    Raises:
        InvalidRequestError: a file or an opaque item cannot be decoded.
    """
    talk = Conversation(files, body.mm_processor_kwargs)
    if body.instructions:
        talk.instruct(body.instructions)
    talk.add_all(context.history, None)
    talk.add_all(context.items, "input")
    messages = talk.finish()
    if not messages:
        raise InvalidRequestError("input: at least one item is needed", field="input")
    if body.mm_processor_kwargs and not any(part.HasField("media") for message in messages for part in message.content):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the input", field=field)
    chat = generation_pb2.ChatRequest(
        model=body.model,
        messages=messages,
        options=_options(body, files),
        template_kwargs=template_kwargs(body.chat_template_kwargs),
        tools=[_tool(tool, files) for tool in body.tools or ()],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls if body.tools else None,
        drop_oldest_messages=body.truncation == "auto" or None,
    )
    check_all_taken(files)
    if body.reasoning is not None and body.reasoning.effort is not None:
        chat.reasoning.effort = body.reasoning.effort
    mode = generation_pb2.OUTPUT_MODE_DELTA if is_streamed else generation_pb2.OUTPUT_MODE_FINAL
    # Messages are copied into the request; find the items of the files again.
    placed = [MediaFile(chat.messages[number].content[index].media, content) for (number, index), content in talk.files.items()]
    return FrontendCall(chat, request_id, mode, placed), _names(body, talk.names)


def _options(body: ResponseRequest, files: FileParts) -> generation_pb2.GenerationOptions:
    options = generation_options(body, sampling_params(body, body.max_output_tokens, body.num_logprobs), files)
    constraint = _constraint(body.text.format if body.text is not None else None, files)
    if constraint is not None:
        options.constraint.CopyFrom(constraint)
    return options


def _constraint(format_: TextFormat | None, files: FileParts) -> common_pb2.Constraint | None:
    if isinstance(format_, TextJsonObject):
        return common_pb2.Constraint(json_object=True)
    if isinstance(format_, TextJsonSchema):
        return common_pb2.Constraint(json_schema=files.json_text(format_.schema_))
    return None


def _tool(tool: ResponseTool, files: FileParts) -> generation_pb2.Tool:
    schema = None if tool.parameters is None else files.json_text(tool.parameters)
    return generation_pb2.Tool(name=tool.name, description=tool.description, parameters_json_schema=schema, strict=tool.strict)


def _tool_choice(body: ResponseRequest) -> generation_pb2.ToolChoice | None:
    choice = body.tool_choice
    if choice is None or not body.tools:
        return None
    if isinstance(choice, ResponseToolName):
        return _Choice(mode=_Choice.MODE_REQUIRED, allowed_names=[choice.name])
    if isinstance(choice, ResponseAllowedTools):
        return _Choice(mode=_MODES[choice.mode or "auto"], allowed_names=[tool.name for tool in choice.tools])
    return _Choice(mode=_MODES[choice])


def _names(body: ResponseRequest, paths: Mapping[str, str]) -> dict[str, str]:
    names = generation_fields(body) | _FIELD_NAMES
    if body.structured_outputs is None:
        names |= _FORMAT_NAMES
    for number, tool in enumerate(body.tools or ()):
        if tool.parameters is not None:
            names[f"tools[{number}].parameters_json_schema"] = f"tools[{number}].parameters"
    for sampling in ("options.sampling", "sampling"):
        names[f"{sampling}.logprobs"] = "top_logprobs"
        names[f"{sampling}.max_tokens"] = "max_output_tokens"
    names |= paths
    if isinstance(body.input, str):
        names = {path: "input" if name.startswith("input[") else name for path, name in names.items()}
    return names
