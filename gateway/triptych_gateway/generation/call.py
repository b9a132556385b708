"""One request for generated text, independent of its API: its calls, the choices of its answer, and what writes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import InternalError, TriptychError
from triptych.v1 import generation_pb2

from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.generation.http import SERVER_SENT_EVENTS, StreamForm
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.field_names import FieldNames, in_client_terms


@dataclass
class Choice:
    """Collects the deltas of one choice, in their order."""

    deltas: list[generation_pb2.ChoiceDelta] = field(default_factory=list)
    _num_calls: int = 0

    def add(self, delta: generation_pb2.ChoiceDelta) -> None:
        """Append a delta. Raises InternalError for a tool call that does not follow the one before."""
        if delta.HasField("tool_call"):
            if delta.tool_call.index > self._num_calls:
                raise InternalError(f"the frontend sent tool call {delta.tool_call.index} after {self._num_calls} calls")
            self._num_calls = max(self._num_calls, delta.tool_call.index + 1)
        self.deltas.append(delta)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        """All that the model thought before it answered."""
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def tool_calls(self) -> list[generation_pb2.ToolCallDelta]:
        """The tool calls, each with its whole arguments: JSON text if the model kept to the format and was not cut short."""
        pieces: dict[int, list[generation_pb2.ToolCallDelta]] = {}
        for delta in self.deltas:
            if delta.HasField("tool_call"):
                pieces.setdefault(delta.tool_call.index, []).append(delta.tool_call)
        return [
            generation_pb2.ToolCallDelta(
                index=index, id=of_call[0].id, name=of_call[0].name, arguments="".join(piece.arguments for piece in of_call)
            )
            for index, of_call in sorted(pieces.items())
        ]

    @property
    def token_ids(self) -> list[int]:
        """The ids of the tokens, if the client asked for them."""
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @property
    def logprobs(self) -> list[generation_pb2.TokenLogprob]:
        """Of the output tokens, if the client asked for them."""
        return [entry for delta in self.deltas for entry in delta.logprobs]

    @property
    def prompt_logprobs(self) -> list[generation_pb2.TokenLogprob]:
        """One per token of the prompt. Only the first choice has them, and only if the client asked for them."""
        return [entry for delta in self.deltas for entry in delta.prompt_logprobs]

    @property
    def last(self) -> generation_pb2.ChoiceDelta:
        """The delta with the finish reason; an empty one if there is none."""
        return next((delta for delta in reversed(self.deltas) if delta.finish_reason), generation_pb2.ChoiceDelta())


class AnswerWriter(Protocol):
    """Writes the answer to one request. It keeps the state that its events need, and decides about ids, indices and their order."""

    def opening(self, num_choices: int) -> bytes:
        """Events before the first delta."""
        ...

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The events of one delta; empty if it has nothing new. Called per token, so it should create few objects.

        Args:
            delta: its finish_reason, if any, is STOP, LENGTH or TOOL_CALLS. Any other end of a generation is an error.
        """
        ...

    def closing(self, cost: Cost) -> bytes:
        """Events after the last delta. They tell the client that the stream is complete."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Events that end a stream that failed after its first event."""
        ...

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer as one JSON object."""
        ...


@dataclass(frozen=True)
class GenerationCall:
    """A request for generated text."""

    #: One call per prompt.
    calls: Sequence[FrontendCall]
    writer: AnswerWriter
    is_stream: bool
    #: The contract's name of a field -> the client's name, where they differ.
    field_names: FieldNames
    #: Choices per prompt.
    num_choices: int = 1
    #: Calls that run at the same time; all if it is None.
    at_once: int | None = None
    #: How a stream is written.
    form: StreamForm = SERVER_SENT_EVENTS

    @property
    def num_file_bytes(self) -> int:
        """Total size of the media files in the calls."""
        return sum(len(file.content) for call in self.calls for file in call.files)

    def in_client_terms(self, error: TriptychError) -> TriptychError:
        """The error with the client's name of its field."""
        return in_client_terms(error, self.field_names)
