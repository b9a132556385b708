"""A runner without a model: in place of keys and values it keeps what they depend on, the prefix up to their token, and reads
that back through the block tables.

So a block that is shared wrongly, given away too early or addressed by a stale table shows at once. The next token is a function of
the whole sequence, so text must not depend on batching, chunking, preemption or prefix hits.
"""

from __future__ import annotations

import hashlib
import threading
from array import array

from triptych_engine.media import Embeddings, EmbeddingTensor, PromptMedia
from triptych_engine.output import SchedulerOutput, StepResult
from triptych_engine.request import SamplingParams, TokenLogprobs

VOCAB_SIZE = 50


def next_token(token_ids: list[int]) -> int:
    """The token that follows a sequence."""
    return hashlib.sha256(array("I", token_ids).tobytes()).digest()[0] % VOCAB_SIZE


def expected_output(prompt: list[int], sampling: SamplingParams, max_model_len: int = 256) -> list[int]:
    """What a request generates when it is alone."""
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < sampling.max_tokens and len(token_ids) < max_model_len:
        token_ids.append(next_token(token_ids))
        if token_ids[-1] in sampling.stop_token_ids and len(token_ids) - len(prompt) > sampling.min_tokens:
            break
    return token_ids[len(prompt) :]


def embedding(key: bytes, row: int) -> int:
    """What the fake encoder makes of a row of an item: a number, where a token id would stand."""
    return 1000 + hashlib.sha256(key + row.to_bytes(4, "little")).digest()[0]


def fake_embeddings(key: bytes, num_tokens: int) -> Embeddings:
    """All rows of an item."""
    rows = array("I", (embedding(key, row) for row in range(num_tokens)))
    return Embeddings({"embeds": EmbeddingTensor("float32", (num_tokens, 1), bytearray(rows.tobytes()))})


def seen(token_ids: list[int], media: PromptMedia) -> list[int]:
    """The sequence as the model sees it: with embeddings in place of placeholder tokens."""
    contents = list(token_ids)
    for placeholder in media.placeholders:
        rows = range(placeholder.first_row, placeholder.first_row + placeholder.length)
        contents[placeholder.offset : placeholder.end] = [embedding(placeholder.item.key, row) for row in rows]
    return contents


class FakeRunner:
    """Executes steps on a cache of token ids.

    Args:
        block_size: tokens per block, as the scheduler's.
    """

    def __init__(self, block_size: int = 4) -> None:
        self._block_size = block_size
        self._cache: dict[tuple[int, int], int] = {}  # (block, offset) -> hash of the sequence up to the token that stands there
        self.sequences: dict[str, list[int]] = {}  # request_id -> token ids
        self._blocks: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._sampling: dict[str, SamplingParams] = {}
        self._num_prompt_tokens: dict[str, int] = {}
        self._media: dict[str, PromptMedia] = {}
        self.salts: dict[str, str] = {}  # request_id -> salt, of those that have one: blocks must not be shared across
        self.num_steps = 0
        self.max_batched_tokens = 0
        self.fail_requests: set[str] = set()  # these get an error of their own
        self.fail_next_step: Exception | None = None
        self.gate: threading.Semaphore | None = None  # when set, each step waits for one permit
        self.cache_allocated = True

    def allocate_cache(self) -> None:
        self.cache_allocated = True

    def free_cache(self) -> None:
        assert not self.sequences
        self._cache.clear()
        self.cache_allocated = False

    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        for request_id in scheduled.dropped:
            self.sequences.pop(request_id, None)
            self._blocks.pop(request_id, None)
            self._computed.pop(request_id, None)
        for new in scheduled.new:
            assert new.request_id not in self.sequences
            self.sequences[new.request_id] = seen(new.token_ids, new.media)
            self._media[new.request_id] = new.media
            self._blocks[new.request_id] = list(new.block_ids)
            self._computed[new.request_id] = new.num_computed_tokens
            self._sampling[new.request_id] = new.sampling
            self._num_prompt_tokens[new.request_id] = new.num_prompt_tokens
        for request_id, blocks in scheduled.new_block_ids.items():
            self._blocks[request_id] += blocks
        result = StepResult()
        if not scheduled.num_scheduled_tokens:
            return result
        assert self.cache_allocated
        if self.gate is not None:
            self.gate.acquire()
        if self.fail_next_step is not None:
            error, self.fail_next_step = self.fail_next_step, None
            raise error
        self.num_steps += 1
        self.max_batched_tokens = max(self.max_batched_tokens, sum(scheduled.num_scheduled_tokens.values()))
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            self._check_embeddings(request_id, num_tokens, scheduled)
            self._write(request_id, num_tokens)
            if self._sampling[request_id].prompt_logprobs is not None:
                result.prompt_logprobs[request_id] = self._prompt_logprobs(request_id, num_tokens)
        for request_id in scheduled.num_scheduled_tokens:
            self._attend(request_id)
            if request_id in self.fail_requests:
                result.errors[request_id] = "this request was told to fail"
            elif self._computed[request_id] == len(self.sequences[request_id]):
                result.token_ids[request_id] = next_token(self.sequences[request_id])
                self.sequences[request_id].append(result.token_ids[request_id])
        return result

    def _prompt_logprobs(self, request_id: str, num_tokens: int) -> list[TokenLogprobs]:
        """Entries for the prompt tokens that the chunk just computed predicts."""
        end = self._computed[request_id]
        predicted = range(end - num_tokens + 1, min(end, self._num_prompt_tokens[request_id] - 1) + 1)
        return [TokenLogprobs(self.sequences[request_id][position], -1.0, 1) for position in predicted]

    def _check_embeddings(self, request_id: str, num_tokens: int, scheduled: SchedulerOutput) -> None:
        """The step brings the right rows for each placeholder token in it, and splits no span."""
        start, media = self._computed[request_id], self._media[request_id]
        end = start + num_tokens
        given: dict[int, int] = {}
        for one in scheduled.embeddings.get(request_id, ()):
            rows = array("I", bytes(one.embeddings.tensors["embeds"].data))[one.first_row : one.first_row + one.num_rows]
            given.update(enumerate(rows, one.position))
        wanted = {position for p in media.placeholders for position in range(p.offset, p.end) if start <= position < end}
        assert given == {position: self.sequences[request_id][position] for position in wanted}
        assert not [span for span in media.spans if span.start < end < span.end and start < span.end], "a span is split"

    def _slot(self, request_id: str, position: int) -> tuple[int, int]:
        return self._blocks[request_id][position // self._block_size], position % self._block_size

    def _write(self, request_id: str, num_tokens: int) -> None:
        assert num_tokens > 0
        start = self._computed[request_id]
        for position in range(start, start + num_tokens):
            self._cache[self._slot(request_id, position)] = self._prefix_hash(request_id, position)
        self._computed[request_id] += num_tokens

    def _attend(self, request_id: str) -> None:
        for position in range(self._computed[request_id]):
            found = self._cache[self._slot(request_id, position)]
            assert found == self._prefix_hash(request_id, position), f"{request_id} reads another sequence's keys"

    def _prefix_hash(self, request_id: str, position: int) -> int:
        spans = (span.end for span in self._media[request_id].spans if span.start <= position < span.end)
        end = next(spans, position + 1)
        return hash((self.salts.get(request_id, ""), *self.sequences[request_id][:end]))
