"""Policy for requests with media: which of their tokens can be computed with the embeddings that are here. It changes no state."""

from __future__ import annotations

from triptych.errors import NeverFitsError

from triptych_engine.media.item import Embeddings, EmbeddingSlice
from triptych_engine.media.needs import MediaNeeds, MediaRequest


class MediaGate:
    """Answers questions about requests with media.

    Args:
        needs: what each request needs and holds.
        max_span: maximum number of tokens that one step can compute.
        min_text_tokens: the text before an item is computed without waiting for the item's embeddings if it has this many tokens.
        max_stalled: maximum number of requests that hold blocks while their next embeddings are not here.
        max_stalled_blocks: maximum number of KV blocks that those requests hold.
    """

    def __init__(
        self, needs: MediaNeeds, *, max_span: int, min_text_tokens: int, max_stalled: int, max_stalled_blocks: int
    ) -> None:
        self._needs, self._cache = needs, needs.cache
        self._max_span = max_span
        self._min_text_tokens = min_text_tokens
        self._max_stalled, self._max_stalled_blocks = max_stalled, max_stalled_blocks

    def check(self, request: MediaRequest) -> None:
        """Raise NeverFitsError if the request's items never fit in the embedding budget, or its spans never fit in a step."""
        capacity, media = self._cache.capacity_tokens, request.media
        groups = [[item] for item in media.items]
        for span in media.spans:
            if span.end - span.start > self._max_span:
                message = (
                    f"the prompt has {span.end - span.start} tokens that all see each other and are computed in one step; "
                    f"a step takes {self._max_span} (max_num_batched_tokens)"
                )
                raise NeverFitsError(message, field="placeholders", limit=self._max_span, value=span.end - span.start)
            groups.append(list(dict.fromkeys(p.item for p in media.overlapping(span.start, span.end))))
        for group in groups:
            num_tokens = sum({(item.key, item.num_tokens): item.num_tokens for item in group}.values())
            if num_tokens > capacity:
                message = (
                    f"media[{group[0].index}] needs room for {num_tokens} embeddings at once; the engine has it for {capacity} "
                    "(embedding_cache_memory)"
                )
                raise NeverFitsError(message, field=f"media[{group[0].index}]", limit=capacity, value=num_tokens)

    def num_computable(self, request: MediaRequest, start: int) -> int:
        """How many tokens from `start` on can be computed with the embeddings that are here, in whole spans."""
        media = request.media
        if media.is_beside and not self.has_next(request, start):
            return 0
        num_tokens = request.num_tokens - start
        for placeholder in media.overlapping(start, media.end):
            if self._cache.embeddings(placeholder.item) is None:
                num_tokens = max(0, placeholder.offset - start)
                break
        return media.whole_spans(start, num_tokens)

    def has_next(self, request: MediaRequest, start: int) -> bool:
        """Whether the embeddings that the request needs first, from `start` on, are here."""
        if request.media.is_beside:
            return request.is_running or all(self._cache.embeddings(item) is not None for item in request.media.items)
        ahead = request.media.overlapping(start, request.media.end)
        return not ahead or self.num_computable(request, start) > max(0, ahead[0].offset - start)

    def is_ready(self, request: MediaRequest) -> bool:
        """Whether a waiting request has something to compute: its next embeddings are here, or enough text comes before them."""
        start = self._needs.start_of(request)
        return self.has_next(request, start) or self.num_computable(request, start) >= self._min_text_tokens

    def may_start(self, request: MediaRequest, start: int, num_blocks: int) -> bool:
        """Whether a waiting request may get `num_blocks` blocks, to compute what its embeddings allow from `start` on."""
        if self.has_next(request, start):
            return True
        # Text before an item is computed while the item is encoded. But requests that then stall must leave blocks for others.
        stalled = [need.request for need in self._needs.running() if not self.has_next(need.request, need.start)]
        num_held = sum(len(one.block_ids) for one in stalled)
        fits = len(stalled) < self._max_stalled and num_held + num_blocks <= self._max_stalled_blocks
        return fits and self.num_computable(request, start) >= self._min_text_tokens

    def encoder_states(self, request: MediaRequest) -> Embeddings:
        """The embeddings of the one item beside the prompt. Raises AssertionError if they are missing."""
        (item,) = request.media.items
        if (embeddings := self._cache.embeddings(item)) is None:
            raise AssertionError(f"request {request.request_id} is computed, and its encoder's states are not here")
        return embeddings

    def slices(self, request: MediaRequest, start: int, num_tokens: int) -> list[EmbeddingSlice]:
        """The embeddings that replace tokens of a step. Raises AssertionError if some are missing."""
        slices = []
        for placeholder in request.media.overlapping(start, start + num_tokens):
            embeddings = self._cache.embeddings(placeholder.item)
            if embeddings is None:
                raise AssertionError(f"request {request.request_id} computes tokens whose embeddings are not here")
            first, last = max(start, placeholder.offset), min(start + num_tokens, placeholder.end)
            slices.append(EmbeddingSlice(first, last - first, placeholder.first_row + first - placeholder.offset, embeddings))
        return slices
