"""Finding stop strings in text that arrives in pieces.

An Aho-Corasick automaton over all stop strings (Aho and Corasick, "Efficient string matching", 1975): its state after each
character is the longest suffix of the text so far that begins a stop string. That suffix is what must be held back, and where
a stop string ends does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopAutomaton:
    """Trie of the stop strings with failure links; state 0 is the root. Never changes: matchers of many texts may share it.

    Args:
        stops: the stop strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        #: state -> length of the suffix that it stands for.
        self.depth = [0]
        #: state -> longest stop string that ends here; empty when none does.
        self.match = [""]
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self.depth)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._children[state]:
                self._children[state][char] = len(self.depth)
                self._children.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append("")
            state = self._children[state][char]
        self.match[state] = stop

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._children[state].items():
                self._fail[child] = self.step(self._fail[state], char)
                # A stop string that is a suffix of this state ends here as well; the state's own is longer.
                self.match[child] = self.match[child] or self.match[self._fail[child]]
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._children[state]:
            state = self._fail[state]
        return self._children[state].get(char, 0)


class StopStringMatcher:
    """Passes text on up to the first stop string, and never a character that might belong to one.

    Of several stop strings the one that ends first counts; of those that end together, the longest.

    Args:
        automaton: of the stop strings.
        include_stop: pass the matched stop string on, too.

    Example:
        >>> matcher = StopStringMatcher(StopAutomaton(["END"]))
        >>> matcher.feed("the E"), matcher.feed("ND of it"), matcher.matched
        ('the ', '', 'END')
    """

    def __init__(self, automaton: StopAutomaton, include_stop: bool = False) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        #: The stop string that was found; None as long as none was.
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take more text; returns what is certain to stand before any stop string. After a match returns nothing more."""
        if self.matched is not None:
            return ""
        automaton, state = self._automaton, self._state
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            state = automaton.step(state, char)
            if stop := automaton.match[state]:
                self.matched, self._held = stop, ""
                return buffer[:end] if self._include_stop else buffer[: end - len(stop)]
        self._state = state
        certain = len(buffer) - automaton.depth[state]
        self._held = buffer[certain:]
        return buffer[:certain]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held, self._state = self._held, "", 0
        return held
