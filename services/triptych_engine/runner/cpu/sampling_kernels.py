"""The CPU kernels of the sampler (csrc/sampling/)."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

#: DrawArgs of csrc/sampling/draw.cpp.
DRAW_ARGS = np.dtype(
    [
        ("row", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("top_k", np.int64),
        ("mask", np.uintp),
        ("edits", np.uintp),
        ("temperature", np.float32),
        ("is_cut", np.int32),
        ("num_draws", np.int64),
    ]
)
#: In place of a token: one of the logits is NaN, or the largest is infinite.
NOT_FINITE = -2
#: Edits of csrc/sampling/edits.h.
EDITS = np.dtype(
    [(name, np.uintp) for name in ("penalized", "counts", "biased", "biases", "banned", "banned_too")]
    + [(name, np.int64) for name in ("num_penalized", "num_biased", "num_banned", "num_banned_too")]
    + [(name, np.float32) for name in ("repetition", "frequency", "presence", "unused")]
)


class SamplingKernels:
    """Functions of the loaded library. The result of a row does not depend on other rows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        for size_of, mirror in (library.triptych_draw_args_size, DRAW_ARGS), (library.triptych_edits_size, EDITS):
            size_of.restype = count
            if size_of() != mirror.itemsize:
                raise AssertionError(f"the kernels' {size_of.__name__} is not {mirror.itemsize}")
        self._draw, self._uniform, self._logprobs = library.triptych_draw, library.triptych_uniform, library.triptych_logprobs
        self._draw.argtypes = [pointer, count, pointer, count, count, pointer, pointer]
        self._uniform.argtypes = [pointer, pointer, count, count, pointer]
        self._count_tokens = library.triptych_count_tokens
        self._count_tokens.argtypes = [pointer, pointer, pointer, count]
        self._logprobs.argtypes = [pointer, count, pointer, pointer, count, count, *[pointer] * 4]

    def draw(self, logits: torch.Tensor, args: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Draw tokens for each of n arguments, independently of each other.

        Args:
            logits: [rows, vocab_size] fp32, dense. A row with edits changes meanwhile, so it may have only one argument.
            args: [n] DRAW_ARGS. `mask` is the address of a packed mask, or 0, `edits` that of EDITS, or 0. At temperature 0 the
                likeliest token is chosen, the first of several. top_k is 0 for all tokens. `num_draws` is at most 1 where `is_cut`.
            numbers: [n, most_draws] float64, dense, in [0, 1).

        Returns:
            [n, most_draws] int64; -1 beyond `num_draws`, and where no token in the mask has a finite logit. The first is
            NOT_FINITE, also without any draw, if one of their logits is NaN or infinite.
        """
        token_ids = np.full(numbers.shape, -1, np.int64)
        count, most_draws = numbers.shape
        self._draw(
            logits.data_ptr(), logits.shape[1], args.ctypes.data, count, most_draws, numbers.ctypes.data, token_ids.ctypes.data
        )
        return token_ids

    def uniform(self, seeds: np.ndarray, positions: np.ndarray, num_draws: int = 1) -> np.ndarray:
        """[n, num_draws] numbers for independent draws at each position. The first is that of `numbers.uniform`, in less time.

        Args:
            seeds: [n] uint64, dense.
            positions: [n] uint64, dense, below 2**60.
            num_draws: at most 16.
        """
        numbers = np.empty((len(seeds), num_draws))
        self._uniform(seeds.ctypes.data, positions.ctypes.data, len(seeds), num_draws, numbers.ctypes.data)
        return numbers

    def count_tokens(self, edits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Count one more token in the penalties of each of n rows, which have room for it.

        Args:
            edits: [max_num_seqs] EDITS.
            rows, token_ids: [n] int64, dense.
        """
        self._count_tokens(edits.ctypes.data, rows.ctypes.data, token_ids.ctypes.data, len(rows))

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log probability [n] fp32 and rank [n] int64 of a token of each of n rows; ids [n, num_top] int64 and log probabilities
        [n, num_top] fp32 of the likeliest tokens.

        Args:
            logits: [num_rows, vocab_size] fp32, dense.
            rows, token_ids: [n] int64, dense.
            num_top: at most vocab_size.
        """
        count = len(rows)
        chosen, ranks = torch.empty(count), torch.empty(count, dtype=torch.int64)
        ids, top = torch.empty(count, num_top, dtype=torch.int64), torch.empty(count, num_top)
        self._logprobs(
            logits.data_ptr(), logits.shape[1], rows.data_ptr(), token_ids.data_ptr(), count, num_top, chosen.data_ptr(),
            ranks.data_ptr(), ids.data_ptr(), top.data_ptr(),
        )  # fmt: skip
        return chosen, ranks, ids, top
