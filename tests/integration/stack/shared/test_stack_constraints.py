"""Constraints through the whole stack, over gRPC."""

from __future__ import annotations

import json

import grpc
import jsonschema
import pytest
from support.builders.schemas import schemas
from support.stack import Stack
from triptych.errors import InvalidRequestError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2, generation_pb2_grpc

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def ask(stack: Stack, constraint: common_pb2.Constraint, n: int = 1) -> list[generation_pb2.Choice]:
    """The choices."""
    request = generation_pb2.CompleteRequest(text="A person as JSON: ")
    request.options.constraint.CopyFrom(constraint)
    request.options.n = n
    request.options.sampling.MergeFrom(common_pb2.SamplingParams(max_tokens=60, seed=1))
    return list(generation_pb2_grpc.GenerationServiceStub(stack.channel("frontend")).Complete(request).choices)


def test_each_choice_matches_the_schema_and_then_stops(stack: Stack) -> None:
    for choice in ask(stack, common_pb2.Constraint(json_schema=json.dumps(PERSON)), n=4):
        assert choice.finish_reason == common_pb2.FINISH_REASON_STOP
        jsonschema.validate(json.loads(choice.text), PERSON)


def test_choices_and_expressions(stack: Stack) -> None:
    (choice,) = ask(stack, common_pb2.Constraint(choice=common_pb2.StringList(values=["maybe", "never"])))
    assert choice.text in ("maybe", "never")
    (choice,) = ask(stack, common_pb2.Constraint(regex="[a-f]{3}-[0-9]{2}"))
    assert (len(choice.text), choice.text[3]) == (6, "-")


def test_a_bad_schema_is_refused_by_the_frontend_and_by_the_engine(stack: Stack) -> None:
    bad = common_pb2.Constraint(json_schema=json.dumps({"properties": {"a": {"not": {}}}}))
    with pytest.raises(grpc.RpcError) as caught:
        ask(stack, bad)
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert (error.field, "at #/properties/a/not" in error.message) == ("options.constraint.json_schema", True)
    request = engine_pb2.EngineRequest(request_id="bad", prompt_token_ids=[5], constraint=bad)
    with pytest.raises(grpc.RpcError) as caught:
        list(engine_pb2_grpc.EngineServiceStub(stack.channel("engine")).Generate(engine_pb2.GenerateRequest(request=request)))
    assert from_rpc_error(caught.value).field == "constraint.json_schema"


def test_many_schemas_at_once(stack: Stack) -> None:
    stub = generation_pb2_grpc.GenerationServiceStub(stack.channel("frontend"))
    documents, calls = schemas(200)[5:60:5], []
    for schema in documents:
        request = generation_pb2.CompleteRequest(text="JSON: ")
        request.options.constraint.json_schema = json.dumps(schema)
        request.options.sampling.max_tokens = 64
        calls.append(stub.Complete.future(request))
    for call, schema in zip(calls, documents, strict=True):
        (choice,) = call.result().choices
        if choice.finish_reason == common_pb2.FINISH_REASON_STOP:
            jsonschema.validate(json.loads(choice.text), schema)
        else:
            assert choice.finish_reason == common_pb2.FINISH_REASON_LENGTH
