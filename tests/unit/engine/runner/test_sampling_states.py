"""What the sampler keeps of each row, one kind of state at a time, against the textbook on dense rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import GREEDY
from support.counting import device_work
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.logprobs import Logprobs
from triptych_engine.runner.sampling.sampler import Sampler
from triptych_engine.runner.sampling.tensors.bans import Bans
from triptych_engine.runner.sampling.tensors.bias import Bias
from triptych_engine.runner.sampling.tensors.penalties import Penalties
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

CPU = torch.device("cpu")
VOCAB = 40
TOKENS = st.integers(0, VOCAB - 1)


def transfer(packed: bool = True) -> HostToDevice:
    """As to an accelerator, unless not packed."""
    return HostToDevice(CPU, packed=packed)


def a_line(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def penalised(line: torch.Tensor, sampling: SamplingParams, prompt: list[int], output: list[int]) -> torch.Tensor:
    """The textbook: counts of the output, and what was seen in prompt or output."""
    counts, line = Counter(output), line.clone()
    for token in {*prompt, *output}:
        line[token] = line[token] / sampling.repetition_penalty if line[token] > 0 else line[token] * sampling.repetition_penalty
    for token, count in counts.items():
        line[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return line


@settings(max_examples=60)
@given(data=st.data())
def test_penalties_reach_what_was_said(data: st.DataObject):
    """Sequences come and go in any order, some begin with output, and steps take any of them in any order."""
    state = Penalties(6, CPU, transfer())
    known: dict[int, tuple[SamplingParams, list[int], list[int]]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        row = data.draw(st.integers(0, 5))
        if row in known:
            state.remove(row)
            del known[row]
        else:
            values = {
                "repetition_penalty": data.draw(st.sampled_from([1.0, 1.3, 0.8])),
                "frequency_penalty": data.draw(st.sampled_from([0.0, 0.5, -0.25])),
                "presence_penalty": data.draw(st.sampled_from([0.0, 0.7])),
            }
            prompt = data.draw(st.lists(TOKENS, min_size=1, max_size=9))
            output = data.draw(st.lists(TOKENS, max_size=9))
            known[row] = replace(GREEDY, **values), prompt, output
            state.add(row, known[row][0], prompt + output, len(prompt))
        rows = data.draw(st.permutations(sorted(known)))[: data.draw(st.integers(0, 6))]
        if not rows:
            continue
        idx_mapping = np.array(rows)
        lines = torch.stack([a_line(row) for row in rows])
        expected = [penalised(line, *known[row]) for line, row in zip(lines, rows, strict=True)]
        state.apply(lines, idx_mapping)
        torch.testing.assert_close(lines, torch.stack(expected))
        tokens = data.draw(st.lists(TOKENS, min_size=len(rows), max_size=len(rows)))
        state.update(torch.tensor(tokens), idx_mapping)
        for row, token in zip(rows, tokens, strict=True):
            known[row][2].append(token)


def test_penalties_of_long_outputs_and_many_rows():
    """Longer than the entries at first, and more rows than slots at first; one that has just come beside one that is old."""
    sampling, num_steps = replace(GREEDY, frequency_penalty=0.01, repetition_penalty=1.1), 600
    state = Penalties(12, CPU, transfer())
    state.add(0, sampling, [1], 1)
    outputs: dict[int, list[int]] = {0: []}
    for step in range(num_steps):
        if step % 50 == 49 and len(outputs) < 12:
            row = len(outputs)
            outputs[row] = []
            state.add(row, sampling, [row], 1)
        tokens = {row: (7 * step + row) % VOCAB for row in outputs}
        state.update(torch.tensor(list(tokens.values())), np.array(list(tokens)))
        for row, token in tokens.items():
            outputs[row].append(token)
    lines = torch.stack([a_line(row) for row in outputs])
    expected = [penalised(line, sampling, [row or 1], output) for line, (row, output) in zip(lines, outputs.items(), strict=True)]
    state.apply(lines, np.arange(len(outputs)))
    torch.testing.assert_close(lines, torch.stack(expected), atol=1e-4, rtol=1e-4)


def test_the_memory_of_penalties_is_that_of_the_rows_that_have_them():
    state = Penalties(1000, CPU, transfer())
    for row in range(1000):
        state.add(row, GREEDY, [1, 2, 3], 2)
    assert state._token_ids.numel() == 0
    state.add(7, replace(GREEDY, presence_penalty=1.0), [1, 2, 3], 2)
    assert state._token_ids.numel() <= 4 * 256


def test_bias_is_added_where_it_belongs():
    state = Bias(4, transfer())
    state.add(1, replace(GREEDY, logit_bias={3: 2.0, 5: -1.5}))
    state.add(3, replace(GREEDY, logit_bias={0: 0.5}))
    lines = torch.zeros(5, VOCAB)
    state.apply(lines, np.array([1, 0, 3, 1, 2]))
    expected = torch.zeros(5, VOCAB)
    expected[[0, 3], 3], expected[[0, 3], 5], expected[2, 0] = 2.0, -1.5, 0.5
    assert torch.equal(lines, expected)
    state.remove(1)
    assert not state.applies(np.array([1, 0]))
    assert state.applies(np.array([3]))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_bans_leave_what_may_come(position: int):
    state = Bans(3, transfer())
    state.add(0, replace(GREEDY, allowed_token_ids=(4, 5, 6, 5), bad_token_ids=(5,)))
    state.add(1, replace(GREEDY, min_tokens=2, stop_token_ids=frozenset({7, 8})))
    lines = torch.stack([a_line(0), a_line(1), a_line(2)])
    expected = lines.clone()
    expected[0] = -torch.inf
    expected[0, [4, 6]] = lines[0, [4, 6]]
    if position < 2:
        expected[1, [7, 8]] = -torch.inf
    state.apply(lines, np.arange(3), np.full(3, position))
    assert torch.equal(lines, expected)
    assert state.applies(np.array([1]), np.array([position])) == (position < 2)
    assert not state.applies(np.array([2]), np.array([position]))


def test_log_probabilities_are_of_the_lines_that_want_them():
    state, lines = Logprobs(4, transfer()), torch.stack([a_line(seed) for seed in range(4)])
    for row, count in enumerate((None, 2, 0, None)):
        state.add(row, replace(GREEDY, logprobs=count))
    rows = np.array([2, 0, 1, 1])
    wanted = state.lines(rows)
    assert wanted.tolist() == [0, 2, 3]
    _, pending = state.launch(lines, wanted, torch.tensor([1, 2, 3, 4]), wanted, rows)
    entries = pending.entries()
    assert [entry.token_id for entry in entries] == [1, 3, 4]
    assert [len(entry.top_token_ids) for entry in entries] == [0, 2, 2]
    for line, entry in zip((0, 2, 3), entries, strict=True):
        logprobs = lines[line].log_softmax(-1)
        assert entry.logprob == pytest.approx(logprobs[entry.token_id].item())
        assert entry.rank == int((logprobs > logprobs[entry.token_id]).sum()) + 1
        assert entry.top_logprobs == pytest.approx(logprobs.sort(descending=True).values[: len(entry.top_logprobs)].tolist())


def test_what_no_row_uses_costs_nothing():
    sampler = Sampler(64, CPU)
    for row in range(63):
        sampler.add(row, GREEDY, [1, 2], 1)
    sampler.add(63, replace(GREEDY, logit_bias={1: 1.0}, repetition_penalty=1.2, bad_token_ids=(2,), logprobs=2), [1, 2], 1)
    tokens, rows = torch.zeros(63).long(), np.arange(63)
    with device_work() as work:
        assert not sampler._choice._has_edits(SamplingMetadata(rows, np.zeros(63, np.int64)))
        assert not len(sampler._logprobs.lines(rows))
        sampler._choice._penalties.update(tokens, rows)
    assert work.num_operations == 0
