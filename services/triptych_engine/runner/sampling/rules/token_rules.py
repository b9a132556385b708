"""Rules that depend on the output's tokens, on the host: constraints and bad token sequences.

A step may be launched before the tokens of the step before it are known. The lines of rows with rules are then sampled later than
the others, when their tokens are known (StepSampler.launch). Lines without rules never wait for them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from triptych_common.constraints.cache import ConstraintCache

from triptych_engine.runner.input_batch import InputBatch
from triptych_engine.runner.sampling.rules.bad_sequences import BadSequences
from triptych_engine.runner.sampling.rules.constraints import Constraints
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams


@dataclass(frozen=True, slots=True)
class StepRules:
    """What the rules say about the lines of one step."""

    #: [k] int64, lines and the tokens that are banned in them.
    banned_lines: np.ndarray
    banned_ids: np.ndarray
    #: [m] int64, lines whose constraint has started.
    constrained: np.ndarray
    constraints: Constraints

    def apply(self, logits: torch.Tensor, idx_mapping: np.ndarray, transfer: HostToDevice) -> None:
        """Set the logits of forbidden tokens to -inf, in place.

        Args:
            logits: [num_lines, vocab_size] float32.
            idx_mapping: [num_lines] line -> row.
        """
        if len(self.banned_lines):
            lines, token_ids = transfer(self.banned_lines, self.banned_ids)
            logits[lines, token_ids] = -torch.inf
        if len(self.constrained):
            self.constraints.masks(idx_mapping[self.constrained]).apply(logits, self.constrained, transfer)


class TokenRules:
    """The rules of rows of the batch.

    Args:
        max_num_seqs: number of rows.
        batch: the sequences' tokens.
        cache: compiled constraints.
        num_threads: threads that compute masks; None takes most cores.
    """

    def __init__(self, max_num_seqs: int, batch: InputBatch, cache: ConstraintCache, num_threads: int | None) -> None:
        self._batch = batch
        self._constraints = Constraints(max_num_seqs, cache, num_threads)
        self._bad_sequences = BadSequences(max_num_seqs)
        self._used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether the row has a rule

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        self._constraints.add(row, sampling)
        self._bad_sequences.add(row, sampling.bad_token_sequences, sampling.first_bad_token_ids)
        self._used[row] = self._constraints.used[row] or self._bad_sequences.used[row]

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        if self._used[row]:
            self._used[row] = False
            self._constraints.remove(row)
            self._bad_sequences.remove(row)

    def apply_to(self, rows: np.ndarray) -> bool:
        """Whether any of the rows has rules."""
        return bool(self._used[rows].any())

    def must_wait(self, rows: np.ndarray) -> np.ndarray:
        """[n] bool, whether a row has rules, and tokens that are not known yet."""
        return self._used[rows] & self._batch.has_unknown_tokens(rows)

    def of_step(self, idx_mapping: np.ndarray) -> StepRules | None:
        """What the rules say about the next tokens; None if no line has rules.

        Args:
            idx_mapping: [num_lines] line -> row, with known tokens.
        """
        if not self.apply_to(idx_mapping):
            return None
        self._follow(idx_mapping)
        banned: list[tuple[int, int]] = []
        for line in np.flatnonzero(self._bad_sequences.used[idx_mapping]).tolist():
            row = int(idx_mapping[line])
            banned += [(line, token_id) for token_id in self._bad_sequences.banned(row, self._batch.known_output(row))]
        pairs = np.array(banned, np.int64).reshape(-1, 2)
        constrained = np.flatnonzero(self._constraints.started[idx_mapping])
        return StepRules(pairs[:, 0].copy(), pairs[:, 1].copy(), constrained, self._constraints)

    def _follow(self, rows: np.ndarray) -> None:
        """Let the constraints of rows take the output tokens that became known."""
        for row in rows[self._constraints.are_behind(rows, self._batch.num_known_output_tokens(rows))].tolist():
            self._constraints.follow(row, self._batch.known_output(row))

    def verdicts(self, rows: np.ndarray, nothing_left: Collection[int]) -> tuple[list[int], dict[int, str]]:
        """Which rows have ended by their rules, now that their newest tokens are known.

        Args:
            rows: [n].
            nothing_left: indices of rows for which no token had a finite logit.

        Returns:
            The indices of rows whose output matches its constraint so that nothing may follow, and for the index of each row that
            cannot go on, the reason.
        """
        self._follow(np.delete(rows, list(nothing_left)))
        nothing = "the constraint, the banned and the allowed tokens together leave no token to generate"
        complete, reasons = [], {index: nothing for index in nothing_left if self._used[rows[index]]}
        for index in np.flatnonzero(self._constraints.used[rows]).tolist():
            row = int(rows[index])
            if not self._constraints.has_stopped(row):
                continue
            if error := self._constraints.error(row):
                reasons[index] = f"the constraint cannot be followed: {error}"
            elif index not in reasons:
                complete.append(index)
        return complete, reasons
