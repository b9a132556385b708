"""The output chain: turns output tokens into events for the client.

    detokenize -> stop strings -> reasoning and tool calls

Each stage is a small class. To add a stage, add it to `OutputChains.start`, its events to events.py, and their effect on the
client's deltas to delta.py. Nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from triptych_frontend.conversation.events import Event, Stopped, Text
from triptych_frontend.conversation.formats.calls import AnswerParser, ParserOptions
from triptych_frontend.conversation.formats.harmony import HarmonyParser
from triptych_frontend.conversation.formats.parser import FormatParser
from triptych_frontend.conversation.text_matcher import TextMatcher
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer


class Stage(Protocol):
    """One step of the chain. It passes on the events that it does not handle.

    The events of a stage, joined together, must not depend on how its input text was split.
    """

    def feed(self, event: Event) -> list[Event]:
        """Take the next event. Returns the output that is certain now. Text that may belong to a marker is held back."""
        ...

    def finish(self) -> list[Event]:
        """The sequence has ended. Returns the text that was held back."""
        ...


@dataclass(frozen=True)
class OutputOptions:
    """How the output tokens of a request become text."""

    stop: tuple[str, ...] = ()
    #: Send the stop string too.
    include_stop: bool = False
    skip_special_tokens: bool = True
    #: Tokens to generate before a stop string may end a choice.
    min_tokens: int = 0
    #: How reasoning and tool calls are told from text. None: everything is text.
    parser: ParserOptions | None = None

    @cached_property
    def stop_matcher(self) -> TextMatcher:
        """Finds the stop strings. All choices of a request share it."""
        return TextMatcher(self.stop)


class StopStrings:
    """Passes text on up to the first stop string, and holds back text that may be the beginning of a stop string.

    The stop string that ends first wins. Of those that end at the same character, the longest wins.

    Args:
        matcher: finds the stop strings.
        include_stop: pass the stop string on too.
        min_tokens: text of the first `min_tokens` tokens is passed on unchecked.
    """

    def __init__(self, matcher: TextMatcher, include_stop: bool = False, min_tokens: int = 0) -> None:
        self._scan = matcher.scan()
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._is_stopped = False

    def feed(self, event: Event) -> list[Event]:
        if self._is_stopped:
            return []
        if not isinstance(event, Text) or event.num_tokens <= self._min_tokens:
            return [event]
        self._num_tokens = event.num_tokens
        text, stop, _ = self._scan.take(event.text)
        if stop is None:
            return [Text(text, event.num_tokens)] if text else []
        self._is_stopped = True
        if self._include_stop:
            text += stop.pattern
        stopped = Stopped(stop.pattern)
        return [Text(text, event.num_tokens), stopped] if text else [stopped]

    def finish(self) -> list[Event]:
        held, self._scan.held = self._scan.held, ""
        return [Text(held, self._num_tokens)] if held else []


class OutputChain:
    """The stages of one choice.

    Args:
        parser: the stage that counts the tokens of the reasoning, if there is one.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer, stages: Sequence[Stage], parser: AnswerParser | None = None) -> None:
        self._detokenizer = detokenizer
        self._stages = stages
        self._parser = parser
        self._num_tokens = 0
        #: Characters of the choice's text so far, including those that stages hold back.
        self.num_chars = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens of the reasoning so far."""
        return self._parser.num_reasoning_tokens if self._parser is not None else 0

    def has_reasoned(self, num_tokens: int) -> bool:
        """Whether the reasoning is open, and took at least so many output tokens."""
        return self._parser is not None and self._parser.has_reasoned(num_tokens, self._num_tokens)

    def feed(self, token_id: int) -> list[Event]:
        """Take the next output token. Returns the events that became certain with it."""
        self._num_tokens += 1
        text = self._detokenizer.feed(token_id)
        if not text:
            return []
        self.num_chars += len(text)
        events: list[Event] = [Text(text, self._num_tokens)]
        for stage in self._stages:
            events = [out for event in events for out in stage.feed(event)]
        return events

    def finish(self) -> list[Event]:
        """The sequence has ended. Returns the events that were held back."""
        text = self._detokenizer.flush()
        events: list[Event] = [Text(text, self._num_tokens)] if text else []
        for stage in self._stages:
            events = [*(out for event in events for out in stage.feed(event)), *stage.finish()]
        return events


class OutputChains:
    """Makes the chains of a model, and holds what they share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_texts = tokenizer.token_texts

    def start(self, prompt_token_ids: Sequence[int], options: OutputOptions) -> OutputChain:
        """The chain of a new choice, which continues the prompt."""
        kept = self._tokenizer.special_ids_of(options.parser.table.markers) if options.parser is not None else frozenset()
        detokenizer = IncrementalDetokenizer(self._tokenizer, prompt_token_ids, options.skip_special_tokens, kept)
        stages: list[Stage] = []
        if options.stop:
            stages.append(StopStrings(options.stop_matcher, options.include_stop, options.min_tokens))
        parser: AnswerParser | None = None
        if options.parser is not None:
            parser = (HarmonyParser if options.parser.table.is_harmony else FormatParser)(options.parser)
        return OutputChain(detokenizer, [*stages, parser] if parser is not None else stages, parser)
