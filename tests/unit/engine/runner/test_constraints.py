"""Constraints: what matchers take, what their masks leave, and how often each token comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from support.builders.engine import GREEDY, a_tiny_llama_config, save_random_model
from support.builders.tokenizer import byte_level_tokenizer, save_tokenizer
from triptych_common.constraints.cache import ConstraintCache
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.runner.constraint_cache import constraint_cache
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.rules.constraints import Constraints, TokenMasks
from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.runner.sampling.sampler import Sampler
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import Constraint

CPU = torch.device("cpu")
NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCache:
    """Of a model whose logits are more than the tokenizer's tokens."""
    path = tmp_path_factory.mktemp("tiny")
    save_random_model(path, a_tiny_llama_config(vocab_size=520))
    save_tokenizer(path, byte_level_tokenizer())
    return constraint_cache(path, 520)


@given(st.data())
@settings(max_examples=50)
def test_masks_change_their_lines_and_no_others(data: st.DataObject) -> None:
    num_lines, vocab_size = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([31, 32, 50]))
    lines = sorted(data.draw(st.sets(st.integers(0, num_lines - 1), min_size=1)))
    allowed = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=64, max_size=64), min_size=len(lines), max_size=len(lines)))
    )
    words = np.packbits(allowed, axis=-1, bitorder="little").view(np.uint32)
    logits = torch.randn(num_lines, vocab_size)
    expected = logits.clone()
    for index, line in enumerate(lines):
        expected[line][~torch.from_numpy(allowed[index, :vocab_size])] = -torch.inf
    TokenMasks(words, np.zeros(len(lines), np.bool_), 1).apply(logits, np.array(lines), HostToDevice(CPU, packed=True))
    assert torch.equal(logits, expected)


def test_where_only_the_end_is_left_it_can_be_sampled_whatever_forbids_it() -> None:
    masks, logits = TokenMasks(np.array([[0b100]], np.uint32), np.array([True]), 2), torch.full((2, 5), -torch.inf)
    masks.apply(logits, np.array([1]), HostToDevice(CPU))
    assert torch.isinf(logits[0]).all()
    assert logits[1].argmax() == 2
    assert logits[1, 2] == 0


@pytest.mark.parametrize("ignores_eos", [False, True])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(ab|é+)([0-9]{2}x*)?"),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}'),
        ("grammar", 'start: "a" start "b" | "ab"'),
        ("choice", '["the capital of France", "the other"]'),  # forced texts
        ("regex", "(capital){2}[a-z]{2}( France){2}[0-9]"),
    ],
)
def test_a_constraint_takes_the_tokens_of_its_mask_and_no_others(
    cache: ConstraintCache, kind: str, text: str, ignores_eos: bool
) -> None:
    """And a refused token changes nothing."""
    generator, ended = np.random.default_rng(0), set[int]()
    ends, row, never, num_forced = set(cache.end_token_ids), np.array([0]), np.array([False]), 0
    for _ in range(3):
        constraints = Constraints(1, cache, None)
        stops = frozenset() if ignores_eos else frozenset(ends)
        constraints.add(0, replace(GREEDY, constraint=Constraint(ConstraintSpec(kind, text)), stop_token_ids=stops))
        for _ in range(12):
            masks = constraints.masks(row)
            accepted = set(np.flatnonzero(np.unpackbits(masks.words[0].view(np.uint8), bitorder="little")).tolist())
            ended |= accepted & ends
            if masks.ends[0]:  # then a mask says so, and nobody asks the matcher
                assert accepted == ends
                break
            for token in {*range(cache.num_tokens)} - accepted:
                assert constraints.take(row, np.array([[token]]), never)[0] == -1, token
            assert np.array_equal(constraints.masks(row).words, masks.words)
            if forced := constraints._followers[0].matcher.compute_ff_tokens():
                assert accepted == {forced[0]}
                assert constraints.take(row, np.array([[-1]]), ~never)[0] == forced[0]
                num_forced += 1
                continue
            for token in accepted:
                copied = constraints._followers[0].matcher.deep_copy()
                assert copied.try_consume_tokens([token]) == 1, token
            if not accepted - ends:
                break
            token = generator.choice(sorted(accepted - ends))
            assert constraints.take(row, np.array([[-1, cache.num_tokens - 1, token, token]]), never)[0] == token
    assert ended or ignores_eos
    assert num_forced or "capital" not in text


@pytest.mark.long
def test_constrained_draws_follow_the_distribution_also_where_the_end_may_come(cache: ConstraintCache) -> None:
    num_rows, generator = 1000, np.random.default_rng(2)
    logits = generator.standard_normal(520).astype(np.float32)
    logits[cache.end_token_ids[0]] += 5
    sampling = replace(
        GREEDY, constraint=Constraint(ConstraintSpec("regex", "([a-d]{2})*")), stop_token_ids=frozenset(cache.end_token_ids)
    )
    choice, rows = Sampler(num_rows, CPU, load_kernels()), np.arange(num_rows)
    counts, rules = np.zeros(520, np.int64), StepRules(NONE, NONE, rows, constraints := Constraints(num_rows, cache, None))
    for number in range(20):
        for row in rows.tolist():
            constraints.add(row, sampling)
            if not number:
                choice.add(row, replace(sampling, temperature=1.0, seed=row), [1], 1)
        metadata = SamplingMetadata(rows, np.full(num_rows, number), rules)
        result = choice.sample(torch.from_numpy(logits).expand(num_rows, -1).clone(), metadata).result()
        counts += np.bincount(result.token_ids, minlength=520)
    fresh = Constraints(1, cache, None)
    fresh.add(0, sampling)
    accepted = np.unpackbits(fresh.masks(np.array([0])).words[0].view(np.uint8), bitorder="little")[:520]
    weights = np.exp(logits.astype(np.float64)) * accepted
    assert accepted[cache.end_token_ids[0]]
    assert not counts[weights == 0].any()
    assert 0.2 < counts[cache.end_token_ids[0]] / counts.sum() < 0.98
    expected = weights / weights.sum() * counts.sum()
    assert chisquare(counts[weights > 0], expected[weights > 0]).pvalue > 1e-4
