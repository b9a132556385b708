"""Conversations: OpenAI's dictionaries become messages of the contracts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from triptych.errors import InvalidRequestError
from triptych.requests.media import Kind, media_item
from triptych.requests.options import assign, json_text
from triptych.requests.types import MediaSource, Messages, Turn
from triptych.v1 import common_pb2, generation_pb2

#: Type of a part -> kind of its media.
_BY_URL: dict[str, Kind] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
_BY_SOURCE: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}
_MODES: dict[str, Any] = {"auto": "MODE_AUTO", "none": "MODE_NONE", "required": "MODE_REQUIRED"}


def chat_messages(messages: Messages, media: Sequence[tuple[Kind, MediaSource]] = ()) -> list[generation_pb2.ChatMessage]:
    """A conversation.

    Args:
        messages: a user's text, or turns: dictionaries as of OpenAI, `ChatMessage`s, and `Choice`s of earlier answers.
        media: stands before a user's text.
    """
    if isinstance(messages, str):
        items = [_media_part(kind, source, f"messages[0].content[{i}]") for i, (kind, source) in enumerate(media)]
        return [generation_pb2.ChatMessage(role="user", content=[*items, generation_pb2.ContentPart(text=messages)])]
    if media:
        raise InvalidRequestError("images, audio and videos belong to a prompt that is one string; put them into the messages")
    if isinstance(messages, Mapping | generation_pb2.ChatMessage | generation_pb2.Choice):
        messages = [messages]
    return [_message(turn, f"messages[{i}]") for i, turn in enumerate(messages)]


def _message(turn: Turn, at: str) -> generation_pb2.ChatMessage:
    if isinstance(turn, generation_pb2.ChatMessage):
        return turn
    if isinstance(turn, generation_pb2.Choice):
        return _from_choice(turn)
    if not isinstance(turn, Mapping):
        raise InvalidRequestError(f"{at} is of type {type(turn).__name__}, not a dictionary", field=at, value=type(turn).__name__)
    given = {key: value for key, value in turn.items() if value is not None}
    message = generation_pb2.ChatMessage(role=given.pop("role", ""))
    content = given.pop("content", ())
    for i, part in enumerate([content] if isinstance(content, str) else content):
        message.content.append(_part(part, f"{at}.content[{i}]"))
    assign(message, "reasoning", given.pop("reasoning", given.pop("reasoning_content", None)))
    message.tool_calls.extend(_tool_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(given.pop("tool_calls", ())))
    for name in ("name", "tool_call_id"):
        assign(message, name, given.pop(name, None))
    _refuse_rest(given, at)
    return message


def _from_choice(choice: generation_pb2.Choice) -> generation_pb2.ChatMessage:
    return generation_pb2.ChatMessage(
        role="assistant",
        content=[generation_pb2.ContentPart(text=choice.text)] if choice.text else (),
        reasoning=choice.reasoning or None,
        tool_calls=choice.tool_calls,
    )


def _part(part: Mapping[str, Any] | str | generation_pb2.ContentPart, at: str) -> generation_pb2.ContentPart:
    if isinstance(part, generation_pb2.ContentPart):
        return part
    if isinstance(part, str):
        return generation_pb2.ContentPart(text=part)
    given = {key: value for key, value in part.items() if value is not None}
    kind = given.pop("type", "text")
    if kind == "text":
        result = generation_pb2.ContentPart(text=given.pop("text", ""))
    elif kind in _BY_URL:
        result = _from_url(_BY_URL[kind], given.pop(kind, ""), at)
    elif kind == "input_audio":
        result = _from_input_audio(given.pop(kind, {}), at)
    elif kind in _BY_SOURCE:
        result = _media_part(_BY_SOURCE[kind], given.pop(kind, b""), at)
    else:
        known = ", ".join(["text", *_BY_URL, "input_audio", *_BY_SOURCE])
        raise InvalidRequestError(f"{at}.type is {kind!r}, not one of {known}", field=f"{at}.type", limit=known, value=kind)
    if kind != "text":
        for name in ("uuid", "format", "detail"):
            assign(result.media, name, given.pop(name, None))
        if (options := given.pop("processor_options", None)) is not None:
            result.media.processor_options.update(options)
    _refuse_rest(given, at)
    return result


def _media_part(kind: Kind, source: MediaSource, at: str) -> generation_pb2.ContentPart:
    return generation_pb2.ContentPart(media=media_item(kind, source, field=f"{at}.media"))


def _from_url(kind: Kind, value: str | Mapping[str, Any], at: str) -> generation_pb2.ContentPart:
    given = {"url": value} if isinstance(value, str) else dict(value)
    part = _media_part(kind, common_pb2.MediaItem(), at)
    part.media.CopyFrom(media_item(kind, b""))
    part.media.url = given.pop("url", "")
    assign(part.media, "detail", given.pop("detail", None))
    _refuse_rest(given, f"{at}.{kind}_url")
    return part


def _from_input_audio(value: Mapping[str, Any], at: str) -> generation_pb2.ContentPart:
    given = dict(value)
    try:
        data = base64.b64decode(given.pop("data", ""), validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(f"{at}.input_audio.data is not base64: {error}", field=f"{at}.input_audio.data") from error
    part = _media_part("audio", data, at)
    assign(part.media, "format", given.pop("format", None))
    _refuse_rest(given, f"{at}.input_audio")
    return part


def _tool_call(call: Mapping[str, Any] | generation_pb2.ToolCall, at: str) -> generation_pb2.ToolCall:
    if isinstance(call, generation_pb2.ToolCall):
        return call
    given = {key: value for key, value in call.items() if key not in ("type", "index")}
    function = dict(given.pop("function", {}))
    result = generation_pb2.ToolCall(id=given.pop("id", ""), name=function.pop("name", ""), arguments=function.pop("arguments", ""))
    _refuse_rest({**given, **function}, at)
    return result


def make_tools(tools: Iterable[generation_pb2.Tool | Mapping[str, Any]]) -> list[generation_pb2.Tool]:
    """Tools of the contracts; from OpenAI's `{"type": "function", "function": {...}}` too."""
    return [tool if isinstance(tool, generation_pb2.Tool) else _tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: Mapping[str, Any], at: str) -> generation_pb2.Tool:
    given = {key: value for key, value in tool.items() if key not in ("type", "function")}
    given |= {key: value for key, value in tool.get("function", {}).items() if value is not None}
    result = generation_pb2.Tool()
    for name in ("name", "description", "strict"):
        assign(result, name, given.pop(name, None))
    if (parameters := given.pop("parameters", None)) is not None:
        result.parameters_json_schema = json_text(parameters)
    _refuse_rest(given, at)
    return result


def make_tool_choice(choice: str | Mapping[str, Any] | generation_pb2.ToolChoice) -> generation_pb2.ToolChoice:
    """OpenAI's `tool_choice`: a mode, or the one function that must be called."""
    if isinstance(choice, generation_pb2.ToolChoice):
        return choice
    if isinstance(choice, Mapping):
        name = cast(Mapping[str, Any], choice.get("function", choice)).get("name", "")
        return generation_pb2.ToolChoice(mode=generation_pb2.ToolChoice.MODE_REQUIRED, allowed_names=[name])
    if choice not in _MODES:
        known = ", ".join(_MODES)
        raise InvalidRequestError(f"tool_choice is {choice!r}, not one of {known}", field="tool_choice", limit=known, value=choice)
    return generation_pb2.ToolChoice(mode=_MODES[choice])


def _refuse_rest(given: Mapping[str, Any], at: str) -> None:
    """Refuse the first key that nothing has read. None says nothing, so it is not refused."""
    for name, value in given.items():
        if value is not None:
            raise InvalidRequestError(f"{at}.{name} is not known", field=f"{at}.{name}", value=value)
