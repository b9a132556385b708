"""Constraints and bad token sequences in the runner: what they forbid, when rows wait, and how rows end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import GREEDY, a_request, a_tiny_llama_config, save_random_model
from support.builders.tokenizer import IM_END_ID, byte_level_tokenizer, save_tokenizer
from support.drivers.engine import EngineDriver, in_this_process
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych_common.constraints import compiler
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.runner.constraint_cache import constraint_cache
from triptych_engine.runner.sampling.rules.bad_sequences import BadSequences
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import Constraint, FinishReason, Request

TOKENIZER = byte_level_tokenizer()
CPU = torch.device("cpu")
NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    """A tiny random model whose logits are more than the tokenizer's tokens."""
    path = tmp_path_factory.mktemp("tiny")
    save_random_model(path, a_tiny_llama_config(vocab_size=520))
    save_tokenizer(path, TOKENIZER)
    return EngineDriver(path)


def constraint(kind: str, text: str, starts_after: tuple[int, ...] = ()) -> Constraint:
    return Constraint(ConstraintSpec(kind, text), starts_after)


def yes_or_no(**sampling: Any) -> Request:
    ruled = {"constraint": constraint("choice", '["yes", "no"]'), "stop_token_ids": frozenset([IM_END_ID])}
    return a_request(**ruled | sampling)


def run(driver: EngineDriver, request: Request, *, async_scheduling: bool = True) -> tuple[str, Any]:
    output = driver.run(driver.scheduler(), [request], async_scheduling=async_scheduling)[request.request_id]
    return TOKENIZER.decode(output.token_ids, skip_special_tokens=False), output.last


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_complete_output_ends_at_once(driver: EngineDriver, async_scheduling: bool) -> None:
    text, last = run(driver, yes_or_no(), async_scheduling=async_scheduling)
    assert text in ("yes", "no")
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, None)


def test_the_last_token_that_fits_completes_the_output(driver: EngineDriver) -> None:
    num_tokens = len(TOKENIZER.encode(run(driver, yes_or_no())[0]).ids)
    assert run(driver, yes_or_no(max_tokens=num_tokens))[1].finish_reason is FinishReason.STOP
    assert run(driver, yes_or_no(max_tokens=num_tokens - 1))[1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [{"min_tokens": 7}, {"stop_token_ids": frozenset()}])
def test_the_end_of_the_constraint_ends_the_output_whatever_else_is_asked(driver: EngineDriver, sampling: dict) -> None:
    for kind, text, outputs in (("choice", '["yes", "no"]', ("yes", "no")), ("regex", "", ("<|im_end|>",))):
        request = yes_or_no(constraint=constraint(kind, text), **sampling)
        output, last = run(driver, request)
        assert output in outputs
        assert last.finish_reason is FinishReason.STOP


def test_with_ignore_eos_an_output_ends_only_where_nothing_else_is_allowed(driver: EngineDriver) -> None:
    request = a_request(constraint=constraint("regex", "a{0,5}"), max_tokens=50, logit_bias={IM_END_ID: 100.0})
    text, last = run(driver, request)
    assert (text, last.finish_reason) == ("aaaaa", FinishReason.STOP)
    text, last = run(
        driver, a_request(constraint=constraint("regex", "a{0,5}"), logit_bias={IM_END_ID: 100.0}, stop_token_ids=frozenset([2]))
    )
    assert (text, last.finish_reason) == ("<|im_end|>", FinishReason.STOP)


def test_a_constraint_starts_after_its_token(driver: EngineDriver) -> None:
    free = driver.run(driver.scheduler(), [a_request(max_tokens=8)])["r"].token_ids
    position = next(index for index in range(1, 8) if free[index] not in free[:index])
    start = free[position]
    rule = constraint("choice", '["yes", "no"]', (start, 519))
    output = driver.run(driver.scheduler(), [a_request(constraint=rule, max_tokens=40)], async_scheduling=True)["r"]
    assert output.token_ids[: position + 1] == free[: position + 1]
    assert TOKENIZER.decode(output.token_ids[position + 1 :]) in ("yes", "no")


@pytest.mark.parametrize("sampling", [{"bad_token_ids": tuple(range(3, 520))}, {"allowed_token_ids": (300,)}])
def test_a_row_without_any_token_left_fails_alone(driver: EngineDriver, sampling: dict) -> None:
    failing, other = yes_or_no(**sampling), a_request("other")
    alone = driver.run(driver.scheduler(), [a_request("other")])["other"].token_ids
    outputs = driver.run(driver.scheduler(), [failing, other], async_scheduling=True)
    error = outputs["r"].last.error  # type: ignore[union-attr]
    assert isinstance(error, InvalidRequestError)
    assert "leave no token to generate" in error.message
    assert outputs["other"].token_ids == alone


@in_this_process
def test_a_grammar_that_becomes_too_complex_fails_alone(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiler._LIMITS, "step_max_items", 400)
    ambiguous = constraint("grammar", 'start: s\ns: "a" s s | "b" s s | s s | "a" | "b"')
    requests = [a_request(constraint=ambiguous, max_tokens=60), a_request("other", max_tokens=60)]
    outputs = driver.run(driver.scheduler(), requests, async_scheduling=True)
    failed, other = outputs["r"].last, outputs["other"].last
    assert failed is not None
    assert "the constraint cannot be followed" in str(failed.error)
    assert 0 < len(outputs["r"].token_ids) < 60
    assert other is not None
    assert other.finish_reason is FinishReason.LENGTH


