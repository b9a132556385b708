"""Media items of a request as the scheduler and the runner see them: their places in the prompt, and their embeddings."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
from triptych_common.telemetry.trace_context import TraceContext


class Modality(Enum):
    """What kind of signal an item carries."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


class EmbeddingSource(Enum):
    """Where a sequence got an item's embeddings from; as in the contract (common.proto)."""

    ENCODER = "encoder"
    ENGINE = "engine"
    PREFIX_CACHE = "prefix_cache"


class Bidirectional(Enum):
    """Which tokens of a prompt with media attend to later tokens."""

    NONE = "none"
    #: Adjacent placeholder tokens of images attend to each other (Gemma3).
    IMAGES = "images"
    #: Adjacent placeholder tokens of images and videos attend to each other, in layers with a window only (Gemma4).
    VISION_IN_WINDOWS = "vision in windows"
    #: All prompt tokens attend to each other (PaliGemma).
    PROMPT = "prompt"


#: Why a model without media towers takes no media.
TEXT_ONLY = "this engine serves text only; media items cannot be taken"


@dataclass(frozen=True, slots=True)
class MediaTraits:
    """What the engine must know about a model that takes media."""

    #: Modality -> ids of its placeholder tokens.
    placeholder_token_ids: Mapping[Modality, frozenset[int]]
    #: Length of an embedding vector.
    hidden_size: int
    #: Number of additional tensors per image or video, which are added to the hidden states of the first layers.
    num_deepstack: int = 0
    bidirectional: Bidirectional = Bidirectional.NONE
    #: Modality -> names of the layout tensors that the positions of its items depend on.
    layout_names: Mapping[Modality, tuple[str, ...]] = field(default_factory=dict)
    #: Grid patches per embedding, along the height and along the width.
    spatial_merge_size: int = 1
    #: The embeddings of the one item of a prompt, if all tokens attend to them (cross-attention) and none of them stands in the
    #: prompt; else 0.
    num_encoder_states: int = 0

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return tuple(self.placeholder_token_ids)


@dataclass(frozen=True, slots=True)
class EmbeddingTensor:
    """Row-major, little-endian."""

    dtype: str  # float32, float16 or bfloat16
    shape: tuple[int, ...]
    data: bytearray


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The encoder's output for an item: embeds [num_tokens, hidden_size], and deepstack.{i} of the same shape."""

    tensors: Mapping[str, EmbeddingTensor]

    @property
    def num_tokens(self) -> int:
        return self.tensors["embeds"].shape[0]

    @property
    def num_bytes(self) -> int:
        return sum(len(tensor.data) for tensor in self.tensors.values())


