"""Options of a generation: each limit of the contract, and what the engine is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_frontend.engines.call import of_one
from triptych_frontend.generation.sampling import _RANGES, GenerationParams, check_options, max_output_tokens
from triptych_frontend.output.chain import OutputOptions

VOCAB_SIZE = 100


def check(echo: bool = False, **fields: Any) -> GenerationParams:
    """Check options; fields of SamplingParams and of GenerationOptions may be mixed."""
    names = common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    sampling = common_pb2.SamplingParams(**{name: value for name, value in fields.items() if name in names})
    others = {name: value for name, value in fields.items() if name not in names}
    return check_options(generation_pb2.GenerationOptions(sampling=sampling, **others), VOCAB_SIZE, echo)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1, 100], [-0.1, 101, math.nan, math.inf]),
        ("top_p", [0.01, 1], [0, 1.1, -1, math.nan]),
        ("min_p", [0, 1], [-0.1, 1.1, math.nan]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0.01, 10], [0, 0.0099, -1, 10.1]),
        ("logprobs", [0, 20], [21]),
        ("logit_bias", [{0: -100, 99: 100}], [{1: 101}, {1: -101}, {1: math.nan}, {100: 1}]),
        ("allowed_token_ids", [[0, 99], [5] * 100], [[100], [5] * 101]),
        ("bad_token_ids", [[0, 99], [5] * 100], [[100], [5] * 101]),
        ("stop_token_ids", [[0, 99], [5] * 100], [[100], [5] * 101]),
    ],
)
def test_sampling_parameters_have_the_contracts_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(**{name: value})
    for value in bad:
        with pytest.raises(InvalidRequestError) as caught:
            check(**{name: value})
        assert caught.value.field.startswith(f"options.sampling.{name}")
        assert caught.value.limit
        assert caught.value.value


def test_every_number_of_the_contract_has_a_range_here_or_any_value_is_good() -> None:
    fields = common_pb2.SamplingParams.DESCRIPTOR.fields
    numbers = {field.name for field in fields if not field.is_repeated and field.type != FieldDescriptor.TYPE_BOOL}
    any_value_is_good = {"max_tokens", "min_tokens", "top_k", "seed"}
    assert numbers - any_value_is_good == set(_RANGES)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 0}, "options.n"),
        ({"n": 129}, "options.n"),
        ({"stop": ["x"] * 17}, "options.stop"),
        ({"stop": ["x", ""]}, "options.stop[1]"),
        ({"stop": ["x" * 1025]}, "options.stop[0]"),
        ({"min_tokens": 3, "max_tokens": 2}, "options.sampling.min_tokens"),
    ],
)
def test_options_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(**fields)
    assert caught.value.field == field


def test_token_ids_that_repeat_are_sent_once() -> None:
    assert check(stop_token_ids=[7, 3, 7, 7]).sampling.stop_token_ids == [7, 3]


def test_defaults_are_the_contracts() -> None:
    params = check()
    assert (params.num_choices, params.is_final_only, params.output) == (1, False, OutputOptions())
    assert not params.wants_logprobs
    assert not params.wants_prompt_logprobs
    for_engine = params.for_engine(7)
    assert for_engine.seed != params.for_engine(7).seed, "drawn, so that another engine can go on"
    assert for_engine == common_pb2.SamplingParams(max_tokens=7, seed=for_engine.seed)


def test_logprobs_of_an_echoed_prompt_follow_those_of_the_output() -> None:
    assert check(echo=True, logprobs=3).sampling.prompt_logprobs == 3
    assert check(echo=True, logprobs=3, prompt_logprobs=1).sampling.prompt_logprobs == 1
    assert not check(echo=True).wants_prompt_logprobs


@given(seed=st.integers(-(2**63), 2**63 - 1), n=st.integers(1, 128))
def test_each_choice_has_its_own_seed(seed: int, n: int) -> None:
    assert check(seed=seed, n=n).for_engine(1).seed == seed
    request = engine_pb2.EngineRequest(request_id="r", sampling=check(seed=seed).for_engine(1))
    seeds = [of_one(request, index).sampling.seed for index in range(n)]
    assert seeds[0] == seed
    assert len(set(seeds)) == n
    assert all((later - seed) % 2**64 == index for index, later in enumerate(seeds))


@pytest.mark.parametrize(
    ("max_tokens", "num_prompt", "expected"), [(None, 10, 90), (None, 99, 1), (5, 95, 5), (0, 100, 0), (0, 10, 0)]
)
def test_output_fills_what_the_context_leaves(max_tokens: int | None, num_prompt: int, expected: int) -> None:
    sampling = common_pb2.SamplingParams(max_tokens=max_tokens)
    assert max_output_tokens(sampling, num_prompt, 100, "prompt") == expected


@pytest.mark.parametrize(("max_tokens", "num_prompt"), [(None, 100), (None, 101), (6, 95), (0, 101), (2**32 - 1, 1)])
def test_what_does_not_fit_the_context_is_refused_with_both_numbers(max_tokens: int | None, num_prompt: int) -> None:
    sampling = common_pb2.SamplingParams(max_tokens=max_tokens)
    with pytest.raises(ContextLengthError) as caught:
        max_output_tokens(sampling, num_prompt, 100, "prompt")
    assert caught.value.limit == "100"
    assert str(num_prompt) in caught.value.message
    assert "100" in caught.value.message