def test_a_constraint_needs_the_models_tokenizer(tmp_path: Path) -> None:
    save_random_model(tmp_path, a_tiny_llama_config())
    with pytest.raises(UnimplementedError, match="fast tokenizer"):
        constraint_cache(tmp_path, 97).compile(ConstraintSpec("regex", "a")).result()


def test_rows_with_rules_wait_for_their_tokens_and_no_others(driver: EngineDriver) -> None:
    runner = driver.runner
    sampling = {"ruled": yes_or_no().sampling, "free": GREEDY, "listed": replace(GREEDY, bad_token_sequences=((1, 2),))}
    ids = [*sampling]
    first = SchedulerOutput(
        step_id=1,
        new=[NewSequence(name, [1, 2, 3], 3, 0, [index], sampling[name]) for index, name in enumerate(ids)],
        num_scheduled_tokens=dict.fromkeys(ids, 3),
        max_new_tokens=dict.fromkeys(ids, 1),
    )
    second = SchedulerOutput(2, num_scheduled_tokens=dict.fromkeys(ids, 1), max_new_tokens=dict.fromkeys(ids, 1))
    one = runner.sample(runner.forward(first))
    assert one.later is None, "all prompts are known"
    two = runner.sample(runner.forward(second))
    assert [sample.request_ids for sample in two.samples] == [["free"]]
    assert two.later is not None
    one.result()
    two.sample_rest()
    assert [sample.request_ids for sample in two.samples] == [["free"], ["ruled", "listed"]]
    assert set(two.result().token_ids) == set(ids)
    runner.forward(SchedulerOutput(3, dropped=ids))


def test_what_fails_in_a_late_sampling_is_the_failure_of_its_own_step(driver: EngineDriver) -> None:
    step = driver.runner.sample(driver.runner.forward(SchedulerOutput(1)))

    def fail() -> Any:
        raise ValueError("no mask")

    step.later = fail
    step.sample_rest()
    with pytest.raises(ValueError, match="no mask"):
        step.result()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4).map(tuple), max_size=8),
    st.lists(st.integers(0, 3), max_size=8),
)
def test_the_last_token_is_banned_where_the_others_end_the_output(sequences: Sequence[tuple[int, ...]], output: list[int]) -> None:
    bad = BadSequences(2)
    bad.add(1, sequences)
    assert bad.used.tolist() == [False, bool(sequences)]
    expected = {
        one[-1] for one in sequences if len(one) <= len(output) + 1 and tuple(output[len(output) - len(one) + 1 :]) == one[:-1]
    }
    assert set(bad.banned(1, np.array(output))) == expected
    bad.remove(1)
    assert not bad.used.any()
    assert bad.banned(1, np.array(output)) == []


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_bad_sequence_is_never_generated_and_the_prompt_does_not_count(driver: EngineDriver, async_scheduling: bool) -> None:
    free = driver.run(driver.scheduler(), [a_request(max_tokens=20)])["r"].token_ids
    prompt_end = (3, free[0])
    same = driver.run(
        driver.scheduler(), [a_request(max_tokens=20, bad_token_sequences=(prompt_end,))], async_scheduling=async_scheduling
    )
    assert same["r"].token_ids == free
    bad = (free[4], free[5])
    other = driver.run(
        driver.scheduler(), [a_request(max_tokens=20, bad_token_sequences=(bad,))], async_scheduling=async_scheduling
    )
    token_ids = other["r"].token_ids
    first = next(index for index in range(1, 20) if tuple(free[index - 1 : index + 1]) == bad)
    assert token_ids[:first] == free[:first]
    assert bad not in itertools.pairwise(token_ids)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_constrained_outputs_are_the_same_after_preemptions(driver: EngineDriver, async_scheduling: bool) -> None:
    """A preempted row gets a new matcher, which must follow the whole output before the row is sampled again."""
    rules: list[dict[str, Any]] = [
        {"constraint": constraint("regex", "([a-z]{2}[0-9])*")},
        {"constraint": constraint("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 40}')},
        {"bad_token_sequences": ((1, 2), (1, 2, 3), (2, 3)), "logit_bias": {1: 4.0, 2: 4.0, 3: 4.0}},
        {},
    ]

    def requests() -> list[Request]:
        return [
            a_request(f"r{index}", [3 + index] * 20, max_tokens=70, temperature=1.0, seed=index, logprobs=1, **rules[index % 4])
            for index in range(8)
        ]

    alone = {name: one for request in requests() for name, one in driver.run(driver.scheduler(), [request]).items()}
    scheduler = driver.scheduler(num_blocks=20)
    together = driver.run(scheduler, requests(), async_scheduling=async_scheduling)
    assert scheduler.num_preemptions
    for name, one in alone.items():
        assert together[name].token_ids == one.token_ids
        assert together[name].last.finish_reason is one.last.finish_reason is FinishReason.LENGTH  # type: ignore[union-attr]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_first_bad_token_is_banned_at_the_beginning_only(driver: EngineDriver, async_scheduling: bool) -> None:
    free = driver.run(driver.scheduler(), [a_request(max_tokens=20)])["r"].token_ids
    request = a_request(max_tokens=20, first_bad_token_ids=(free[0],), logit_bias={free[0]: 50.0})
    banned = driver.run(driver.scheduler(), [request], async_scheduling=async_scheduling)["r"].token_ids
    assert banned[0] != free[0]
    assert set(banned[1:]) == {free[0]}
