"""The responses of a stream, merged into the one response that the unary call gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from triptych.v1 import generation_pb2

_TEXT = generation_pb2.ChoiceDelta.DESCRIPTOR.fields_by_name["text"]


@dataclass(slots=True)
class _ToolCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    """One choice so far. Text is kept in pieces: joined after each delta, its cost would grow with the square of its length."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict)
    #: Token ids, log probabilities, finish reason and what stopped it.
    rest: generation_pb2.Choice = field(default_factory=generation_pb2.Choice)

    def add(self, delta: generation_pb2.ChoiceDelta) -> None:
        for descriptor, value in delta.ListFields():
            if descriptor is _TEXT:  # nearly always, so this is fast
                self.text.append(value)
                continue
            name = descriptor.name
            if name == "reasoning":
                self.reasoning.append(value)
            elif name == "tool_call":
                call = self.tool_calls.setdefault(value.index, _ToolCall())
                call.id, call.name = call.id or value.id, call.name or value.name
                call.arguments.append(value.arguments)
            elif name in ("token_ids", "logprobs", "prompt_logprobs"):
                getattr(self.rest, name).extend(value)
            elif name in ("finish_reason", "stop_text", "stop_token_id"):
                setattr(self.rest, name, value)

    def merged(self, index: int) -> generation_pb2.Choice:
        choice = generation_pb2.Choice(index=index, text="".join(self.text), reasoning="".join(self.reasoning))
        for _, call in sorted(self.tool_calls.items()):
            choice.tool_calls.add(id=call.id, name=call.name, arguments="".join(call.arguments))
        choice.MergeFrom(self.rest)
        return choice


class _Accumulator:
    """What the accumulators of chats and completions share."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._request_id = self._model = ""
        self._last: generation_pb2.ChatStreamResponse | generation_pb2.CompleteStreamResponse | None = None

    def _add(self, response: generation_pb2.ChatStreamResponse | generation_pb2.CompleteStreamResponse) -> None:
        for delta in response.choices:
            choice = self._choices.get(delta.index)
            if choice is None:
                choice = self._choices[delta.index] = _Choice()
            choice.add(delta)
        if not self._request_id:
            self._request_id, self._model = response.request_id, response.model
        if response.HasField("usage") or response.HasField("timings"):
            self._last = response

    def _fill(self, response: generation_pb2.ChatResponse | generation_pb2.CompleteResponse) -> None:
        response.request_id, response.model = self._request_id, self._model
        response.choices.extend(choice.merged(index) for index, choice in sorted(self._choices.items()))
        if self._last is not None and self._last.HasField("usage"):
            response.usage.CopyFrom(self._last.usage)
        if self._last is not None and self._last.HasField("timings"):
            response.timings.CopyFrom(self._last.timings)


class ChatAccumulator(_Accumulator):
    """Merges the responses of `ChatStream`.

    Choices are merged by index. Pieces of text and reasoning are joined. Tool calls are merged by their index: id and name are
    those of the first piece that has them, the pieces of arguments are joined. Token ids and log probabilities are appended.
    """

    def __init__(self) -> None:
        super().__init__()
        self._media: list[generation_pb2.MediaReport] = []

    def add(self, response: generation_pb2.ChatStreamResponse) -> None:
        """Take the next response of the stream."""
        self._add(response)
        if response.media:
            self._media.extend(response.media)

    @property
    def response(self) -> generation_pb2.ChatResponse:
        """What has come so far, as a new message. A choice whose `finish_reason` is unspecified has not ended."""
        response = generation_pb2.ChatResponse(media=self._media)
        self._fill(response)
        return response


class CompleteAccumulator(_Accumulator):
    """Merges the responses of `CompleteStream`, as `ChatAccumulator` does those of `ChatStream`."""

    def add(self, response: generation_pb2.CompleteStreamResponse) -> None:
        """Take the next response of the stream."""
        self._add(response)

    @property
    def response(self) -> generation_pb2.CompleteResponse:
        """What has come so far, as a new message. A choice whose `finish_reason` is unspecified has not ended."""
        response = generation_pb2.CompleteResponse()
        self._fill(response)
        return response
