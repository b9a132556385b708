"""From events to the client's deltas, and log probabilities in the client's form: with the texts of the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from triptych.v1 import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.conversation.events import Event, Reasoning, Stopped, Text, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.tokens.token_text import TokenTexts


class DeltaBuilder:
    """Collects the new output of a choice until it is taken. A delta is of one kind, so a change of the kind begins a new one."""

    def __init__(self, index: int) -> None:
        self._index = index
        #: Text at the end of the output.
        self._text: list[str] = []
        #: Deltas before that text, the kind of the last one, and its pieces, which are joined at its end.
        self._before: list[generation_pb2.ChoiceDelta] = []
        self._kind = ""
        self._pieces: list[str] = []
        #: Token ids and log probabilities are added to it directly. The code that adds them must set `has_news`.
        self.delta = generation_pb2.ChoiceDelta(index=index)
        self.has_news = False
        #: The choice needs no more tokens.
        self.has_stopped = False
        self._stop_string: str | None = None
        #: Tool calls so far; and whether all of them can be made.
        self._num_calls, self._are_complete = 0, True

    def add(self, events: Iterable[Event]) -> None:
        """Take events from the output chain."""
        for event in events:
            if isinstance(event, Text):
                self._text.append(event.text)
            elif isinstance(event, Stopped):
                self.has_stopped, self._stop_string = True, event.stop_string
            else:
                self._add_other(event)
            self.has_news = True

    def add_text(self, text: str) -> None:
        """Take text that is not output: the echoed prompt."""
        self._text.append(text)
        self.has_news = True

    def _add_other(self, event: Reasoning | ToolCallStarted | ToolArguments | ToolCallEnded) -> None:
        if isinstance(event, ToolCallEnded):
            if not event.is_complete:
                self._are_complete = False
                call = generation_pb2.ToolCallDelta(index=event.index, incomplete=True)
                self._begin("incomplete", generation_pb2.ChoiceDelta(index=self._index, tool_call=call))
            return
        if self._text:
            self._begin("text", generation_pb2.ChoiceDelta(index=self._index, text="".join(self._text)))
            self._text.clear()
        if isinstance(event, ToolCallStarted):
            self._num_calls += 1
            call = generation_pb2.ToolCallDelta(index=event.index, id=event.call_id, name=event.name)
            self._begin("arguments", generation_pb2.ChoiceDelta(index=self._index, tool_call=call))
            return
        if isinstance(event, Reasoning):
            if self._kind != "reasoning":
                self._begin("reasoning", generation_pb2.ChoiceDelta(index=self._index))
        elif self._kind != "arguments":
            call = generation_pb2.ToolCallDelta(index=event.index)
            self._begin("arguments", generation_pb2.ChoiceDelta(index=self._index, tool_call=call))
        self._pieces.append(event.text)

    def _begin(self, kind: str, delta: generation_pb2.ChoiceDelta) -> None:
        """Begin a delta before the text at the end. The one before it is complete."""
        self._complete()
        self._before.append(delta)
        self._kind = kind

    def _complete(self) -> None:
        if self._pieces:
            last = self._before[-1]
            setattr(last if self._kind == "reasoning" else last.tool_call, self._kind, "".join(self._pieces))
            self._pieces.clear()
        self._kind = ""

    def finish(self, reason: common_pb2.FinishReason, stop_token_id: int | None) -> common_pb2.FinishReason:
        """Set how the choice ended. This is the one place that decides it, because here all is known.

        Args:
            reason: the engine's reason. A sequence that was aborted because the choice had stopped is reported as stopped. One that
                stopped, and whose tool calls can all be made, ended with them.
            stop_token_id: the stop token that ended the choice, if it is not one of the model's own end-of-sequence tokens.

        Returns:
            The reason for the client.
        """
        self.has_news = True
        if self.has_stopped:
            reason = common_pb2.FINISH_REASON_STOP
            if self._stop_string is not None:
                self.delta.stop_text = self._stop_string
        elif stop_token_id is not None:
            self.delta.stop_token_id = stop_token_id
        if reason == common_pb2.FINISH_REASON_STOP and self._num_calls and self._are_complete:
            reason = common_pb2.FINISH_REASON_TOOL_CALLS
        self.delta.finish_reason = reason
        return reason

    def take(self) -> list[generation_pb2.ChoiceDelta]:
        """The output since the last call: at least one delta. The last has the new tokens, and how the choice ended."""
        delta, self.delta = self.delta, generation_pb2.ChoiceDelta(index=self._index)
        self.has_news = False
        if not self._before:
            delta.text = "".join(self._text)
            self._text.clear()
            return [delta]
        self._complete()
        before, self._before = self._before, []
        if self._text:
            delta.text = "".join(self._text)
            self._text.clear()
        else:
            delta.MergeFrom(before.pop())
        if before and delta.HasField("prompt_tokens"):
            before[0].prompt_tokens = delta.prompt_tokens
            delta.ClearField("prompt_tokens")
        return [*before, delta]


def token_logprob(logprobs: engine_pb2.TokenLogprobs, texts: TokenTexts, text_offset: int) -> generation_pb2.TokenLogprob:
    """The log probabilities of one position, in the client's form.

    Args:
        text_offset: where the token's text starts in the choice's text, in characters.
    """
    text, data = texts.get(logprobs.token_id)
    top = []
    for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        top_text, top_data = texts.get(token_id)
        top.append(generation_pb2.TopLogprob(token_id=token_id, token=top_text, utf8=top_data, logprob=logprob))
    return generation_pb2.TokenLogprob(
        token_id=logprobs.token_id,
        token=text,
        utf8=data,
        logprob=logprobs.logprob,
        top=top,
        text_offset=text_offset,
        rank=logprobs.rank,
    )


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[engine_pb2.TokenLogprobs], offsets: Sequence[int], texts: TokenTexts
) -> Iterator[generation_pb2.TokenLogprob]:
    """The log probabilities of a prompt. Its first token has none, because nothing precedes it.

    Args:
        logprobs: entry i describes prompt token i + 1.
        offsets: where each prompt token's text starts, in characters.
    """
    text, data = texts.get(token_ids[0])
    yield generation_pb2.TokenLogprob(token_id=token_ids[0], token=text, utf8=data, text_offset=offsets[0])
    for entry, offset in zip(logprobs, offsets[1:], strict=True):
        yield token_logprob(entry, texts, offset)
