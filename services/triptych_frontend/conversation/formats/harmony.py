"""The format of gpt-oss: messages with a channel and a recipient, as OpenAI's harmony library writes and reads them.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

The library is not used here: it takes only the tokens of its own vocabulary, which it fetches from the network, and ends with an
error where a model leaves the format. The tests compare with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from triptych_frontend.conversation.events import Reasoning, Text, ToolArguments
from triptych_frontend.conversation.formats.calls import AnswerParser, ParserOptions
from triptych_frontend.conversation.formats.table import CallShape, ReasoningFormat, ToolFormat
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallRules, Literals, json_call_rules
from triptych_frontend.conversation.text_matcher import TextMatcher

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _RETURN, _CALL)
#: How a header may begin. Anything else is text without a header.
_HEADER_STARTS = (_START, _CHANNEL, _MESSAGE, " to=", "to=", "assistant")
#: The recipient may stand behind the role or behind the channel.
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")
_FUNCTIONS = "functions."
_MAX_HEADER_CHARS = 256
#: A header, or its beginning.
_HEADER = re.compile(
    rf"({re.escape(_START)}\w*)?\w*( ?to=\S*)?\s*"
    rf"({re.escape(_CHANNEL)}\s*\w*( ?to=[^\s<]*)?\s*)?({re.escape(_CONSTRAIN)})?\w*(<[|\w]*)?"
)
#: What ends a message.
_ENDS = TextMatcher((_END, _RETURN, _CALL))


class HarmonyParser(AnswerParser):
    """Turns text in the format into events. Nothing of a message is lost; headers and markers are not text."""

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        super().__init__(options, new_call_id)
        self._begin_header()

    @property
    def _is_reasoning(self) -> bool:
        return self._kind is Reasoning

    def _read(self, text: str) -> str:
        return self._in_header(text) if self._kind is None else self._in_message(text)

    def _finish(self) -> None:
        if self._kind is not None:
            self._say(self._scan.held)
            self._end_message()
        elif not _HEADER.fullmatch(self._header):  # a header that was cut is no text
            self._out.append(Text(self._header, self._num_tokens))

    def _begin_header(self) -> None:
        self._header = ""
        #: What the message's text becomes; None inside of a header.
        self._kind: type[Reasoning | Text | ToolArguments] | None = None

    def _in_header(self, text: str) -> str:
        for position, char in enumerate(text, start=1):
            header = self._header = self._header + char
            if header.endswith(_MESSAGE):
                self._begin_message(header.removesuffix(_MESSAGE))
                return text[position:]
            is_header = header.startswith(_HEADER_STARTS) or any(start.startswith(header) for start in _HEADER_STARTS)
            if not is_header or char == "\n" or len(header) > _MAX_HEADER_CHARS:
                self._enter(Text)
                self._say(header)
                return text[position:]
        return ""

    def _begin_message(self, header: str) -> None:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL_NAME.search(header)
        name = recipient[1].removeprefix(_FUNCTIONS) if recipient is not None else None
        if name is None:
            is_reasoning = channel is not None and channel[1] == "analysis"
            self._enter(Reasoning if is_reasoning else Text)
        elif name in self._tools:
            self._enter(ToolArguments)
            self._begin_call(name)
        else:
            # Nobody offered this tool.
            self._enter(Text)
            self._say(f"{header}{_MESSAGE}")

    def _enter(self, kind: type[Reasoning | Text | ToolArguments]) -> None:
        self._kind = kind
        self._scan = _ENDS.scan()
        self._reasoning_start = self._num_tokens

    def _in_message(self, text: str) -> str:
        certain, end, rest = self._scan.take(text)
        self._say(certain)
        if end is not None:
            self._end_message()
            self._begin_header()
        return rest

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._kind is ToolArguments:
            self._add_arguments(text)
        elif self._kind is Reasoning:
            self._out.append(Reasoning(text))
        else:
            self._out.append(Text(text, self._num_tokens))

    def _end_message(self) -> None:
        if self._kind is Reasoning:
            self._end_reasoning()
        elif self._kind is ToolArguments:
            self._end_call()


class HarmonyRules(CallRules):
    """A message to a function on the channel `commentary`. `HarmonyParser` reads it."""

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        head = literals(f"{_CHANNEL}commentary to={_FUNCTIONS}{tool.name} {_CONSTRAIN}json{_MESSAGE}")
        return json_call_rules(number, tool, head)


#: One call per turn: the model ends with it.
TOOL_FORMAT = ToolFormat("openai", HarmonyRules(), CallShape("", None, ""), markers=MARKERS, is_harmony=True)
REASONING_FORMAT = ReasoningFormat(
    "openai_gptoss",
    (f"{_CHANNEL}analysis{_MESSAGE}",),
    (f"{_END}{_START}assistant",),
    tokens=MARKERS,
    answer=f"{_CHANNEL}final{_MESSAGE}",
    is_harmony=True,
)
