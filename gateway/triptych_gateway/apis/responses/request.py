"""Converts a request of /v1/responses to a call of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

from triptych_gateway.apis.file_inputs import FileLoader
from triptych_gateway.apis.responses.items import AnyItem
from triptych_gateway.apis.responses.messages import ConversationWriter, file_inputs, has_media
from triptych_gateway.apis.responses.schema import (
    ResponseAllowedTools,
    ResponseRequest,
    ResponseToolName,
    TextFormat,
    TextJsonObject,
    TextJsonSchema,
    ToolChoice,
)
from triptych_gateway.file_parts import FileParts
from triptych_gateway.wire.contract import TOOL_MODES, ConvertedChat, check_all_taken, generation_options, tool
from triptych_gateway.wire.field_names import generation_fields

#: The contract's field -> the client's field.
_FIELD_NAMES = {
    "messages": "input",
    "reasoning": "reasoning",
    "reasoning.effort": "reasoning.effort",
}
_FORMAT_NAMES = {"options.constraint": "text.format", "options.constraint.json_schema": "text.format.schema"}


async def convert(
    body: ResponseRequest, items: Sequence[AnyItem], history: Sequence[AnyItem], parts: FileParts, loader: FileLoader
) -> ConvertedChat:
    """`chat_request`, in a thread where that takes long.

    Args:
        loader: reads the files that the items name.
    """
    if inputs := file_inputs(history, items):
        await loader.load(inputs, parts)
    if has_media(history):  # its files are not in the body
        return await asyncio.to_thread(chat_request, body, items, history, parts)
    return await parts.run(lambda: chat_request(body, items, history, parts))


def chat_request(body: ResponseRequest, items: Sequence[AnyItem], history: Sequence[AnyItem], parts: FileParts) -> ConvertedChat:
    """The request, its files, and the client's names of its fields.

    Args:
        items: the request's own, without references.
        history: the items before them.

    Raises:
        InvalidRequestError: a file or an opaque item cannot be decoded.
    """
    chat = generation_pb2.ChatRequest(
        model=body.model,
        options=generation_options(body, parts),
        tools=[tool(given, parts) for given in body.tools or ()],
        parallel_tool_calls=body.parallel_tool_calls if body.tools else None,
        drop_oldest_messages=body.truncation == "auto" or None,
    )
    writer = ConversationWriter(chat, parts, body.mm_processor_kwargs)
    writer.write(body.instructions, history, items)
    if not chat.messages:
        raise InvalidRequestError("input: at least one item is needed", field="input")
    if body.mm_processor_kwargs and not any(part.HasField("media") for message in chat.messages for part in message.content):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the input", field=field)
    if body.chat_template_kwargs is not None:
        chat.template_kwargs.CopyFrom(to_struct(body.chat_template_kwargs))
    if body.tools and body.tool_choice is not None:
        chat.tool_choice.CopyFrom(_tool_choice(body.tool_choice))
    if (constraint := _constraint(body.text.format if body.text is not None else None, parts)) is not None:
        chat.options.constraint.CopyFrom(constraint)
    if body.reasoning is not None and body.reasoning.effort is not None:
        chat.reasoning.effort = body.reasoning.effort
    check_all_taken(parts)
    return chat, writer.files, _names(body, writer.names)


def _constraint(format_: TextFormat | None, parts: FileParts) -> common_pb2.Constraint | None:
    if isinstance(format_, TextJsonObject):
        return common_pb2.Constraint(json_object=True)
    if isinstance(format_, TextJsonSchema):
        return common_pb2.Constraint(json_schema=parts.json_text(format_.schema_))
    return None


def _tool_choice(choice: ToolChoice) -> generation_pb2.ToolChoice:
    if isinstance(choice, ResponseToolName):
        return generation_pb2.ToolChoice(mode=TOOL_MODES["required"], allowed_names=[choice.name])
    if isinstance(choice, ResponseAllowedTools):
        names = [allowed.name for allowed in choice.tools]
        return generation_pb2.ToolChoice(mode=TOOL_MODES[choice.mode or "auto"], allowed_names=names)
    return generation_pb2.ToolChoice(mode=TOOL_MODES[choice])


def _names(body: ResponseRequest, paths: Mapping[str, str]) -> dict[str, str]:
    names = generation_fields(body, "top_logprobs") | _FIELD_NAMES
    if body.structured_outputs is None:
        names |= _FORMAT_NAMES
    for number, given in enumerate(body.tools or ()):
        if given.parameters is not None:
            names[f"tools[{number}].parameters_json_schema"] = f"tools[{number}].parameters"
    names |= paths
    if isinstance(body.input, str):
        names = {path: "input" if name.startswith("input[") else name for path, name in names.items()}
    return names
