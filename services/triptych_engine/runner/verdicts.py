"""What was found out about a model that generates when it was first loaded, so that it wakes without the same checks, and starts
without them the next time (verdict_file.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Verdicts:
    """Answers that stay true as long as the same model is served in the same way: which replacements of its parts compute the same,
    what its layers store, how many KV blocks there are. They hold no tensors."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def of(self, question: Hashable, find: Callable[[], T]) -> T:
        """The known answer, or else the one that `find` gives now. What raises leaves no answer."""
        if question not in self._known:
            self._known[question] = find()
        answer: T = self._known[question]
        return answer

    def add(self, answers: Mapping[Hashable, Any]) -> None:
        """Answers that were found before."""
        self._known.update(answers)

    def __contains__(self, question: Hashable) -> bool:
        return question in self._known

    def __iter__(self) -> Iterator[tuple[Hashable, Any]]:
        """All questions with their answers."""
        return iter(self._known.items())
