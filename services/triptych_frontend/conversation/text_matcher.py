"""Finds strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a pattern. `start` and `end` count characters from the beginning of the text."""

    pattern: str
    start: int
    end: int


class TextMatcher:
    """Finds every occurrence of several patterns, in linear time. It is immutable, so scans of many texts may share it.

    It is an Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", 1975). Its state after each character represents
    the longest suffix of the text that begins a pattern. So its matches do not depend on how the text is split into pieces.

    Args:
        patterns: the strings to find; none may be empty.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        # State 0 is the root: no suffix of the text begins a pattern.
        self.children: list[dict[str, int]] = [{}]
        #: state -> length of the suffix that it represents
        self.depth = [0]
        #: state -> patterns that end here, longest first
        self.found: list[tuple[str, ...]] = [()]
        for pattern in patterns:
            self._insert(pattern)
        #: state -> state of the next shorter suffix that begins a pattern
        self.fail = [0] * len(self.depth)
        self._link()

    def scan(self) -> TextScan:
        """Start to scan one text."""
        return TextScan(self)

    def _insert(self, pattern: str) -> None:
        state = 0
        for char in pattern:
            if char not in self.children[state]:
                self.children[state][char] = len(self.depth)
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(())
            state = self.children[state][char]
        self.found[state] = (pattern,)

    def _link(self) -> None:
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.children[state].items():
                fallback = self.fail[state]
                while fallback and char not in self.children[fallback]:
                    fallback = self.fail[fallback]
                self.fail[child] = self.children[fallback].get(char, 0)
                # Patterns that are suffixes of this state's text also end here.
                self.found[child] += self.found[self.fail[child]]
                queue.append(child)


class TextScan:
    """The scan of one text, in pieces.

    Example:
        >>> scan = TextMatcher(["END"]).scan()
        >>> scan.feed("the E"), scan.num_held, scan.feed("ND of it")
        ([], 1, [Match(pattern='END', start=4, end=7)])
    """

    def __init__(self, matcher: TextMatcher) -> None:
        self._matcher = matcher
        self._state = 0
        #: Number of characters so far.
        self.position = 0
        #: What `take` held back.
        self.held = ""

    @property
    def num_held(self) -> int:
        """Number of last characters that may begin a pattern that is not complete yet."""
        return self._matcher.depth[self._state]

    def feed(self, text: str) -> list[Match]:
        """Take more text. Returns the matches that end in it, ordered by their end, and the longest first for the same end."""
        children, fail, found = self._matcher.children, self._matcher.fail, self._matcher.found
        state, matches = self._state, []
        for end, char in enumerate(text, start=self.position + 1):
            while state and char not in children[state]:
                state = fail[state]
            state = children[state].get(char, 0)
            if found[state]:
                matches += [Match(pattern, end - len(pattern), end) for pattern in found[state]]
        self._state = state
        self.position += len(text)
        return matches

    def take(self, text: str) -> tuple[str, Match | None, str]:
        """Take more text. Returns the text that is certain, the first match behind it if there is one, and the text behind that.

        What may begin a pattern is held back until more text shows whether it does. After a match, nothing more can be taken.
        """
        start = self.position - len(self.held)
        matches = self.feed(text)
        text = self.held + text
        if not matches:
            num_certain = len(text) - self.num_held
            self.held = text[num_certain:]
            return text[:num_certain], None, ""
        first, self.held = matches[0], ""
        return text[: first.start - start], first, text[first.end - start :]
