"""The CPU kernels of the sampler (csrc/sampling/)."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

#: DrawArgs of csrc/sampling/draw.cpp.
DRAW_ARGS = np.dtype(
    [
        ("row", np.int64),
        ("number", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("top_k", np.int64),
        ("mask", np.uintp),
        ("temperature", np.float32),
        ("is_cut", np.int32),
    ]
)


class SamplingKernels:
    """Functions of the loaded library. The result of a row does not depend on other rows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        library.triptych_draw_args_size.restype = count
        if library.triptych_draw_args_size() != DRAW_ARGS.itemsize:
            raise AssertionError("DRAW_ARGS does not mirror DrawArgs")
        self._draw, self._uniform, self._logprobs = library.triptych_draw, library.triptych_uniform, library.triptych_logprobs
        self._draw.argtypes = [pointer, count, pointer, count, pointer]
        self._uniform.argtypes = [pointer, pointer, count, pointer]
        self._logprobs.argtypes = [pointer, count, pointer, pointer, count, count, *[pointer] * 4]

    def draw(self, logits: torch.Tensor, args: np.ndarray) -> np.ndarray:
        """Choose a token for each of n arguments.

        Args:
            logits: [rows, vocab_size] fp32, dense.
            args: [n] DRAW_ARGS. `mask` is the address of a packed mask, or 0. At temperature 0 the likeliest token is chosen,
                the first of several. top_k is 0 for all tokens.

        Returns:
            [n] int64; -1 where the largest logit of the tokens in the mask is not finite, or one of them is NaN.
        """
        token_ids = np.empty(len(args), np.int64)
        self._draw(logits.data_ptr(), logits.shape[1], args.ctypes.data, len(args), token_ids.ctypes.data)
        return token_ids

    def uniform(self, seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The same as `sampling_ops.uniform`, in a tenth of the time. seeds, positions: [n] uint64, dense."""
        numbers = np.empty(len(seeds))
        self._uniform(seeds.ctypes.data, positions.ctypes.data, len(seeds), numbers.ctypes.data)
        return numbers

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
