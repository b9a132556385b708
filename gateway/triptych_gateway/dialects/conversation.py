"""Converts conversations to the contract's messages, and tools and constraints to the contract's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

from triptych_gateway.dialects.media import media_item
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.schemas.conversation import MediaPart, Message, TextPart, has_media
from triptych_gateway.schemas.structured import ResponseFormat, StructuredOutputs
from triptych_gateway.schemas.tools import AllowedToolsChoice, NamedTool, ToolChoice, Tools, chosen_names

_TOOL_MODES = {
    "auto": generation_pb2.ToolChoice.MODE_AUTO,
    "none": generation_pb2.ToolChoice.MODE_NONE,
    "required": generation_pb2.ToolChoice.MODE_REQUIRED,
}


#: (index of the message, index of the part) -> content of the file.
Files = dict[tuple[int, int], bytes]


def placed(chat: generation_pb2.ChatRequest, files: Files) -> list[MediaFile]:
    """The files, each with its MediaItem in the request."""
    return [MediaFile(chat.messages[number].content[index].media, content) for (number, index), content in files.items()]


def template_kwargs(value: dict[str, Any] | None) -> struct_pb2.Struct | None:
    """Variables of the chat template as a Struct."""
    return None if value is None else to_struct(value)


def chat_messages(
    messages: Sequence[Message], parts: FileParts, mm_processor_kwargs: dict[str, Any] | None = None
) -> tuple[list[generation_pb2.ChatMessage], Files]:
    """The messages of a conversation, and their inline files.

    Args:
        parts: files that were cut out of the body.
    """
    if mm_processor_kwargs and not has_media(messages):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the messages", field=field)
    files: Files = {}
    turns = []
    for number, message in enumerate(messages):
        pieces = []
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, MediaPart):
                item, file = media_item(part, f"messages[{number}].content[{index}]", parts, mm_processor_kwargs)
                pieces.append(generation_pb2.ContentPart(media=item))
                if file is not None:
                    files[number, index] = file
            else:
                pieces.append(generation_pb2.ContentPart(text=part.text if isinstance(part, TextPart) else part.refusal))
        if isinstance(message.content, str) and (message.content or not message.refusal):
            pieces.append(generation_pb2.ContentPart(text=message.content))
        if message.refusal:
            pieces.append(generation_pb2.ContentPart(text=message.refusal))
        turns.append(_turn(message, pieces))
    return turns, files


def check_all_taken(parts: FileParts) -> None:
    """Raise InvalidRequestError if a file of the body was not used."""
    if parts:
        raise InvalidRequestError("the body has the address of a file in a place that takes none")


def _turn(message: Message, content: list[generation_pb2.ContentPart]) -> generation_pb2.ChatMessage:
    return generation_pb2.ChatMessage(
        role=message.role,
        content=content,
        name=message.name,
        reasoning=message.thoughts,
        tool_calls=[
            generation_pb2.ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ],
        tool_call_id=message.tool_call_id,
    )


def tools(given: Tools | None, parts: FileParts) -> list[generation_pb2.Tool]:
    """The tools of a request."""
    return [
        generation_pb2.Tool(
            name=tool.function.name,
            description=tool.function.description,
            parameters_json_schema=None if tool.function.parameters is None else parts.json_text(tool.function.parameters),
            strict=tool.function.strict,
        )
        for tool in given or ()
    ]


def tool_choice(given: ToolChoice | None) -> generation_pb2.ToolChoice | None:
    """Whether and which tools are called; None if the client did not say."""
    if given is None:
        return None
    if isinstance(given, NamedTool):
        mode = "required"
    else:
        mode = given.allowed_tools.mode if isinstance(given, AllowedToolsChoice) else given
    return generation_pb2.ToolChoice(mode=_TOOL_MODES[mode], allowed_names=[name for _, name in chosen_names(given)])


def constraint(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None, parts: FileParts
) -> common_pb2.Constraint | None:
    """The constraint on the output; None if there is none. At most one of the two constrains it."""
    if structured is not None:
        return _structured(structured, parts)
    if response_format is None or response_format.type == "text":
        return None
    if response_format.json_schema is None:
        return common_pb2.Constraint(json_object=True)
    return common_pb2.Constraint(json_schema=parts.json_text(response_format.json_schema.json_schema))


def _structured(given: StructuredOutputs, parts: FileParts) -> common_pb2.Constraint:
    if given.json_ is not None:
        return common_pb2.Constraint(json_schema=given.json_ if isinstance(given.json_, str) else parts.json_text(given.json_))
    if given.choice is not None:
        return common_pb2.Constraint(choice=common_pb2.StringList(values=given.choice))
    return common_pb2.Constraint(regex=given.regex, grammar=given.grammar, json_object=given.json_object or None)
