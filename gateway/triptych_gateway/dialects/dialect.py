"""The interface of a REST dialect: a parser of requests and an encoder of answers, for one internal form of calls.

A new dialect is a class with `parse` and `encoder`, and a route that uses it. It does not build on another dialect. Its encoder
decides about ids, indices and the order of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from triptych.errors import InternalError, TriptychError
from triptych.v1 import generation_pb2

from triptych_gateway.dialects.cost import Cost
from triptych_gateway.dialects.fields import FieldNames, in_client_terms
from triptych_gateway.errors import ApiError
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall


class GenerationBody(Protocol):
    """Properties that the bodies of all dialects have."""

    @property
    def model(self) -> str:
        """The served name of the model."""
        ...


Body = TypeVar("Body", bound=GenerationBody, contravariant=True)


@dataclass(frozen=True)
class Call:
    """A generation request, independent of its dialect."""

    #: One call per prompt.
    calls: Sequence[FrontendCall]
    #: Choices per prompt.
    num_choices: int = 1
    is_stream: bool = False
    #: The contract's name of a field -> the dialect's name, where they differ.
    field_names: FieldNames = field(default_factory=dict)

    @property
    def num_prompts(self) -> int:
        return len(self.calls)

    @property
    def num_file_bytes(self) -> int:
        """Total size of the media files in the call."""
        return sum(len(file.content) for call in self.calls for file in call.files)

    def in_client_terms(self, error: TriptychError) -> TriptychError:
        """The error with the client's name of its field."""
        return in_client_terms(error, self.field_names)


@dataclass
class ToolCall:
    """Collects the pieces of one tool call."""

    id: str
    name: str
    #: Pieces of the arguments, as the model wrote them.
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The whole arguments; JSON text if the model kept to the format and was not cut short."""
        return "".join(self.pieces)


@dataclass
class Choice:
    """Collects the deltas of one choice."""

    texts: list[str] = field(default_factory=list)
    #: Pieces of what the model thought before it answered.
    reasoning: list[str] = field(default_factory=list)
    #: In the order of the model.
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generation_pb2.TokenLogprob] = field(default_factory=list)
    #: One per token of the prompt. Only the first choice has them, and only if the client asked for them.
    prompt_logprobs: list[generation_pb2.TokenLogprob] = field(default_factory=list)
    #: All deltas, for dialects that keep the order of text, reasoning and tool calls.
    deltas: list[generation_pb2.ChoiceDelta] = field(default_factory=list)
    #: The delta with the finish reason.
    last: generation_pb2.ChoiceDelta | None = None

    def add(self, delta: generation_pb2.ChoiceDelta) -> None:
        """Append a delta."""
        self.deltas.append(delta)
        kind = delta.WhichOneof("delta")
        if kind == "text":
            self.texts.append(delta.text)
        elif kind == "reasoning":
            self.reasoning.append(delta.reasoning)
        elif kind == "tool_call":
            self._add_tool_call(delta.tool_call)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs.extend(delta.prompt_logprobs)
        if delta.finish_reason:
            self.last = delta

    def _add_tool_call(self, piece: generation_pb2.ToolCallDelta) -> None:
        if piece.index == len(self.tool_calls):
            self.tool_calls.append(ToolCall(piece.id, piece.name))
        if piece.index >= len(self.tool_calls):
            raise InternalError(f"the frontend sent tool call {piece.index} after {len(self.tool_calls)} calls")
        self.tool_calls[piece.index].pieces.append(piece.arguments)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def reasoning_text(self) -> str:
        """The whole reasoning."""
        return "".join(self.reasoning)


class Encoder(Protocol):
    """Writes the answer to one request in a dialect. It keeps the state that its events need: indices, ids, open blocks."""

    @property
    def content_type(self) -> bytes:
        """The content type of a streamed answer. A whole answer is application/json."""
        ...

    def opening(self, num_choices: int) -> bytes:
        """Events before the first delta."""
        ...

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The events of one delta; empty if it has nothing new. Called per token, so it should create few objects.

        Args:
            delta: its finish_reason, if any, is STOP or LENGTH. Any other end of a generation is an error.
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


class Dialect(Protocol[Body]):
    """One format of requests and answers."""

    async def parse(self, body: Body, request_id: str, files: FileParts) -> Call:
        """Convert a validated body to a call. Raises InvalidRequestError for files that cannot be decoded.

        Args:
            files: the files that were cut out of the body. `body` has names in their place.
        """
        ...

    def encoder(self, body: Body, request_id: str, fingerprint: str | None) -> Encoder:
        """The encoder of the answer to this body."""
        ...
