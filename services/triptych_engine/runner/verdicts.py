"""What was found out about a model that generates when it was first loaded, so that it wakes without the same checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Verdicts:
    """Answers that stay true as long as this process serves the same model: which replacements of its parts compute the same, what
    its layers store, how many KV blocks there are. They hold no tensors."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def of(self, question: Hashable, find: Callable[[], T]) -> T:
        """The known answer, or else the one that `find` gives now. What raises leaves no answer."""
        if question not in self._known:
            self._known[question] = find()
        answer: T = self._known[question]
        return answer

    def __contains__(self, question: Hashable) -> bool:
        return question in self._known
