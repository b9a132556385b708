"""The stage that ends a choice at a stop string."""

from __future__ import annotations

from triptych_frontend.conversation.events import Event, Stopped, Text
from triptych_frontend.conversation.text_matcher import TextMatcher


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
