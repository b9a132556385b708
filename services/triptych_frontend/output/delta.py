"""From events to the client's deltas."""

from __future__ import annotations

from collections.abc import Iterable

from triptych_common.pb import common_pb2, generation_pb2

from triptych_frontend.output.events import Event, Stopped, Text


class DeltaBuilder:
    """Collects the new output of a choice until it is taken."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        #: Token ids and log probabilities are added to it directly. The code that adds them must set `has_news`.
        self.delta = generation_pb2.ChoiceDelta(index=index)
        self.has_news = False
        #: The stop string that ended the choice; None if none did.
        self.stop_string: str | None = None

    def add(self, events: Iterable[Event]) -> None:
        """Take events from the output chain."""
        for event in events:
            if isinstance(event, Text):
                self._text.append(event.text)
            elif isinstance(event, Stopped):
                self.stop_string = event.stop_string
            self.has_news = True

    def add_text(self, text: str) -> None:
        """Take text that is not output: the echoed prompt."""
        self._text.append(text)
        self.has_news = True

    def finish(self, reason: common_pb2.FinishReason, stop_token_id: int | None) -> common_pb2.FinishReason:
        """Set how the choice ended.

        Args:
            reason: the engine's reason. A sequence that was aborted because of a stop string is reported as stopped.
            stop_token_id: the stop token that ended the choice, if it is not one of the model's own end-of-sequence tokens.

        Returns:
            The reason for the client.
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
        """The output since the last call."""
        delta, self.delta = self.delta, generation_pb2.ChoiceDelta(index=self._index)
        delta.text = "".join(self._text)
        self._text.clear()
        self.has_news = False
        return delta
