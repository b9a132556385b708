"""How many bytes of media files live calls may hold together: a burst of uploads is refused, not the process killed."""

from __future__ import annotations

from triptych_common.rpc.errors import InvalidRequestError, QueueFullError

_RETRY_AFTER_S = 1.0


class MediaBudget:
    """Counts bytes. For the event loop alone.

    Args:
        max_bytes: of all calls together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0

    def hold(self) -> MediaHold:
        """The share of one call, of nothing so far."""
        return MediaHold(self)


class MediaHold:
    """What one call holds of the budget; whoever made it releases it."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def take(self, num_bytes: int, field: str) -> None:
        """Hold more bytes.

        Args:
            field: whose bytes they are, for errors.

        Raises:
            InvalidRequestError: the call alone wants more than there is for all.
            QueueFullError: other calls hold the rest.
        """
        limit, wanted = self._budget.max_bytes, self._num_bytes + num_bytes
        if wanted > limit:
            message = f"{field}: the media of one request may have at most {limit} bytes together (max_live_media_bytes)"
            raise InvalidRequestError(message, field=field, limit=limit, value=wanted)
        if self._budget.used_bytes + num_bytes > limit:
            message = f"{field}: the media of live requests take {self._budget.used_bytes} of {limit} bytes (max_live_media_bytes)"
            raise QueueFullError(message, field=field, limit=limit, value=wanted, retry_after_s=_RETRY_AFTER_S)
        self._num_bytes = wanted
        self._budget.used_bytes += num_bytes

    def release(self) -> None:
        """Give everything back. May be called twice."""
        self._budget.used_bytes -= self._num_bytes
        self._num_bytes = 0
