"""The responses of a stream, merged into the one response that the unary call gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from triptych.v1 import generation_pb2

_TEXT = generation_pb2.ChoiceDelta.DESCRIPTOR.fields_by_name["text"]


@dataclass(slots=True)
class _ToolCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    incomplete: bool = False


@dataclass(slots=True)
class _Choice:
    """One choice so far. Text is kept in pieces: joined after each delta, its cost would grow with the square of its length."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict)
    #: Token ids, log probabilities, finish reason and what stopped it.
    rest: generation_pb2.Choice = field(default_factory=generation_pb2.Choice)

    def add(self, fields: Sequence[tuple[FieldDescriptor, Any]]) -> None:
        """Take the fields that a delta has."""
        for descriptor, value in fields:
            name = descriptor.name
            if name == "text":
                self.text.append(value)
            elif name == "reasoning":
                self.reasoning.append(value)
            elif name == "tool_call":
                call = self.tool_calls.setdefault(value.index, _ToolCall())
                call.id, call.name = call.id or value.id, call.name or value.name
                call.arguments.append(value.arguments)
                call.incomplete = value.incomplete
            elif name in ("token_ids", "logprobs", "prompt_logprobs"):
                getattr(self.rest, name).extend(value)
            elif name in ("finish_reason", "stop_text", "stop_token_id"):
                setattr(self.rest, name, value)

    def merged(self, index: int) -> generation_pb2.Choice:
        choice = generation_pb2.Choice(index=index, text="".join(self.text), reasoning="".join(self.reasoning))
        for _, call in sorted(self.tool_calls.items()):
            arguments = "".join(call.arguments)
            choice.tool_calls.add(id=call.id, name=call.name, arguments=arguments, incomplete=call.incomplete)
        choice.MergeFrom(self.rest)
        return choice


def merged_choices(deltas: Iterable[generation_pb2.ChoiceDelta]) -> list[generation_pb2.Choice]:
    """The choices that deltas add up to, by index."""
    choices: defaultdict[int, _Choice] = defaultdict(_Choice)
    for delta in deltas:
        choices[delta.index].add(delta.ListFields())
    return [choice.merged(index) for index, choice in sorted(choices.items())]


StreamResponseT = TypeVar("StreamResponseT", generation_pb2.ChatStreamResponse, generation_pb2.CompleteStreamResponse)
ResponseT = TypeVar("ResponseT", generation_pb2.ChatResponse, generation_pb2.CompleteResponse)


class Accumulator(Generic[StreamResponseT, ResponseT]):
    """What the accumulators of chats and completions share."""

    _response_type: type[ResponseT]

    def __init__(self) -> None:
        self._choices: defaultdict[int, _Choice] = defaultdict(_Choice)
        #: All but the choices.
        self._rest: ResponseT = self._response_type()
        self._has_id = False

    def add(self, response: StreamResponseT) -> None:
        """Take the next response of the stream."""
        for delta in response.choices:
            fields = delta.ListFields()
            if len(fields) == 1 and fields[0][0] is _TEXT:  # text of choice 0 alone, as nearly always: this has to be fast
                self._choices[0].text.append(fields[0][1])
            else:
                self._choices[delta.index].add(fields)
        if not self._has_id:
            self._rest.request_id, self._rest.model = response.request_id, response.model
            self._has_id = bool(response.request_id)
        if response.HasField("usage"):  # so it is the last response, which has the others, too
            self._rest.usage.CopyFrom(response.usage)
            if response.HasField("timings"):
                self._rest.timings.CopyFrom(response.timings)
            self._rest.media.extend(response.media)

    @property
    def response(self) -> ResponseT:
        """What has come so far, as a new message. A choice whose `finish_reason` is unspecified has not ended."""
        response = self._response_type(choices=[choice.merged(index) for index, choice in sorted(self._choices.items())])
        response.MergeFrom(self._rest)
        return response


class ChatAccumulator(Accumulator[generation_pb2.ChatStreamResponse, generation_pb2.ChatResponse]):
    """Merges the responses of `ChatStream`.

    Choices are merged by index. Pieces of text and reasoning are joined. Tool calls are merged by their index: id and name are
    those of the first piece that has them, the pieces of arguments are joined. Token ids and log probabilities are appended.
    """

    _response_type = generation_pb2.ChatResponse


class CompleteAccumulator(Accumulator[generation_pb2.CompleteStreamResponse, generation_pb2.CompleteResponse]):
    """Merges the responses of `CompleteStream`, as `ChatAccumulator` does those of `ChatStream`."""

    _response_type = generation_pb2.CompleteResponse