@dataclass(eq=False, slots=True)
class MediaItem:
    """One item of one request, and where its embeddings came from."""

    index: int
    modality: Modality
    key: bytes
    encoder_id: str = ""
    lease_id: str = ""
    layout: Mapping[str, np.ndarray] = field(default_factory=dict)
    num_tokens: int = 0
    end: int = 0  # one past its last token in the prompt
    #: The place of its sequence in a trace; None if the sequence is not traced.
    trace: TraceContext | None = None
    source: EmbeddingSource | None = None
    asked_time: float | None = None
    fetch_s: float = 0.0
    num_bytes: int = 0

    def ask(self, source: EmbeddingSource) -> None:
        """Record where the embeddings come from. Only the first call counts."""
        if self.source is None:
            self.source, self.asked_time = source, time.monotonic()

    def note_arrival(self, num_bytes: int) -> None:
        """Record that the embeddings have arrived. Only the first call counts."""
        if self.asked_time is not None:
            self.fetch_s, self.asked_time = time.monotonic() - self.asked_time, None
            self.num_bytes = num_bytes if self.source is EmbeddingSource.ENCODER else 0

    @property
    def identity(self) -> bytes:
        """Hash of the key of its embeddings and of its layout: all that it contributes to the keys and values of its tokens."""
        digest = hashlib.sha256(self.key)
        for name, array in sorted(self.layout.items()):
            digest.update(f"{name}:{array.dtype}:{array.shape}:".encode() + array.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A run of prompt tokens that an item's embeddings replace."""

    offset: int
    length: int
    item: MediaItem
    first_row: int  # of the item's embeddings

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt tokens that all attend to each other, so they must be computed in one step."""

    start: int
    end: int
    #: Hash of its tokens and items: keys and values of each of its tokens depend on all of them.
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """The media of one prompt."""

    items: tuple[MediaItem, ...] = ()
    #: By offset, without overlap.
    placeholders: tuple[Placeholder, ...] = ()
    #: By start, without overlap.
    spans: tuple[Span, ...] = ()
    #: The items stand beside the prompt: all its tokens attend to their embeddings (cross-attention), and none is replaced.
    is_beside: bool = False
    #: One past the last token that an embedding replaces or that is part of a span. With items beside the prompt it is 1: the keys
    #: of later tokens depend on the first.
    end: int = field(init=False)
    _identities: dict[int, bytes] = field(default_factory=dict)  # index of an item -> its identity

    def __post_init__(self) -> None:
        ends = (self.placeholders[-1].end if self.placeholders else 0, self.spans[-1].end if self.spans else 0)
        object.__setattr__(self, "end", max(*ends, int(self.is_beside)))

    def matters_from(self, start: int) -> bool:
        """Whether a request that has not begun needs embeddings to be computed from `start` on."""
        return start < self.end or self.is_beside

    @property
    def identity_beside(self) -> bytes:
        """What the items beside the prompt are."""
        return b"".join(self._identity(item) for item in self.items) if self.is_beside else b""

    def overlapping(self, start: int, end: int) -> Sequence[Placeholder]:
        """The placeholders with tokens in [start, end)."""
        first = bisect_right(self.placeholders, start, key=lambda placeholder: placeholder.end)
        last = first
        while last < len(self.placeholders) and self.placeholders[last].offset < end:
            last += 1
        return self.placeholders[first:last]

    def fingerprint(self, start: int, end: int) -> bytes:
        """What the keys and values of tokens [start, end) depend on besides the token ids up to `end`; empty if nothing."""
        parts = [span.digest for span in self.spans if span.start < end and start < span.end]
        if start == 0:
            parts.append(self.identity_beside)
        for placeholder in self.overlapping(start, end):
            first = max(start, placeholder.offset)
            row = placeholder.first_row + first - placeholder.offset
            place = (first - start, min(end, placeholder.end) - start, row)
            parts.append(self._identity(placeholder.item) + b"".join(number.to_bytes(8, "little") for number in place))
        return b"".join(parts)

    def extra_keys(self, start: int, end: int) -> tuple[tuple[str, int] | bytes, ...]:
        """The same for routers, in vLLM's form: each item in [start, end) as its identity, in hexadecimal digits, and where its
        first run there begins, from `start`; then the digests of spans. Unlike the fingerprint it omits the rows."""
        beside = self.items if self.is_beside and start == 0 else ()
        items = {self._identity(item).hex(): 0 for item in beside}
        for placeholder in self.overlapping(start, end):
            items.setdefault(self._identity(placeholder.item).hex(), placeholder.offset - start)
        spans = (span.digest for span in self.spans if span.digest and span.start < end and start < span.end)
        return (*items.items(), *spans)

    def _identity(self, item: MediaItem) -> bytes:
        if item.index not in self._identities:
            self._identities[item.index] = item.identity
        return self._identities[item.index]

    def whole_spans(self, start: int, num_tokens: int) -> int:
        """How many of the tokens from `start` can be computed without splitting a span.

        `start` may be inside a span: the keys and values before it were computed with the whole span. The rest of it is not split.
        """
        for span in self.spans:
            if span.start < start + num_tokens < span.end and start < span.end:
                return max(0, span.start - start)
        return num_tokens

    def span_rest(self, start: int) -> int:
        """Number of tokens from `start` to the end of the span that contains it; 0 outside of spans."""
        return next((span.end - start for span in self.spans if span.start <= start < span.end), 0)

    def num_cached(self, num_cached_tokens: int) -> int:
        """How many of the first `num_cached_tokens` tokens belong to items."""
        return sum(min(p.end, num_cached_tokens) - p.offset for p in self.placeholders if p.offset < num_cached_tokens)

    def num_tokens(self, modality: Modality) -> int:
        """Number of prompt tokens of a modality's items."""
        return 0 if self.is_beside else sum(item.num_tokens for item in self.items if item.modality is modality)


#: For a prompt that is only text.
NO_MEDIA = PromptMedia()


@dataclass(frozen=True, slots=True)
class EmbeddingSlice:
    """Rows of an item's embeddings that replace tokens of a step."""

    position: int  # of the first token in its sequence
    num_rows: int
    first_row: int
    embeddings: Embeddings

    def cut(self) -> EmbeddingSlice:
        """The same with a copy of these rows alone, to be sent elsewhere."""
        tensors = {}
        for name, tensor in self.embeddings.tensors.items():
            size = len(tensor.data) // tensor.shape[0]
            data = tensor.data[self.first_row * size : (self.first_row + self.num_rows) * size]
            tensors[name] = EmbeddingTensor(tensor.dtype, (self.num_rows, *tensor.shape[1:]), data)
        return EmbeddingSlice(self.position, self.num_rows, 0, Embeddings(tensors))


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """An order to fetch an item's embeddings from an encoder."""

    number: int  # identifies the order
    key: bytes
    encoder_id: str
    lease_id: str
    num_tokens: int
    modality: Modality
    #: The place of the sequence that ordered it in a trace.
    trace: TraceContext | None = None


class Fetcher(Protocol):
    """The step loop's interface to the embedding fetcher. Each order that is not cancelled ends with one call of
    `EngineCore.deliver`."""

    def submit(self, orders: Sequence[FetchOrder], cancelled: Sequence[int]) -> None:
        """Start orders and cancel earlier ones, by number. Called on the loop's thread; must not block."""
        ...
