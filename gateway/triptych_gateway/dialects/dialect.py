"""What a REST dialect is: a parser of requests and an encoder of answers, over one internal call.

A new dialect is a class with `parse` and `encoder`, and a route that names it. It does not build on another dialect: ids, indices
and the order of events are its encoder's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from triptych_common.errors import TriptychError
from triptych_common.pb import generation_pb2

from triptych_gateway.dialects.cost import Cost
from triptych_gateway.dialects.fields import FieldNames, in_client_terms
from triptych_gateway.errors import ApiError
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall


class GenerationBody(Protocol):
    """What the bodies of all dialects have."""

    @property
    def model(self) -> str:
        """The served name."""
        ...


Body = TypeVar("Body", bound=GenerationBody, contravariant=True)


@dataclass(frozen=True)
class Call:
    """A generation request, whatever dialect it came in."""

    #: One per prompt.
    calls: Sequence[FrontendCall]
    #: Choices per prompt.
    num_choices: int = 1
    is_stream: bool = False
    #: What the contract calls a field -> what the dialect does, where these differ.
    field_names: FieldNames = field(default_factory=dict)

    @property
    def num_prompts(self) -> int:
        return len(self.calls)

    @property
    def num_file_bytes(self) -> int:
        """Bytes of media files that the call holds."""
        return sum(len(file.content) for call in self.calls for file in call.files)

    def in_client_terms(self, error: TriptychError) -> TriptychError:
        """The error with its field named as the client named it."""
        return in_client_terms(error, self.field_names)


@dataclass
class Choice:
    """A choice as its deltas come in."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generation_pb2.TokenLogprob] = field(default_factory=list)
    #: The delta that ended it.
    last: generation_pb2.ChoiceDelta | None = None

    def add(self, delta: generation_pb2.ChoiceDelta) -> None:
        """Append what is new."""
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason:
            self.last = delta

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


class Encoder(Protocol):
    """Writes one request's answer in a dialect. It keeps what the order of events needs: indices, ids, open blocks."""

    @property
    def content_type(self) -> bytes:
        """Of a streamed answer. A whole one is application/json."""
        ...

    def opening(self, num_choices: int) -> bytes:
        """Events that come before the first delta."""
        ...

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The events of one delta; empty when there is nothing new to say. Called per token: it builds no objects it need not.

        Args:
            delta: whose finish_reason, if any, is STOP or LENGTH. A generation that ends otherwise is an error.
        """
        ...

    def closing(self, cost: Cost) -> bytes:
        """Events that come after the last delta, with whatever tells the client that the stream is complete."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Events that end a stream which failed after its first event."""
        ...

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer in one piece."""
        ...


class Dialect(Protocol[Body]):
    """One shape of requests and answers."""

    async def parse(self, body: Body, request_id: str, files: FileParts) -> Call:
        """The call that a validated body asks for. Raises InvalidRequestError for files that cannot be decoded.

        Args:
            files: that were in the body as it came; names stand for them in `body`.
        """
        ...

    def encoder(self, body: Body, request_id: str, fingerprint: str | None) -> Encoder:
        """What writes the answer to this body."""
        ...
