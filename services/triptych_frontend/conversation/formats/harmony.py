"""The format of gpt-oss: messages with a channel and a recipient, as OpenAI's harmony library writes and reads them.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

The library is not used here: it takes only the tokens of its own vocabulary, which it fetches from the network, and ends with an
error where a model leaves the format. The tests compare with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from triptych_frontend.conversation.events import Event, Reasoning, Stopped, Text, ToolArguments
from triptych_frontend.conversation.formats.calls import CallWriter, ParserOptions
from triptych_frontend.conversation.formats.table import CallShape, ReasoningFormat, ToolFormat
from triptych_frontend.conversation.syntaxes.call_reader import CallReader
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value
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


class HarmonyParser:
    """Turns text in the format into events. Nothing of a message is lost; headers and markers are not text."""

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        self._calls = CallWriter(options, new_call_id)
        self._names = options.tools
        self._out: list[Event] = []
        self._num_tokens = 0
        self._num_reasoning_tokens = 0
        self._reasoning_start = 0
        self._is_ended = False
        self._begin_header()

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens of the analysis so far, without its header."""
        running = self._num_tokens - self._reasoning_start if self._kind is Reasoning else 0
        return self._num_reasoning_tokens + running

    def has_reasoned(self, num_tokens: int, position: int) -> bool:
        """Whether the analysis is open, and took at least so many of the output tokens up to this position."""
        return self._kind is Reasoning and self._num_reasoning_tokens + position - self._reasoning_start >= num_tokens

    def feed(self, event: Event) -> list[Event]:
        if self._is_ended:
            return []
        if not isinstance(event, Text):
            return [*self.finish(), event]
        self._num_tokens = event.num_tokens
        rest = event.text
        while rest and not self._is_ended:
            rest = self._in_header(rest) if self._kind is None else self._in_message(rest)
        return self._taken()

    def finish(self) -> list[Event]:
        if self._is_ended:
            return []
        self._is_ended = True
        if self._kind is None:
            # A header that was cut is no text.
            if not _HEADER.fullmatch(self._header):
                self._out.append(Text(self._header, self._num_tokens))
        else:
            self._say(self._held)
            self._end_message()
        return self._taken()

    def _taken(self) -> list[Event]:
        out, self._out = self._out, []
        return out

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
        elif name in self._names:
            self._enter(ToolArguments)
            self._out += self._calls.start(name)
        else:
            # Nobody offered this tool.
            self._enter(Text)
            self._say(f"{header}{_MESSAGE}")

    def _enter(self, kind: type[Reasoning | Text | ToolArguments]) -> None:
        self._kind = kind
        self._held, self._scan = "", _ENDS.scan()
        self._reasoning_start = self._num_tokens

    def _in_message(self, text: str) -> str:
        start = self._scan.position - len(self._held)
        matches = self._scan.feed(text)
        text = self._held + text
        if not matches:
            certain = len(text) - self._scan.num_held
            self._held = text[certain:]
            self._say(text[:certain])
            return ""
        first = matches[0]
        self._say(text[: first.start - start])
        self._end_message()
        self._begin_header()
        return text[first.end - start :]

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._kind is ToolArguments:
            self._out += self._calls.arguments(text)
        elif self._kind is Reasoning:
            self._out.append(Reasoning(text))
        else:
            self._out.append(Text(text, self._num_tokens))

    def _end_message(self) -> None:
        if self._kind is Reasoning:
            self._num_reasoning_tokens += max(self._num_tokens - 1 - self._reasoning_start, 0)
        elif self._kind is ToolArguments:
            events = self._calls.end()
            self._out += events
            self._is_ended = self._is_ended or any(isinstance(event, Stopped) for event in events)


class HarmonySyntax(CallSyntax):
    """A message to a function on the channel `commentary`. `HarmonyParser` reads it."""

    def reader(self, tools: Tools) -> CallReader:
        raise NotImplementedError("HarmonyParser reads whole messages")

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        head = literals(f"{_CHANNEL}commentary to={_FUNCTIONS}{tool.name} {_CONSTRAIN}json{_MESSAGE}")
        return [
            f"call_{number}: {head} arguments_{number}",
            f"arguments_{number}: {json_value(tool.parameters, tool.field)}",
        ]


#: One call per turn: the model ends with it.
TOOL_FORMAT = ToolFormat("openai", HarmonySyntax(), CallShape("", None, ""), markers=MARKERS, is_harmony=True)
REASONING_FORMAT = ReasoningFormat(
    "openai_gptoss",
    (f"{_CHANNEL}analysis{_MESSAGE}",),
    (f"{_END}{_START}assistant",),
    tokens=MARKERS,
    answer=f"{_CHANNEL}final{_MESSAGE}",
    is_harmony=True,
)
