"""Conversations: OpenAI's dictionaries become messages of the contracts."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from triptych.errors import InvalidRequestError
from triptych.requests.fields import assign, json_text, listed, refused
from triptych.requests.media import Kind, media_item
from triptych.requests.types import MediaSource, Messages, Turn
from triptych.v1 import generation_pb2

#: Type of a part -> kind of its media.
_BY_URL: dict[str, Kind] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
_BY_SOURCE: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}
#: Keys of a part that are fields of its media.
_OF_MEDIA = ("uuid", "format", "detail", "processor_options")
_MODES: dict[str, Any] = {"auto": "MODE_AUTO", "none": "MODE_NONE", "required": "MODE_REQUIRED"}


def chat_messages(messages: Messages, media: Sequence[tuple[Kind, MediaSource]] = ()) -> list[generation_pb2.ChatMessage]:
    """A conversation.

    Args:
        messages: a user's text, or turns: dictionaries as of OpenAI, `ChatMessage`s, and `Choice`s of earlier answers.
        media: stands before a user's text.
    """
    if isinstance(messages, str):
        items = [_media_part(kind, source, f"messages[0].content[{i}]") for i, (kind, source) in enumerate(media)]
        return [generation_pb2.ChatMessage(role="user", content=[*items, _text(messages, f"messages[0].content[{len(items)}]")])]
    if media:
        raise InvalidRequestError("images, audio and videos belong to a prompt that is one string; put them into the messages")
    if isinstance(messages, Mapping | generation_pb2.ChatMessage | generation_pb2.Choice):
        messages = [messages]
    return [_message(turn, f"messages[{i}]") for i, turn in enumerate(listed(messages, "messages"))]


def _message(turn: Turn, at: str) -> generation_pb2.ChatMessage:
    if isinstance(turn, generation_pb2.ChatMessage):
        return turn
    if isinstance(turn, generation_pb2.Choice):
        content = [generation_pb2.ContentPart(text=turn.text)] if turn.text else ()
        reasoning = turn.reasoning or None
        return generation_pb2.ChatMessage(role="assistant", content=content, reasoning=reasoning, tool_calls=turn.tool_calls)
    if not isinstance(turn, Mapping):
        raise InvalidRequestError(f"{at} is of type {type(turn).__name__}, not a dictionary", field=at, value=type(turn).__name__)
    given = {key: value for key, value in turn.items() if value is not None}
    message = generation_pb2.ChatMessage()
    content = given.pop("content", ())
    for i, part in enumerate([content] if isinstance(content, str) else listed(content, f"{at}.content")):
        message.content.append(_part(part, f"{at}.content[{i}]"))
    assign(message, "reasoning", given.pop("reasoning", given.pop("reasoning_content", None)), f"{at}.reasoning")
    for i, call in enumerate(listed(given.pop("tool_calls", ()), f"{at}.tool_calls")):
        message.tool_calls.append(_tool_call(call, f"{at}.tool_calls[{i}]"))
    _fill(message, given, at, "role", "name", "tool_call_id")
    return message


def _part(part: Mapping[str, Any] | str | generation_pb2.ContentPart, at: str) -> generation_pb2.ContentPart:
    if isinstance(part, generation_pb2.ContentPart):
        return part
    if isinstance(part, str):
        return _text(part, at)
    given = {key: value for key, value in _mapping(part, at).items() if value is not None}
    kind = given.pop("type", "text")
    known = ["text", *_BY_URL, "input_audio", *_BY_SOURCE]
    if kind not in known:
        message = f"{at}.type is {kind!r}, not one of {', '.join(known)}"
        raise InvalidRequestError(message, field=f"{at}.type", limit=", ".join(known), value=kind)
    if kind not in given:
        raise InvalidRequestError(f"{at}.{kind} is missing", field=f"{at}.{kind}")
    value = given.pop(kind)
    if kind == "text":
        result = _text(value, at)
    elif kind in _BY_URL:
        result = _from_url(_BY_URL[kind], value, f"{at}.{kind}")
    elif kind == "input_audio":
        result = _from_input_audio(value, at)
    else:
        result = _media_part(_BY_SOURCE[kind], value, at)
    _fill(result.media, given, at, *(() if kind == "text" else _OF_MEDIA))
    return result


def _text(text: str, at: str) -> generation_pb2.ContentPart:
    part = generation_pb2.ContentPart()
    assign(part, "text", text, f"{at}.text")
    return part


def _media_part(kind: Kind, source: MediaSource, at: str) -> generation_pb2.ContentPart:
    return generation_pb2.ContentPart(media=media_item(kind, source, field=f"{at}.media"))


def _from_url(kind: Kind, value: str | Mapping[str, Any], at: str) -> generation_pb2.ContentPart:
    given = {"url": value} if isinstance(value, str) else _mapping(value, at)
    if "url" not in given:
        raise InvalidRequestError(f"{at}.url is missing", field=f"{at}.url")
    part = generation_pb2.ContentPart(media=media_item(kind, b""))
    _fill(part.media, given, at, "url", "detail")
    return part


def _from_input_audio(value: Mapping[str, Any], at: str) -> generation_pb2.ContentPart:
    path = f"{at}.input_audio"
    given = {**_mapping(value, path)}
    try:
        data = base64.b64decode(given.pop("data", ""), validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{path}.data is not base64: {error}", field=f"{path}.data") from error
    part = _media_part("audio", data, at)
    _fill(part.media, given, path, "format")
    return part


def _tool_call(call: Mapping[str, Any] | generation_pb2.ToolCall, at: str) -> generation_pb2.ToolCall:
    if isinstance(call, generation_pb2.ToolCall):
        return call
    given = {key: value for key, value in _function_of(call, at).items() if key != "index"}
    function = {**_mapping(given.pop("function", {}), f"{at}.function")}
    result = generation_pb2.ToolCall()
    for name in ("name", "arguments"):
        assign(result, name, function.pop(name, None), f"{at}.function.{name}")
    _fill(result, given, at, "id")
    _fill(result, function, at)
    return result


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refused(at, value, "a dictionary is needed")
    return value


def _function_of(value: Any, at: str) -> dict[str, Any]:
    """A tool or a call of one, without its type. Types other than functions are refused."""
    given = {**_mapping(value, at)}
    if (kind := given.pop("type", "function")) != "function":
        message = f"{at}.type is {kind!r}; only function is known"
        raise InvalidRequestError(message, field=f"{at}.type", limit="function", value=kind)
    return given


def make_tools(tools: Iterable[generation_pb2.Tool | Mapping[str, Any]]) -> list[generation_pb2.Tool]:
    """Tools of the contracts; from OpenAI's `{"type": "function", "function": {...}}` too."""
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(listed(tools, "tools"))]


