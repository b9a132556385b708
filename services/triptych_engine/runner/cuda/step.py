"""A step's metadata on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class DecodeTokens:
    """The sequences of a step that compute one token, which attends to all of its sequence's keys."""

    sequences: torch.Tensor  # [n] int32, rows of the block table
    tokens: torch.Tensor  # [n] int32, indices in the flat batch
    most_keys: int  # of one sequence, in this step or in any replay of it


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """The other tokens of a step, in tiles of tokens of one sequence."""

    sequences: torch.Tensor  # [tiles] int32
    tokens: torch.Tensor  # [tiles] int32, the first token of each in the flat batch


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What the kernels need of a step."""

    slots: torch.Tensor  # [num_tokens] int64
    seq_lens: torch.Tensor  # [num_seqs] int32
    block_table: torch.Tensor  # int32, the blocks of each sequence, one row after the other
    blocks_per_row: torch.Tensor  # [1] int32; on the device, because it changes while a recorded step is replayed
    decode: DecodeTokens | None
    #: What prompts need besides; None if all tokens are in `decode`. [num_seqs + 1], [num_tokens] and [num_tokens] int32.
    query_start_loc: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    key_ends: torch.Tensor | None = None
    #: The same in layers without a window, if it is another there.
    full_key_ends: torch.Tensor | None = None

    def of_layer(self, *, has_window: bool) -> StepTensors:
        """The step as a layer sees it, with its ends of keys."""
        return self if has_window or self.full_key_ends is None else replace(self, key_ends=self.full_key_ends)
