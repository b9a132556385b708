"""The runner's state of its sequences: one row per sequence, in arrays that a step reads without a loop over tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triptych_engine.media.item import Span
from triptych_engine.runner.attention.paged import AttentionMetadata
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput


@dataclass(slots=True)
class StepInputs:
    """One ragged batch: the scheduled tokens of all sequences, one after the other."""

    request_ids: list[str]
    rows: np.ndarray  # [num_seqs] row of each sequence
    token_ids: np.ndarray  # [num_tokens] int64
    positions: np.ndarray  # [num_tokens] int64
    metadata: AttentionMetadata
    #: [axes, num_tokens] int64, if a sequence has positions on several axes.
    axis_positions: np.ndarray | None
    samples: np.ndarray  # [num_seqs] bool, whether the sequence's last token is in this step, so that the next one is sampled
    num_drafts: np.ndarray  # [num_seqs] int64, draft tokens at the end of each sequence
    draft_token_ids: dict[str, list[int]]  # request_id -> these
    snapshots: dict[str, list[tuple[int, int]]]  # as in SchedulerOutput
    #: [num_tokens] int64: the row whose newest token is the input here, if that token is only on the device yet; else -1. None if
    #: all tokens are known.
    token_sources: np.ndarray | None

    @property
    def last_tokens(self) -> np.ndarray:
        """Flat index of the last token of each sequence that samples; draft tokens come after it."""
        return (self.metadata.query_start_loc[1:] - self.num_drafts)[self.samples] - 1

    @property
    def draft_tokens(self) -> np.ndarray:
        """Flat indices of the draft tokens."""
        ends = np.repeat(self.metadata.query_start_loc[1:], self.num_drafts)
        before = np.repeat(np.cumsum(self.num_drafts), self.num_drafts)
        return ends - before + np.arange(len(ends))


@dataclass(frozen=True, slots=True)
class ExpectedTokens:
    """Rows and positions of the tokens that a step samples."""

    rows: np.ndarray  # [n]
    positions: np.ndarray  # [n]
    num_uses: np.ndarray  # [n] how many sequences used the row before this one


class InputBatch:
    """Tokens, progress and block table of each sequence.

    Args:
        max_num_seqs: rows.
        max_model_len: longest sequence, in tokens.
        block_size: tokens per KV block.
        num_window_blocks: KV blocks of layers with a window, if these have blocks of their own; 0 if not.
        spans_in_windows: the tokens of spans attend to each other in layers with a window only.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_window_blocks: int = 0,
        *,
        spans_in_windows: bool = False,
    ) -> None:
        self._block_size, self._spans_in_windows = block_size, spans_in_windows
        self._num_window_blocks = num_window_blocks
        max_blocks = -(-max_model_len // block_size)
        # Not zeroed, so that memory is used only as sequences fill their rows.
        self.token_ids = np.empty((max_num_seqs, max_model_len + 1), np.int32)
        self.block_table = np.empty((max_num_seqs, max_blocks), np.int32)
        self._window_block_table = np.empty((max_num_seqs if num_window_blocks else 0, max_blocks), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)  # including expected tokens
        self._num_known_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_uses = np.zeros(max_num_seqs, np.int64)  # row -> how many sequences used it before
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = [0] * max_num_seqs
        self._num_window_blocks_of = [0] * max_num_seqs
        self._axis_positions: dict[int, np.ndarray] = {}  # row -> positions of its prompt [axes, num_prompt_tokens]
        self._spans: dict[int, tuple[Span, ...]] = {}  # row -> tokens that attend to each other
        self._row_of: dict[str, int] = {}  # request_id -> row
        self._free_rows = list(range(max_num_seqs))[::-1]

    def __len__(self) -> int:
        return len(self._row_of)

    def row(self, request_id: str) -> int:
        return self._row_of[request_id]

    def add(self, sequence: NewSequence, axis_positions: np.ndarray | None = None) -> int:
        """Give a sequence a row; returns it.

        Args:
            axis_positions: [axes, num_prompt_tokens], if the prompt's media require positions on several axes.
        """
        row = self._free_rows.pop()
        self._row_of[sequence.request_id] = row
        num_tokens = len(sequence.token_ids)
        self.token_ids[row, :num_tokens] = sequence.token_ids
        self.num_tokens[row] = self._num_known_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = sequence.num_prompt_tokens
        self.num_computed_tokens[row] = sequence.num_computed_tokens
        self._num_blocks[row] = 0
        if axis_positions is not None:
            self._axis_positions[row] = axis_positions
        if sequence.media.spans:
            self._spans[row] = sequence.media.spans
        self.add_blocks(row, sequence.block_ids)
        if self._num_window_blocks:
            self._num_window_blocks_of[row] = 0
            # Sequences of checks and of the warm-up have none of their own.
            own = sequence.window_block_ids or [block % self._num_window_blocks for block in sequence.block_ids]
            self.add_window_blocks(row, own)
        return row

    def add_blocks(self, row: int, block_ids: list[int]) -> None:
        start = self._num_blocks[row]
        self.block_table[row, start : start + len(block_ids)] = block_ids
        self._num_blocks[row] += len(block_ids)

    def add_window_blocks(self, row: int, block_ids: list[int]) -> None:
        start = self._num_window_blocks_of[row]
        # Those behind the window are not read; but an address of memory that is not there must not be in the table.
        self._window_block_table[row, start : start + len(block_ids)] = np.maximum(block_ids, 0)
        self._num_window_blocks_of[row] += len(block_ids)

    def remove(self, request_id: str) -> int | None:
        """Remove a sequence; returns its row, or None if it has none."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)
            self._num_uses[row] += 1
            self._axis_positions.pop(row, None)
            self._spans.pop(row, None)
        return row

    def expect_tokens(self, rows: np.ndarray) -> ExpectedTokens:
        """Add one token to each of the rows. The device is about to sample these tokens."""
        expected = self.places(rows)
        self.num_tokens[rows] += 1
        return expected

    def places(self, rows: np.ndarray) -> ExpectedTokens:
        """Where the next tokens of rows belong."""
        return ExpectedTokens(rows, self.num_tokens[rows], self._num_uses[rows])

    def are_here(self, expected: ExpectedTokens) -> np.ndarray:
        """[n] bool, whether the sequences are still in their rows."""
        return self._num_uses[expected.rows] == expected.num_uses

    def accept_draft(self, rows: np.ndarray) -> None:
        """Record that the token that was sampled last for each of the rows is the draft token that was computed after it."""
        self.num_computed_tokens[rows] += 1

    def take_back(self, rows: np.ndarray) -> None:
        """Forget the token that was sampled last for each of the rows, behind a draft token."""
        self.num_tokens[rows] -= 1
        self._num_known_tokens[rows] -= 1
        self.num_computed_tokens[rows] -= 1

    def learn_tokens(self, expected: ExpectedTokens, token_ids: np.ndarray) -> np.ndarray:
        """Store sampled tokens. Tokens of sequences that are no longer in their rows are dropped.

        Returns:
            [n] bool, whether the sequence is still in its row.
        """
        here = self.are_here(expected)
        rows, positions = expected.rows[here], expected.positions[here]
        self.token_ids[rows, positions] = token_ids[here]
        self._num_known_tokens[rows] = positions + 1
        return here

    def has_unknown_tokens(self, rows: np.ndarray) -> np.ndarray:
        """[n] bool, whether the host does not know the newest token of a row yet."""
        return self._num_known_tokens[rows] < self.num_tokens[rows]

    def num_known_output_tokens(self, rows: np.ndarray) -> np.ndarray:
        """[n] int64, the number of output tokens of rows that the host knows."""
        return self._num_known_tokens[rows] - self.num_prompt_tokens[rows]

    def known_output(self, row: int) -> np.ndarray:
        """[n] int32, the output tokens of a row that the host knows."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self._num_known_tokens[row]]

    def gather(self, scheduled: SchedulerOutput, order: Callable[[int], str] | None = None) -> StepInputs:
        """Lay the scheduled tokens out as one ragged batch.

        Args:
            order: row -> what the sequences are sorted by; None leaves them in the scheduler's order.
        """
        num_tokens = scheduled.num_scheduled_tokens
        if order is not None:
            num_tokens = dict(sorted(num_tokens.items(), key=lambda item: order(self._row_of[item[0]])))
        request_ids = list(num_tokens)
        rows = np.fromiter((self._row_of[request_id] for request_id in request_ids), np.int64, len(request_ids))
        lengths = np.fromiter(num_tokens.values(), np.int64, len(request_ids))
        num_drafts = self._put_drafts(request_ids, rows, scheduled.draft_token_ids)
        lengths += num_drafts
        starts = self.num_computed_tokens[rows]
        if (lengths == 1).all():  # most steps
            query_start_loc, positions, token_rows = np.arange(len(rows) + 1, dtype=np.int32), starts, rows
        else:
            query_start_loc = np.zeros(len(rows) + 1, np.int32)
            np.cumsum(lengths, out=query_start_loc[1:])
            # Position of token i of a sequence = its start + i. `arange` counts over all sequences: subtract each one's offset.
            positions = np.arange(query_start_loc[-1]) + np.repeat(starts - query_start_loc[:-1], lengths)
            token_rows = np.repeat(rows, lengths)
        slots = self._slots(self.block_table, token_rows, positions)
        ends = starts + lengths
        token_ids = self.token_ids[token_rows, positions].astype(np.int64)
        token_sources = None
        if (ends - num_drafts > self._num_known_tokens[rows]).any():
            is_unknown = (positions >= self._num_known_tokens[token_rows]) & (positions < self.num_tokens[token_rows])
            token_ids[is_unknown] = 0  # the array is not initialised there
            token_sources = np.where(is_unknown, token_rows, -1)
        num_used_blocks = int(-(-ends.max() // self._block_size))
        return StepInputs(
            request_ids=request_ids,
            rows=rows,
            token_ids=token_ids,
            positions=positions,
            metadata=AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=ends.astype(np.int32),
                block_table=np.ascontiguousarray(self.block_table[rows, :num_used_blocks]),
                slots=slots,
                positions=positions.astype(np.int32),
                key_end=self._key_end(rows, query_start_loc, positions),
                ends_in_windows=self._spans_in_windows,
                window_block_table=self._window_table(rows, num_used_blocks),
                window_slots=self._slots(self._window_block_table, token_rows, positions) if self._num_window_blocks else None,
            ),
            axis_positions=self._gather_axis_positions(rows, query_start_loc, positions),
            samples=ends - num_drafts == self.num_tokens[rows],
            num_drafts=num_drafts,
            draft_token_ids=scheduled.draft_token_ids,
            snapshots=scheduled.snapshots,
            token_sources=token_sources,
        )

    def _slots(self, table: np.ndarray, token_rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[num_tokens] int64, the cache slot of each token."""
        blocks = table[token_rows, positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size

    def _window_table(self, rows: np.ndarray, num_blocks: int) -> np.ndarray | None:
        return np.ascontiguousarray(self._window_block_table[rows, :num_blocks]) if self._num_window_blocks else None

    def _put_drafts(self, request_ids: list[str], rows: np.ndarray, draft_token_ids: dict[str, list[int]]) -> np.ndarray:
        """Write draft tokens behind the tokens of their sequences; returns the number for each of the rows, [n] int64."""
        num_drafts = np.zeros(len(rows), np.int64)
        if draft_token_ids:
            for index, request_id in enumerate(request_ids):
                drafts = draft_token_ids.get(request_id, ())
                start = self.num_tokens[rows[index]]
                self.token_ids[rows[index], start : start + len(drafts)] = drafts
                num_drafts[index] = len(drafts)
        return num_drafts

    def _key_end(self, rows: np.ndarray, query_start_loc: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """[num_tokens] one past the last key that each token attends to; None if that is its own key for all tokens."""
        if not self._spans:
            return None
        key_end = None
        for index, row in enumerate(rows.tolist()):
            first, last = query_start_loc[index : index + 2].tolist()
            start, end = int(positions[first]), int(positions[last - 1]) + 1
            for span in self._spans.get(row, ()):
                if span.start < end and start < span.end:
                    if key_end is None:
                        key_end = positions.astype(np.int32) + np.int32(1)
                    key_end[first + max(span.start - start, 0) : first + span.end - start] = span.end
        return key_end

    def _gather_axis_positions(self, rows: np.ndarray, query_start_loc: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        own = [(i, self._axis_positions[row]) for i, row in enumerate(rows.tolist()) if row in self._axis_positions]
        if not own:
            return None
        gathered = np.repeat(positions[None], len(own[0][1]), 0)
        for index, of_prompt in own:
            first, last = query_start_loc[index : index + 2].tolist()
            num_prompt_tokens = of_prompt.shape[1]
            start = int(positions[first])
            in_prompt = max(0, min(last - first, num_prompt_tokens - start))
            gathered[:, first : first + in_prompt] = of_prompt[:, start : start + in_prompt]
            # On all axes, output positions start one past the largest position of the prompt.
            gathered[:, first + in_prompt : last] += of_prompt.max() + 1 - num_prompt_tokens
        return gathered

    def advance(self, inputs: StepInputs) -> None:
        """Record that the tokens of a step were computed, without its draft tokens, which may be wrong."""
        self.num_computed_tokens[inputs.rows] = inputs.metadata.seq_lens - inputs.num_drafts
