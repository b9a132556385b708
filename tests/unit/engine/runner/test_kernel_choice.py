"""What CPU kernels choose is what tensor operations choose, and the logits stay as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import GREEDY
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.kernels.choice import KernelChoice
from triptych_engine.runner.sampling.rules.constraints import TokenMasks
from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.runner.sampling.tensors.choice import TensorChoice
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

CPU = torch.device("cpu")
VOCAB, MAX_ROWS = 40, 4
TOKENS = st.integers(0, VOCAB - 1)
NONE = np.zeros(0, np.int64)
KERNELS = load_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="there are no kernels for this CPU")


def choices() -> tuple[KernelChoice, TensorChoice]:
    assert KERNELS is not None
    return KernelChoice(MAX_ROWS, KERNELS.sampling), TensorChoice(MAX_ROWS, CPU, HostToDevice(CPU))


SAMPLING = st.builds(
    lambda **options: replace(GREEDY, max_tokens=99, **options),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-2.5, 1.0, 4.0]), max_size=3),
    bad_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    allowed_token_ids=st.lists(TOKENS, max_size=9).map(tuple),
    stop_token_ids=st.frozensets(TOKENS, max_size=2),
    min_tokens=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    seed=st.integers(0, 99),
)


@settings(max_examples=150)
@given(data=st.data())
def test_kernels_choose_what_tensor_operations_choose(data: st.DataObject):
    """Sequences come and go in any order, some begin with output, and steps take any of them in any order."""
    both, positions = choices(), dict[int, int]()
    for step in range(data.draw(st.integers(1, 12))):
        row = data.draw(st.integers(0, MAX_ROWS - 1))
        if row in positions:
            del positions[row]
            for choice in both:
                choice.remove(row)
        else:
            sampling: SamplingParams = data.draw(SAMPLING)
            prompt, output = data.draw(st.lists(TOKENS, min_size=1, max_size=9)), data.draw(st.lists(TOKENS, max_size=5))
            positions[row] = len(output)
            for choice in both:
                choice.add(row, sampling, prompt + output, len(prompt))
        rows = np.array(data.draw(st.permutations(sorted(positions))), np.int64)
        if not len(rows):
            continue
        banned = sorted(data.draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), TOKENS), max_size=3)))
        pairs = np.array(banned, np.int64).reshape(-1, 2)
        rules = StepRules(pairs[:, 0].copy(), pairs[:, 1].copy(), NONE, None)  # type: ignore[arg-type]
        metadata = SamplingMetadata(rows, np.array([positions[row] for row in rows.tolist()]), rules if banned else None)
        logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(step)) * 3
        kept, before = np.arange(len(rows)), logits.clone()
        chosen, wanted = both[0].choose(logits, metadata, kept), both[1].choose(logits.clone(), metadata, kept)
        assert torch.equal(chosen.is_invalid, wanted.is_invalid)
        valid = ~chosen.is_invalid
        assert torch.equal(chosen.token_ids[valid], wanted.token_ids[valid])
        assert torch.equal(logits, before)
        assert torch.equal(chosen.raw[torch.from_numpy(chosen.raw_lines)], before)
        for row, is_valid in zip(rows.tolist(), valid.tolist(), strict=True):
            positions[row] += 1
            if not is_valid:  # as a request that fails
                del positions[row]
                for choice in both:
                    choice.remove(row)


def test_penalties_of_a_long_output():
    """It has more tokens than there is room for at first."""
    both = choices()
    for choice in both:
        choice.add(2, replace(GREEDY, max_tokens=999, frequency_penalty=0.3, repetition_penalty=1.1), [1, 1], 1)
    logits, vocab = torch.zeros(1, 500), set()
    for position in range(600):
        metadata = SamplingMetadata(np.array([2]), np.array([position]))
        tokens = [int(choice.choose(logits.clone(), metadata, NONE).token_ids) for choice in both]
        assert tokens[0] == tokens[1]
        vocab.add(tokens[0])
    assert len(vocab) == 500


class _AcceptsNothingBut:
    def __init__(self, masks: TokenMasks) -> None:
        self._masks = masks

    def take(self, rows: np.ndarray, token_ids: np.ndarray, takes_forced: np.ndarray) -> np.ndarray:
        return np.full(len(rows), -1)

    def masks(self, rows: np.ndarray) -> TokenMasks:
        return self._masks


@pytest.mark.parametrize(
    ("accepted", "is_end", "options", "expected"),
    [
        ([3, 5], False, {}, 5),
        ([3, 5], False, {"allowed_token_ids": (3, 9)}, 3),
        ([3, 5], False, {"bad_token_ids": (5,)}, 3),
        ([3, 5], False, {"allowed_token_ids": (9,)}, None),
        ([7], True, {"allowed_token_ids": (9,), "bad_token_ids": (7,), "min_tokens": 9, "stop_token_ids": frozenset({7})}, 7),
    ],
)
def test_what_a_row_may_generate_is_what_constraint_and_parameters_leave(
    accepted: list[int], is_end: bool, options: dict[str, Any], expected: int | None
):
    """Except for the end where only the end may follow."""
    bits = np.zeros(64, np.bool_)
    bits[accepted] = True
    for choice in choices():
        choice.add(0, replace(GREEDY, max_tokens=99, **options), [1], 1)
        words = np.packbits(bits, bitorder="little").view(np.uint32)[None].copy()
        masks = _AcceptsNothingBut(TokenMasks(words, np.array([is_end]), 7))
        rules = StepRules(NONE, NONE, np.array([0]), masks)  # type: ignore[arg-type]
        chosen = choice.choose(torch.arange(40.0)[None], SamplingMetadata(np.array([0]), np.array([0]), rules), NONE)
        assert bool(chosen.is_invalid) == (expected is None)
        assert expected is None or int(chosen.token_ids) == expected


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
def test_a_bad_logit_makes_a_constrained_row_invalid_even_outside_its_mask(poison: float, options: dict[str, Any]):
    logits = torch.zeros(1, 40)
    logits[0, 20] = poison
    for choice in choices():
        choice.add(0, replace(GREEDY, max_tokens=99, **options), [1], 1)
        masks = _AcceptsNothingBut(TokenMasks(np.array([[0b1010, 0]], np.uint32), np.array([False]), 7))
        rules = StepRules(NONE, NONE, np.array([0]), masks)  # type: ignore[arg-type]
        assert bool(choice.choose(logits.clone(), SamplingMetadata(np.array([0]), np.array([0]), rules), NONE).is_invalid)


def test_penalties_count_the_tokens_of_several_lines_of_a_row():
    both = choices()
    for choice in both:
        choice.add(1, replace(GREEDY, max_tokens=999, frequency_penalty=0.3), [1], 1)
    rows = np.ones(100, np.int64)
    logits = torch.randn(100, VOCAB * 10, generator=torch.Generator().manual_seed(0))
    both[0].choose(logits, SamplingMetadata(rows, np.arange(100)), NONE)
    ids, counts = both[0]._edits._counts[1]
    assert counts.sum() == 100
    assert sorted(ids[: int(both[0]._edits._edits["num_penalized"][1])].tolist()) == sorted({1, *logits.argmax(-1).tolist()})
