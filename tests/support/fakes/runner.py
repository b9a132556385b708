"""An executor without a model. Instead of keys and values, its cache stores what these depend on: the prefix up to their token.
It reads the cache back through the block tables.

So a block that is wrongly shared, freed too early or addressed by a stale table fails a test at once. The next token is a function
of the whole sequence. So the output must not depend on batching, chunking, preemption, prefix hits, or the number of tokens per
step.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.executor.protocol import ExecutorInfo, WorkerLostError
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.media.item import Embeddings, EmbeddingTensor, PromptMedia
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.scheduling.request import SamplingParams, TokenLogprobs

from support.fakes.states import FakeStates
from support.fakes.windows import FakeWindows

VOCAB_SIZE = 50


def next_token(token_ids: list[int]) -> int:
    """The token that follows a sequence."""
    return hashlib.sha256(array("I", token_ids).tobytes()).digest()[0] % VOCAB_SIZE


def expected_output(prompt: list[int], sampling: SamplingParams, max_model_len: int = 256) -> list[int]:
    """The output of a request that runs alone."""
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < sampling.max_tokens and len(token_ids) < max_model_len:
        token_ids.append(next_token(token_ids))
        if token_ids[-1] in sampling.stop_token_ids and len(token_ids) - len(prompt) > sampling.min_tokens:
            break
    return token_ids[len(prompt) :]


def embedding(key: bytes, row: int) -> int:
    """The fake embedding of a row of an item: a number in the place of a token id."""
    return 1000 + hashlib.sha256(key + row.to_bytes(4, "little")).digest()[0]


def fake_embeddings(key: bytes, num_tokens: int) -> Embeddings:
    """All rows of an item."""
    rows = array("I", (embedding(key, row) for row in range(num_tokens)))
    return Embeddings({"embeds": EmbeddingTensor("float32", (num_tokens, 1), bytearray(rows.tobytes()))})


def seen(token_ids: list[int], media: PromptMedia) -> list[int]:
    """The sequence as the model sees it, with embeddings in the places of placeholder tokens."""
    contents = list(token_ids)
    for placeholder in media.placeholders:
        rows = range(placeholder.first_row, placeholder.first_row + placeholder.length)
        contents[placeholder.offset : placeholder.end] = [embedding(placeholder.item.key, row) for row in rows]
    return contents


@dataclass(eq=False)
class FakeSequence:
    """The runner's state of one sequence."""

    request_id: str
    contents: list[int]  # token ids, with embeddings in the places of placeholders
    blocks: list[int]
    num_computed: int  # tokens that launched steps compute, finished or not
    num_tokens: int  # including those that steps in flight sample
    new: NewSequence
    is_lost: bool = False  # a step with it failed
    is_open: bool = False  # the step in flight may produce several tokens


@dataclass
class FakeStep:
    """A step that is computed as late as possible: when its result is requested."""

    scheduled: SchedulerOutput
    chunks: list[tuple[FakeSequence, int, int]]  # sequence, first token, one past the last
    written: set[int]  # blocks
    is_sampled: bool = False


