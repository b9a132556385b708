"""Finds out what a chat template shows, by rendering short conversations with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jinja2
from triptych.v1 import common_pb2

from triptych_frontend.conversation.normalise import TemplateTraits
from triptych_frontend.conversation.tools import FunctionTool
from triptych_frontend.media.item import MODALITY_NAMES

_PROBE, _OTHER = "triptych probe", "triptych second probe"
_TOOL_NAME, _VALUE = "triptych_probe_tool", "triptych probe value"
PROBE_TOOLS = [FunctionTool(_TOOL_NAME, _PROBE, {"type": "object", "properties": {}}, strict=False).as_openai()]
_Message = dict[str, Any]


class Apply(Protocol):
    """Renders messages, with tools in OpenAI's form."""

    def __call__(self, messages: list[_Message], tools: list[dict[str, Any]] | None = None) -> str: ...


class TemplateProbes:
    """Probes one template.

    Raises (all methods):
        jinja2.TemplateSyntaxError: the template has a syntax error.
    """

    def __init__(self, apply: Apply) -> None:
        self._apply = apply
        #: Content is a list of parts and not a string. Most templates take a string; multimodal ones take parts.
        text, parts = ({"role": "user", "content": content} for content in (_PROBE, [{"type": "text", "text": _PROBE}]))
        self.takes_parts = not self._shows([text], _PROBE) and self._shows([parts], _PROBE)
        self._user, self._system, self._assistant = map(self._text_turn, ("user", "system", "assistant"))

    def traits(self) -> TemplateTraits:
        """What the template shows of a conversation."""
        user, assistant = self._text_turn("user", "x"), self._text_turn("assistant", "x")
        first, second = self._system, self._text_turn("system", _OTHER)
        developer = self._text_turn("developer", _OTHER)
        return TemplateTraits(
            system=self._shows([first, user], _PROBE),
            developer=self._shows([developer, user], _OTHER),
            developer_after_system=self._shows([first, developer, user], _PROBE, _OTHER),
            second_system=self._shows([first, second, user], _PROBE, _OTHER),
            later_system=self._shows([first, user, assistant, second, user], _PROBE, _OTHER),
            arguments_are_objects=self._shows_call({"triptych": _VALUE}) or not self._shows_call(f'{{"triptych": "{_VALUE}"}}'),
        )

    def shows_media(self, placeholders: Mapping[common_pb2.Modality, str]) -> bool:
        """Whether the template prints the placeholder of a media part together with text."""
        for modality, placeholder in placeholders.items():
            parts = [{"type": MODALITY_NAMES[modality]}, {"type": "text", "text": _PROBE}]
            if self._shows([{"role": "user", "content": parts}], placeholder, _PROBE):
                return True
        return False

    def shows_tools(self) -> bool:
        """Whether the template prints the name of a tool."""
        conversations = ([self._user], [self._system, self._user])
        return any(self._shows(messages, _TOOL_NAME, tools=PROBE_TOOLS) for messages in conversations)

    def shows_tool_calls(self) -> bool:
        """Whether the template prints the name of a tool that the assistant called."""
        forms: tuple[Any, ...] = ({}, "{}")
        return any(self._shows(messages, _TOOL_NAME) for arguments in forms for messages in self._calls(arguments))

    def turn_markers(self) -> str:
        """A short rendered conversation. It shows the tokens with which the template marks turns."""
        user, assistant = self._user, self._assistant
        conversations = ([self._system, user, assistant, user], [user, assistant, user], [user])  # some accept no system turn
        return next((rendered for messages in conversations if (rendered := self._render(messages))), "")

    def _shows_call(self, arguments: Any) -> bool:
        return any(self._shows(messages, _TOOL_NAME, _VALUE) for messages in self._calls(arguments))

    def _calls(self, arguments: Any) -> list[list[_Message]]:
        """Conversations with a tool call. Some templates want a result or a further turn behind it."""
        user, function = self._user, {"name": _TOOL_NAME, "arguments": arguments}
        call = self._assistant | {"content": "", "tool_calls": [{"type": "function", "id": "probe0001", "function": function}]}
        turns = [user, call, user | {"role": "tool", "name": _TOOL_NAME, "tool_call_id": "probe0001"}]
        return [turns, [*turns, user], [self._system, *turns], [user, call]]

    def _text_turn(self, role: str, text: str = _PROBE) -> _Message:
        return {"role": role, "content": [{"type": "text", "text": text}] if self.takes_parts else text}

    def _shows(self, messages: list[_Message], *texts: str, tools: list[dict[str, Any]] | None = None) -> bool:
        rendered = self._render(messages, tools)
        return all(text in rendered for text in texts)

    def _render(self, messages: list[_Message], tools: list[dict[str, Any]] | None = None) -> str:
        """The rendered conversation; empty if the template refused it."""
        try:
            return self._apply(messages, tools)
        except jinja2.TemplateSyntaxError:
            raise
        except Exception:  # a template is code, and may raise anything
            return ""
