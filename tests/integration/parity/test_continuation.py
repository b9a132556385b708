"""A sequence that goes on at another engine, behind any of its output, gets the tokens that it would have got where it was.

This is what a frontend relies on when an engine is lost: `EngineRequest.num_output_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.tokenizer import byte_level_tokenizer
from support.drivers.engine import EngineDriver, Generated
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2
from triptych_engine.rpc.convert import to_requests

_LENGTH = 24
_PROMPT = list(range(40, 61))
_MODEL = common_pb2.ModelInfo(name="tiny", max_model_len=256, vocab_size=520, eos_token_ids=[2])
Params = common_pb2.SamplingParams
_GREEDY = {"temperature": 0.0}
#: What the state of a sequence consists of.
CASES: dict[str, Params] = {
    "greedy": Params(**_GREEDY),
    "seed": Params(seed=7, temperature=1.3, top_p=0.9, top_k=100),
    "penalties": Params(seed=8, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.4),
    "greedy with penalties": Params(frequency_penalty=2, repetition_penalty=2, **_GREEDY),
    "log probabilities": Params(logprobs=5, seed=3),
    "banned": Params(
        seed=4, bad_token_ids=[5, 6], bad_token_sequences=[common_pb2.TokenSequence(token_ids=[a, a]) for a in range(100, 200)]
    ),
    "min_tokens": Params(seed=5, min_tokens=20, logit_bias={2: 90}),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineDriver]:
    path = tmp_path_factory.mktemp("model")
    save_random_model(path, a_tiny_llama_config(vocab_size=520))
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return EngineDriver(path)


def message(params: Params, output: list[int] = [], **fields: object) -> engine_pb2.EngineRequest:  # noqa: B006 - not changed
    sampling = Params(max_tokens=_LENGTH)
    sampling.MergeFrom(params)
    return engine_pb2.EngineRequest(
        request_id="r", prompt_token_ids=_PROMPT + output, sampling=sampling, num_output_tokens=len(output), **fields
    )  # type: ignore[arg-type]


def run(engine: EngineDriver, request: engine_pb2.EngineRequest, *, ahead: bool = False) -> Generated:
    (sequence,) = to_requests(request, _MODEL, 2048)
    return engine.run(engine.scheduler(caching=False), [sequence], async_scheduling=ahead)["r"]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, _LENGTH - 1), ahead=st.booleans())
def test_it_goes_on_as_it_would_have(engine: EngineDriver, name: str, cut: int, ahead: bool) -> None:
    params = CASES[name]
    whole = run(engine, message(params))
    cut = min(cut, len(whole.token_ids) - 1)
    rest = run(engine, message(params, whole.token_ids[:cut]), ahead=ahead)
    assert rest.token_ids == whole.token_ids[cut:]
    assert rest.logprobs == whole.logprobs[cut:]
    assert rest.last is not None
    assert whole.last is not None
    assert rest.last.finish_reason == whole.last.finish_reason
    assert rest.last.usage is not None
    assert rest.last.usage[:2] == (len(_PROMPT), len(whole.token_ids))


def _json(request: engine_pb2.EngineRequest) -> None:
    request.constraint.json_schema = '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}'


def _behind_a_token(request: engine_pb2.EngineRequest) -> None:
    request.constraint.regex = "(ab|cd){3,}"
    request.constraint.starts_after_token_ids.extend(range(3, 131, 2))


@pytest.mark.parametrize("constrain", [_json, _behind_a_token])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 5), cut=st.integers(1, _LENGTH - 1), ahead=st.booleans())
def test_its_constraint_goes_on(
    engine: EngineDriver, constrain: Callable[[engine_pb2.EngineRequest], None], seed: int, cut: int, ahead: bool
) -> None:
    """ai-dynamo/dynamo #7930: the grammar began anew at the other worker, so that objects were nested."""
    first = message(Params(seed=seed))
    constrain(first)
    whole = run(engine, first)
    if len(whole.token_ids) < 2:
        return
    cut = min(cut, len(whole.token_ids) - 1)
    second = message(Params(seed=seed), whole.token_ids[:cut])
    constrain(second)
    rest = run(engine, second, ahead=ahead)
    assert rest.token_ids == whole.token_ids[cut:]
    assert rest.last is not None
    assert whole.last is not None
    assert rest.last.finish_reason == whole.last.finish_reason


@pytest.mark.parametrize("cut", [0, 3])
def test_a_constraint_may_begin_behind_what_was_carried(engine: EngineDriver, cut: int) -> None:
    """As for an answer whose reasoning was ended: the output before it has nothing to do with the constraint."""
    thought = [100, 101, 102, 103]
    request = message(Params(seed=1), thought, constraint_start=len(thought))
    request.constraint.regex = "ab{2,20}c"
    request.constraint.starts_after_token_ids.append(519)
    answer = run(engine, request).token_ids
    again = message(Params(seed=1), thought + answer[:cut], constraint_start=len(thought))
    again.constraint.regex = "ab{2,20}c"
    assert run(engine, again).token_ids == answer[cut:]
    text = byte_level_tokenizer().decode(answer)
    assert text.startswith("abb"), text


def test_prompt_tokens_in_the_cache_are_counted_without_the_output(engine: EngineDriver) -> None:
    output = list(range(200, 220))
    scheduler = engine.scheduler()
    (first,) = to_requests(message(Params(**_GREEDY), output), _MODEL, 2048)
    engine.run(scheduler, [first])
    (again,) = to_requests(message(Params(**_GREEDY), output), _MODEL, 2048)
    last = engine.run(scheduler, [again])["r"].last
    assert last is not None
    assert last.usage is not None
    assert last.usage[2] == len(_PROMPT), "of 32 cached tokens, 21 are the prompt's"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_output_tokens": len(_PROMPT)}, "num_output_tokens"),
        ({"num_output_tokens": 2, "n": 2}, "num_output_tokens"),
        ({"num_output_tokens": 2, "sampling": Params(max_tokens=2)}, "num_output_tokens"),
        ({"num_output_tokens": 2, "constraint_start": 3, "constraint": common_pb2.Constraint(regex="a")}, "constraint_start"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, object], field: str) -> None:
    request = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=_PROMPT, **fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as caught:
        to_requests(request, _MODEL, 2048)
    assert caught.value.field == field