def _tool(tool: generation_pb2.Tool | Mapping[str, Any], at: str) -> generation_pb2.Tool:
    if isinstance(tool, generation_pb2.Tool):
        return tool
    given = _function_of(tool, at)
    given |= _mapping(given.pop("function", {}), f"{at}.function")
    result = generation_pb2.Tool()
    if (parameters := given.pop("parameters", None)) is not None:
        result.parameters_json_schema = json_text(parameters, f"{at}.parameters")
    _fill(result, given, at, "name", "description", "strict")
    return result


def make_tool_choice(choice: str | Mapping[str, Any] | generation_pb2.ToolChoice) -> generation_pb2.ToolChoice:
    """OpenAI's `tool_choice`: a mode, or the one function that must be called."""
    if isinstance(choice, generation_pb2.ToolChoice):
        return choice
    if isinstance(choice, Mapping):
        given = _function_of(choice, "tool_choice")
        name = _mapping(given.get("function", given), "tool_choice.function").get("name")
        result = generation_pb2.ToolChoice(mode=generation_pb2.ToolChoice.MODE_REQUIRED)
        assign(result, "allowed_names", [name], "tool_choice.function.name")
        return result
    if not isinstance(choice, str) or choice not in _MODES:
        known = ", ".join(_MODES)
        raise InvalidRequestError(f"tool_choice is {choice!r}, not one of {known}", field="tool_choice", limit=known, value=choice)
    return generation_pb2.ToolChoice(mode=_MODES[choice])


def _fill(message: Message, given: Mapping[str, Any], at: str, *names: str) -> None:
    """Set the fields of these names, and refuse the first other key. None says nothing, so it is not refused."""
    for name in names:
        assign(message, name, given.get(name), f"{at}.{name}")
    for name, value in given.items():
        if value is not None and name not in names:
            raise InvalidRequestError(f"{at}.{name} is not known", field=f"{at}.{name}", value=value)
