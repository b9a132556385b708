"""What the engine takes and what it refuses, field by field."""

from __future__ import annotations

import pytest
from triptych.errors import ContextLengthError, InvalidRequestError, QueueFullError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.rpc.convert import output_message, to_requests
from triptych_engine.scheduling.output import SequenceOutput, Timings
from triptych_engine.scheduling.request import Constraint, FinishReason, TokenLogprobs

MODEL = common_pb2.ModelInfo(name="m", max_model_len=100, vocab_size=50, eos_token_ids=[2, 3])


def message(prompt: list[int] | None = None, **sampling: object) -> engine_pb2.EngineRequest:
    return engine_pb2.EngineRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3] if prompt is None else prompt,
        sampling=common_pb2.SamplingParams(**sampling),  # type: ignore[arg-type]
    )


def convert(request: engine_pb2.EngineRequest, capacity_tokens: int = 1000):
    (made,) = to_requests(request, MODEL, capacity_tokens)
    return made


def test_absent_fields_take_the_defaults_of_the_contract():
    sampling = convert(message()).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    assert sampling.max_tokens == 97
    assert sampling.stop_token_ids == {2, 3}
    assert sampling.logprobs is None


#: Each field of the contract, with a value that is not its default.
VALUES: dict[str, object] = {
    "max_tokens": 5,
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 0.5,
    "logit_bias": {1: 1.0},
    "allowed_token_ids": [1],
    "bad_token_ids": [1],
    "first_bad_token_ids": [1],
    "bad_token_sequences": [common_pb2.TokenSequence(token_ids=[1, 2])],
    "stop_token_ids": [1],
    "ignore_eos": True,
    "seed": 2,
    "logprobs": 1,
    "prompt_logprobs": 1,
}


@pytest.mark.parametrize("name", [field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields])
def test_no_field_of_the_contract_is_ignored(name: str):
    plain = {} if name == "seed" else {"seed": 1}
    assert convert(message(**plain | {name: VALUES[name]})).sampling != convert(message(seed=1)).sampling


def test_a_bad_sequence_of_one_token_is_a_bad_token():
    sequences = [common_pb2.TokenSequence(token_ids=ids) for ids in ([4], [5, 6])]
    sampling = convert(message(bad_token_ids=[3], bad_token_sequences=sequences)).sampling
    assert set(sampling.bad_token_ids) == {3, 4}
    assert sampling.bad_token_sequences == ((5, 6),)


@pytest.mark.parametrize(
    ("sequences", "field"),
    [
        ([[1]] * 1025, "sampling.bad_token_sequences"),
        ([[1], []], "sampling.bad_token_sequences[1]"),
        ([[1] * 65], "sampling.bad_token_sequences[0]"),
        ([[1, 50]], "sampling.bad_token_sequences[0]"),
    ],
)
def test_bad_sequences_are_bounded(sequences: list[list[int]], field: str):
    with pytest.raises(InvalidRequestError) as caught:
        convert(message(bad_token_sequences=[common_pb2.TokenSequence(token_ids=ids) for ids in sequences]))
    assert caught.value.field == field


def test_a_constraint_is_taken_as_kind_and_text():
    request = message()
    request.constraint.choice.values.extend(["a", "b"])
    request.constraint.starts_after_token_ids.append(7)
    constraint = convert(request).sampling.constraint
    assert constraint == Constraint(ConstraintSpec("choice", '["a", "b"]'), (7,))
    request.constraint.starts_after_token_ids.append(50)
    with pytest.raises(InvalidRequestError, match="starts_after_token_ids must be below"):
        convert(request)


def test_zero_is_a_value():
    sampling = convert(message(temperature=0, seed=0, logprobs=0, max_tokens=0, min_p=0)).sampling
    assert (sampling.temperature, sampling.seed, sampling.logprobs, sampling.max_tokens) == (0.0, 0, 0, 0)


def test_the_ends_of_a_range_belong_to_it():
    assert convert(message(repetition_penalty=0.01)).sampling.repetition_penalty == pytest.approx(0.01)
    assert convert(message(temperature=100, top_p=1, min_p=1, presence_penalty=-2)).sampling.temperature == 100


def test_requests_without_a_seed_get_different_ones():
    assert convert(message()).sampling.seed != convert(message()).sampling.seed


def test_negative_seeds_are_kept_apart():
    assert len({convert(message(seed=seed)).sampling.seed for seed in (-1, 0, 1, -(2**63), 2**63 - 1)}) == 5


def test_ignore_eos_leaves_the_request_s_own_stop_tokens():
    assert convert(message(ignore_eos=True, stop_token_ids=[7])).sampling.stop_token_ids == {7}
    assert convert(message(stop_token_ids=[7])).sampling.stop_token_ids == {2, 3, 7}


def test_end_tokens_outside_of_the_vocabulary_are_left_out():
    model = common_pb2.ModelInfo(name="m", max_model_len=100, vocab_size=50, eos_token_ids=[2, 50])
    assert to_requests(message(min_tokens=1), model, 1000)[0].sampling.stop_token_ids == {2}


def test_a_temperature_too_small_to_divide_by_is_greedy():
    assert convert(message(temperature=1e-30)).sampling.temperature == 0.0


