"""Which requests may be why the executor was lost, and how that is found out."""

from __future__ import annotations

from collections.abc import Collection

from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import Request

#: A request ends that was so often in a step in which the executor was lost.
_MOST_LOSSES = 3
#: A suspect is cleared by so many new tokens: the first comes of a step with a prompt, the second of one that decodes.
_TRIAL_TOKENS = 2


class Suspects:
    """The requests of lost steps. While there are any, one of them runs at a time, and nothing else (see `PromptPolicy`)."""

    def __init__(self) -> None:
        #: Suspect -> new tokens until it is cleared.
        self.left: dict[Request, int] = {}

    def __bool__(self) -> bool:
        return bool(self.left)

    def __contains__(self, request: object) -> bool:
        return request in self.left

    def lost(self, concerned: Collection[Request]) -> list[Request]:
        """The executor was lost in a step with these requests. Returns those that are the reason, or were concerned too often."""
        if reasons := [request for request in concerned if request in self.left]:
            return reasons
        for request in concerned:
            request.num_losses += 1
            self.left[request] = _TRIAL_TOKENS
        return [request for request in concerned if request.num_losses >= _MOST_LOSSES]

    def got_tokens(self, request: Request, num_tokens: int) -> None:
        """A suspect got new tokens."""
        self.left[request] -= num_tokens
        if self.left[request] <= 0:
            del self.left[request]

    def discard(self, request: Request) -> None:
        """A request has ended."""
        self.left.pop(request, None)

    def first(self, waiting: RequestQueue) -> Request | None:
        """The suspect that is next among those that wait."""
        return min((one for one in self.left if one.request_id in waiting), key=lambda one: one.queue_key, default=None)
