"""From events to what the client is sent."""

from __future__ import annotations

from collections.abc import Iterable

from triptych_common.pb import common_pb2, generation_pb2

from triptych_frontend.output.events import Event, Stopped, Text


class DeltaBuilder:
    """Collects what is new in a choice until it is taken."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        #: Token ids and log probabilities are added to it directly; whoever does so sets `has_news`.
        self.delta = generation_pb2.ChoiceDelta(index=index)
        self.has_news = False
        #: The stop string that ended the choice; None as long as none did.
        self.stop_string: str | None = None

    def add(self, events: Iterable[Event]) -> None:
        """Take what the output chain gave out."""
        for event in events:
            if isinstance(event, Text):
                self._text.append(event.text)
            elif isinstance(event, Stopped):
                self.stop_string = event.stop_string
            self.has_news = True

    def add_text(self, text: str) -> None:
        """Take text that is no output: the echoed prompt's."""
        self._text.append(text)
        self.has_news = True

    def finish(self, reason: common_pb2.FinishReason, stop_token_id: int | None) -> common_pb2.FinishReason:
        """Say how the choice ended.

        Args:
            reason: the engine's. A sequence that was aborted at a stop string was stopped.
            stop_token_id: what ended it, if that was none of the model's own end-of-sequence tokens.

        Returns:
            The reason as the client is told.
        """
        self.has_news = True
        if self.stop_string is not None:
            reason = common_pb2.FINISH_REASON_STOP
            self.delta.stop_text = self.stop_string
        elif stop_token_id is not None:
            self.delta.stop_token_id = stop_token_id
        self.delta.finish_reason = reason
        return reason

    def take(self) -> generation_pb2.ChoiceDelta:
        """What was collected since the last call."""
        delta, self.delta = self.delta, generation_pb2.ChoiceDelta(index=self._index)
        delta.text = "".join(self._text)
        self._text.clear()
        self.has_news = False
        return delta