def test_without_max_tokens_the_kv_cache_bounds_the_output():
    assert convert(message(), capacity_tokens=20).sampling.max_tokens == 18


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature": -1}, "sampling.temperature"),
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"temperature": 101}, "sampling.temperature"),
        ({"top_p": 0}, "sampling.top_p"),
        ({"top_p": 2}, "sampling.top_p"),
        ({"min_p": 1.5}, "sampling.min_p"),
        ({"presence_penalty": 3}, "sampling.presence_penalty"),
        ({"frequency_penalty": float("-inf")}, "sampling.frequency_penalty"),
        ({"repetition_penalty": 0}, "sampling.repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "sampling.repetition_penalty"),
        ({"logit_bias": {60: 1.0}}, "sampling.logit_bias"),
        ({"logit_bias": {1: 101.0}}, "sampling.logit_bias"),
        ({"stop_token_ids": [50]}, "sampling.stop_token_ids"),
        ({"allowed_token_ids": [1, 50]}, "sampling.allowed_token_ids"),
        ({"allowed_token_ids": [1], "bad_token_ids": [1, 2]}, "sampling.bad_token_ids"),
        ({"bad_token_ids": list(range(50))}, "sampling.bad_token_ids"),
        ({"allowed_token_ids": [2, 3], "min_tokens": 1}, "sampling.bad_token_ids"),
        ({"logprobs": 21}, "sampling.logprobs"),
        ({"prompt_logprobs": 21}, "sampling.prompt_logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "sampling.min_tokens"),
    ],
)
def test_a_field_out_of_range_is_named(sampling: dict, field: str):
    with pytest.raises(InvalidRequestError) as caught:
        convert(message(**sampling))
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (engine_pb2.EngineRequest(prompt_token_ids=[1]), "request_id"),
        (engine_pb2.EngineRequest(request_id="two\nlines", prompt_token_ids=[1]), "request_id"),
        (message([]), "prompt_token_ids"),
        (message([1, 50]), "prompt_token_ids"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(request_message: engine_pb2.EngineRequest, field: str):
    with pytest.raises(InvalidRequestError) as caught:
        convert(request_message)
    assert caught.value.field == field


@pytest.mark.parametrize(("prompt_len", "sampling"), [(100, {}), (101, {"max_tokens": 0}), (90, {"max_tokens": 11})])
def test_beyond_the_context_both_numbers_are_told(prompt_len: int, sampling: dict):
    with pytest.raises(ContextLengthError, match=f"{prompt_len} tokens .* 100 tokens"):
        convert(message([1] * prompt_len, **sampling))


def test_media_are_refused_not_ignored():
    request = message()
    request.media.add()
    with pytest.raises(UnimplementedError, match="text only"):
        convert(request)


def test_an_output_travels_whole():
    output = SequenceOutput(
        "r",
        token_ids=[5],
        logprobs=[TokenLogprobs(5, -0.5, 1, (5, 6), (-0.5, -1.5))],
        prompt_logprobs=[TokenLogprobs(2, -3.0, 4)],
        finish_reason=FinishReason.STOP,
        stop_token_id=5,
        usage=(3, 1, 0),
        timings=Timings(0.1, 0.2, 0.3, 1),
    )
    sent = output_message(output, "r")
    assert sent.finish_reason == common_pb2.FINISH_REASON_STOP
    assert (sent.usage.prompt_tokens, sent.usage.completion_tokens, sent.stop_token_id) == (3, 1, 5)
    assert list(sent.logprobs[0].top_token_ids) == [5, 6]
    assert sent.prompt_logprobs[0].rank == 4
    assert sent.timings.num_preemptions == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(QueueFullError("full", limit=1, value=1, retry_after_s=1.0), "QUEUE_FULL"), (RuntimeError("secret path"), "INTERNAL")],
)
def test_errors_travel_with_their_reason_and_strangers_without_their_text(error: Exception, reason: str):
    sent = output_message(SequenceOutput("r", finish_reason=FinishReason.ERROR, error=error), "r").error
    assert sent.reason == reason
    assert ("secret" in sent.message) is False
    assert isinstance(error, TriptychError) == sent.HasField("retry_after_s")


def test_sequences_of_a_request_have_seeds_and_ids_of_their_own() -> None:
    request = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=[1], n=3)
    request.sampling.CopyFrom(common_pb2.SamplingParams(max_tokens=1, seed=-1))
    seeded = to_requests(request, MODEL, 1000)
    assert [one.request_id for one in seeded] == ["r 0", "r 1", "r 2"]
    assert [one.sampling.seed for one in seeded] == [2**64 - 1, 0, 1]
    request.sampling.ClearField("seed")
    assert len({one.sampling.seed for one in to_requests(request, MODEL, 1000)}) == 3


def test_tenants_of_equal_salts_share_no_prefixes() -> None:
    def salt(tenant: str, chosen: str) -> str:
        request = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=[1], cache_salt=chosen)
        request.context.tenant = tenant
        return to_requests(request, MODEL, 1000)[0].cache_salt

    assert salt("", "") == ""
    assert salt("", "1:as") != salt("a", "s")
    assert len({salt("a", "s"), salt("b", "s"), salt("", "s"), salt("a", ""), salt("as", ""), salt("1:as", "")}) == 6
