"""What a step computes of recurrent layers, and what such a layer keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class StateShape:
    """The state of one layer and one sequence, in float32."""

    #: The inputs of the convolution before the next token: [conv_width, conv_channels].
    conv_width: int = 0
    conv_channels: int = 0
    #: The matrix of each head: [num_heads, key_dim, value_dim]; all 0 if there is a convolution only.
    num_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def num_bytes(self) -> int:
        return _FLOAT_BYTES * (self.conv_width * self.conv_channels + self.num_heads * self.key_dim * self.value_dim)


@dataclass(frozen=True, slots=True)
class RecurrentStep:
    """The sequences of a ragged batch, cut into segments where a snapshot of the state is made. The arrays are on the host.

    In vLLM, `first_token` is `query_start_loc`, `slots` are `state_indices`.
    `is_fresh` is the opposite of `has_initial_states`.
    """

    #: [num_sequences + 1] int32, the first segment of each sequence.
    first_segment: np.ndarray
    #: [num_segments + 1] int32, the first token of each segment in the flat batch.
    first_token: np.ndarray
    #: [num_segments] int32, where the state is.
    slots: np.ndarray
    #: [num_segments] int32, whether the state is zero before.
    is_fresh: np.ndarray
    #: [num_segments] int32, the slot to which the state is copied after it; -1 for none.
    snapshots: np.ndarray

    @classmethod
    def of(
        cls,
        first_tokens: np.ndarray,
        computed: np.ndarray,
        slots: Sequence[int],
        snapshots: Mapping[int, Sequence[tuple[int, int]]],
    ) -> RecurrentStep:
        """The step of a batch.

        Args:
            first_tokens: [num_sequences + 1], the first token of each sequence in the flat batch.
            computed: [num_sequences] tokens of each that were computed before.
            slots: of the sequences.
            snapshots: index of a sequence -> pairs of a number of its tokens and a slot, in order.
        """
        if not snapshots:
            count = np.arange(len(first_tokens), dtype=np.int32)
            none = np.full(len(slots), -1, np.int32)
            return cls(count, first_tokens.astype(np.int32), np.array(slots, np.int32), (computed == 0).astype(np.int32), none)
        first_segment, tokens, all_slots, is_fresh, saved = [0], list[int](), list[int](), list[bool](), list[int]()
        for index, slot in enumerate(slots):
            start, end, before = int(first_tokens[index]), int(first_tokens[index + 1]), int(computed[index])
            fresh = before == 0
            for number, snapshot in (*snapshots.get(index, ()), (None, -1)):
                if start == end:
                    break
                border = end if number is None else int(first_tokens[index]) + number - before
                tokens.append(start)
                all_slots.append(slot)
                is_fresh.append(fresh)
                saved.append(snapshot)
                start, fresh = border, False
            first_segment.append(len(tokens))
        tokens.append(int(first_tokens[-1]))
        return cls(*(np.array(numbers, np.int32) for numbers in (first_segment, tokens, all_slots, is_fresh, saved)))

    @classmethod
    def alone(cls, num_tokens: int) -> RecurrentStep:
        """One sequence from its beginning, in slot 0."""
        return cls.of(np.array([0, num_tokens]), np.array([0]), [0], {})

    @property
    def num_sequences(self) -> int:
        return len(self.first_segment) - 1