class FakeRunner:
    """Executes steps on a cache of token ids. Implements `Executor`.

    Args:
        block_size: tokens per block, same as the scheduler's.
        tier: the scheduler's second tier. A block's slot has the eight bytes of each of its tokens' numbers.
    """

    def __init__(self, block_size: int = 4, tier: HostTier | None = None) -> None:
        self._block_size, self._tier = block_size, tier
        self._cache: dict[tuple[int, int], int] = {}  # (block, offset) -> hash of the sequence up to the token in this slot
        self.states, self.windows = FakeStates(), FakeWindows(block_size)
        self.sequences: dict[str, FakeSequence] = {}  # request_id -> sequence
        self._in_flight: list[FakeStep] = []
        self.salts: dict[str, str] = {}  # request_id -> salt, if it has one: blocks must not be shared between salts
        self.num_new_tokens: Callable[[int], int] = lambda most: most  # maximum number of tokens of a step -> actual number
        self.num_steps = 0
        self.max_batched_tokens = 0
        self.max_in_flight = 0
        self.fail_requests: set[str] = set()  # each of these fails with its own error
        self.fail_next_launch: Exception | None = None
        self.fail_next_sample: Exception | None = None
        self.fail_next_step: Exception | None = None
        self.lost_device: Exception | None = None
        self.lose_in_steps = 0  # the next so many steps lose the worker process
        self.num_restores = 0
        self.gate: threading.Semaphore | None = None  # if set, each step waits for one permit
        self.is_held = False  # the newest step had to wait for its permit, or still waits
        self.cache_allocated = True
        self.model_loaded = True
        self.compilations: dict[ConstraintSpec, Future[Any]] = {}
        self.loras: dict[str, Future[Any]] = {}

    @property
    def copies_in_flight(self) -> bool:
        """Whether steps in flight read or write the tier."""
        return any(step.scheduled.stores or step.scheduled.loads or step.scheduled.offers for step in self._in_flight)

    def load(self) -> ExecutorInfo:
        return ExecutorInfo(VOCAB_SIZE, 64, self._block_size, "the fake takes no media", 256, 4, None)

    def restore(self) -> None:
        self.num_restores += 1
        self.cache_allocated = self.model_loaded = True

    def lose(self) -> None:
        """Lose all sequences, steps and the cache, as a process that ends."""
        self.sequences.clear()
        self._in_flight.clear()
        self._cache.clear()
        self.states.clear()
        self.windows.clear()

    def close(self) -> None:
        """It has no processes."""

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        """Tests end the compilation."""
        return self.compilations.setdefault(spec, Future())

    def load_lora(self, name: str) -> Future[Any]:
        """Tests end the loading."""
        return self.loras.setdefault(name, Future())

    def check_health(self) -> None:
        if self.lost_device is not None:
            raise self.lost_device

    def free_cache(self) -> None:
        assert not self.sequences
        assert not self._in_flight
        self._cache.clear()
        self.cache_allocated = False

    def unload(self) -> None:
        assert not self.cache_allocated
        self.model_loaded = False

    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        """Compute a step and wait for it."""
        self.launch(scheduled)
        self.sample(scheduled.step_id)
        return self.result(scheduled.step_id)

    def launch(self, scheduled: SchedulerOutput) -> None:
        scheduled = pickle.loads(pickle.dumps(scheduled))  # noqa: S301 - as if it were sent to another process
        for request_id in scheduled.dropped:
            self.sequences.pop(request_id, None)
        given = [block for blocks in scheduled.new_block_ids.values() for block in blocks]
        given += [block for block, _ in scheduled.loads]
        for new in scheduled.new:
            assert new.request_id not in self.sequences
            given += new.block_ids[new.num_computed_tokens // self._block_size :]
            contents = seen(new.token_ids, new.media)
            sequence = FakeSequence(
                new.request_id, contents, list(new.block_ids), new.num_computed_tokens, len(contents), new
            )  # fmt: skip
            self.sequences[new.request_id] = sequence
        for request_id, blocks in scheduled.new_block_ids.items():
            self.sequences[request_id].blocks += blocks
        assert not any(step.written.intersection(given) for step in self._in_flight), "a block that is written to is given away"
        if not scheduled.is_empty and self.fail_next_launch is not None:
            error, self.fail_next_launch = self.fail_next_launch, None
            self._lose(scheduled)
            raise error
        step = FakeStep(scheduled, [], {block for block, _ in scheduled.loads})
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            sequence = self.sequences[request_id]
            assert num_tokens > 0
            assert not sequence.is_open, "where it goes on is not known"
            start, end = sequence.num_computed, sequence.num_computed + num_tokens
            assert end <= sequence.num_tokens, "more tokens than there are"
            most = scheduled.max_new_tokens.get(request_id, 0)
            assert (most > 0) == (end == sequence.num_tokens), "it samples where the last token is computed"
            assert max(0, most - 1) == len(scheduled.draft_token_ids.get(request_id, ())), "one token more than drafts"
            step.chunks.append((sequence, start, end))
            ahead = range(start, end + max(0, most - 1))
            step.written.update(sequence.blocks[position // self._block_size] for position in ahead)
            sequence.num_computed = end
            sequence.num_tokens += most > 0
            sequence.is_open = most > 1
        self._in_flight.append(step)
        self.max_in_flight = max(self.max_in_flight, len(self._in_flight))

    def sample(self, step_id: int) -> None:
        step = self._in_flight[-1]
        assert step.scheduled.step_id == step_id, "the step that was launched last is sampled"
        if not step.scheduled.is_empty and self.fail_next_sample is not None:
            error, self.fail_next_sample = self.fail_next_sample, None
            self._in_flight.pop()
            self._lose(step.scheduled)
            raise error
        step.is_sampled = True

    def _lose(self, scheduled: SchedulerOutput) -> None:
        for request_id in scheduled.num_scheduled_tokens:
            self.sequences[request_id].is_lost = True

    def result(self, step_id: int) -> StepResult:
        step = self._in_flight.pop(0)
        assert step.scheduled.step_id == step_id, "results are asked for in order"
        assert step.is_sampled
        result = StepResult()
        self._store(step.scheduled.stores)
        self._load(step.scheduled.loads)
        self.states.begin(step.scheduled.new)
        self.windows.begin(step.scheduled.new, step.scheduled.new_window_block_ids)
        if not (step.chunks or step.scheduled.loads):
            return result
        assert self.cache_allocated
        if self.gate is not None:
            self.is_held = not self.gate.acquire(blocking=False)
            if self.is_held:
                self.gate.acquire()
        if self.lose_in_steps:
            self.lose_in_steps -= 1
            self.lose()
            raise WorkerLostError("the fake's process was lost")
        if self.fail_next_step is not None:
            error, self.fail_next_step = self.fail_next_step, None
            for sequence, _, _ in step.chunks:
                sequence.is_lost = True
            raise error
        self.num_steps += 1
        self.max_batched_tokens = max(self.max_batched_tokens, sum(step.scheduled.num_scheduled_tokens.values()))
        # After a failed step, the results of its sequences are not needed.
        chunks = [chunk for chunk in step.chunks if not chunk[0].is_lost]
        for sequence, start, end in chunks:
            self._check_embeddings(sequence, start, end, step.scheduled)
            snapshots = step.scheduled.snapshots.get(sequence.request_id, ())
            self.states.compute(sequence.new, start, end, snapshots, partial(self._prefix_hash, sequence))
            self.windows.compute(sequence.request_id, start, end, partial(self._prefix_hash, sequence))
            for position in range(start, end):
                self._cache[self._slot(sequence, position)] = self._prefix_hash(sequence, position)
            if sequence.new.sampling.prompt_logprobs is not None:
                result.prompt_logprobs[sequence.request_id] = self._prompt_logprobs(sequence, start, end)
        for copies in step.scheduled.offers.values():
            self._store(copies)
        for sequence, _, end in chunks:
            self._attend(sequence, end)
            if sequence.request_id in self.fail_requests:
                result.errors[sequence.request_id] = "this request was told to fail"
            if most := step.scheduled.max_new_tokens.get(sequence.request_id, 0):
                tokens = self._sample(sequence, end, most)
                if sequence.request_id not in result.errors:
                    result.token_ids[sequence.request_id] = tokens
        return result

    def _store(self, copies: list[tuple[int, int]]) -> None:
        for block, slot in copies:
            assert self._tier is not None
            numbers = array("q", (self._cache.get((block, offset), 0) for offset in range(self._block_size)))
            self._tier.bytes_of(slot)[0][: 8 * self._block_size] = numbers.tobytes()

    def _load(self, copies: list[tuple[int, int]]) -> None:
        for block, slot in copies:
            assert self._tier is not None
            for offset, number in enumerate(array("q", bytes(self._tier.bytes_of(slot)[0][: 8 * self._block_size]))):
                self._cache[block, offset] = number

    def _sample(self, sequence: FakeSequence, end: int, most: int) -> list[int]:
        """The next tokens. Writes the cache for all but the last, and invalid entries for the guesses after it that prove wrong."""
        num_tokens = self.num_new_tokens(most)
        for _ in range(num_tokens):
            sequence.contents.append(next_token(sequence.contents))
        sequence.num_tokens += num_tokens - 1
        sequence.num_computed += num_tokens - 1
        sequence.is_open = False
        for position in range(end, end + most - 1):
            is_right = position < len(sequence.contents) - 1
            key = self._prefix_hash(sequence, position) if is_right else -1
            self._cache[self._slot(sequence, position)] = key
            self.windows.write(sequence.request_id, position, key)
        return sequence.contents[-num_tokens:]

    @staticmethod
    def _prompt_logprobs(sequence: FakeSequence, start: int, end: int) -> list[TokenLogprobs]:
        """Entries for the prompt tokens that the current chunk predicts."""
        predicted = range(start + 1, min(end, sequence.new.num_prompt_tokens - 1) + 1)
        return [TokenLogprobs(sequence.contents[position], -1.0, 1) for position in predicted]

    @staticmethod
    def _check_embeddings(sequence: FakeSequence, start: int, end: int, scheduled: SchedulerOutput) -> None:
        """Check that the step has the correct rows for each of its placeholder tokens, and splits no span."""
        media = sequence.new.media
        given: dict[int, int] = {}
        for one in scheduled.embeddings.get(sequence.request_id, ()):
            rows = array("I", bytes(one.embeddings.tensors["embeds"].data))[one.first_row : one.first_row + one.num_rows]
            given.update(enumerate(rows, one.position))
        wanted = {position for p in media.placeholders for position in range(p.offset, p.end) if start <= position < end}
        assert given == {position: sequence.contents[position] for position in wanted}
        assert not [span for span in media.spans if span.start < end < span.end and start < span.end], "a span is split"

    def _slot(self, sequence: FakeSequence, position: int) -> tuple[int, int]:
        return sequence.blocks[position // self._block_size], position % self._block_size

    def _attend(self, sequence: FakeSequence, end: int) -> None:
        for position in range(end):
            found = self._cache[self._slot(sequence, position)]
            assert found == self._prefix_hash(sequence, position), f"{sequence.request_id} reads another sequence's keys"

    def _prefix_hash(self, sequence: FakeSequence, position: int) -> int:
        spans = (span.end for span in sequence.new.media.spans if span.start <= position < span.end)
        end = next(spans, position + 1)
        return hash((self.salts.get(sequence.request_id, ""), *sequence.contents[:end]))
