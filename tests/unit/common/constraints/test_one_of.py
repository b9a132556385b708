"""`oneOf`: every output matches exactly one branch, or the schema is refused."""

from __future__ import annotations

import json

import jsonschema
import pytest
from support.builders.tokenizer import IM_END_ID, VOCAB_SIZE, byte_level_tokenizer
from triptych.errors import InvalidRequestError
from triptych_common.constraints.compiler import compile_constraint
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.constraints.tokenizer import constraint_tokenizer

BACKEND = byte_level_tokenizer()
TOKENIZER = constraint_tokenizer(BACKEND, VOCAB_SIZE, [IM_END_ID])


def variant(value: str, **more: object) -> dict:
    return {"type": "object", "properties": {"k": {"const": value}, **more}, "required": ["k"], "additionalProperties": False}


def accepts(schema: dict, value: object) -> bool:
    matcher = compile_constraint(ConstraintSpec("json_schema", json.dumps(schema)), TOKENIZER, "c").deep_copy()
    ids = BACKEND.encode(json.dumps(value), add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


INT, STR = {"type": "integer"}, {"type": "string"}
A_AND_B = {"type": "object", "properties": {"a": INT, "b": INT}}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"oneOf": [STR, INT]}, ["x", 1], [None]),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ["a", "c"], ["b"]),
        ({"oneOf": [{"enum": [1, True]}, {"const": 1.0}]}, [True], [1]),
        ({"oneOf": [{"enum": ["a", 1], "type": "string"}, {"const": 1}]}, ["a", 1], [2]),
        (
            {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "$defs": {"x": variant("x"), "y": variant("y")}},
            [{"k": "x"}],
            [],
        ),
        ({**A_AND_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
        (
            {**A_AND_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
            [{"a": 1}, {"b": 1, "d": 2}, {"c": 1}],
            [{"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 1}],
        ),
        ({"oneOf": [{"type": "integer", "maximum": 4}, {"type": "integer", "exclusiveMinimum": 4}]}, [4, 5], []),
        ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]}, ["ab", "abc"], []),
        ({"oneOf": [{"const": "abc"}, {"type": "string", "maxLength": 2}]}, ["abc", "ab"], ["abd"]),
        ({"oneOf": [{"anyOf": [INT, {"type": "null"}]}, STR]}, [1, None, "a"], []),
        ({"anyOf": [{"minimum": 3}], "oneOf": [STR, INT]}, [4, "a"], [2]),
        ({"oneOf": [{"oneOf": [STR, INT]}, {"type": "null"}]}, ["a", 1, None], [[]]),
    ],
)
def test_what_matches_exactly_one_branch_can_be_generated(schema: dict, valid: list, invalid: list) -> None:
    for value in valid:
        jsonschema.validate(value, schema)
        assert accepts(schema, value), value
    for value in invalid:
        assert not jsonschema.Draft202012Validator(schema).is_valid(value)
        assert not accepts(schema, value), value


@pytest.mark.parametrize(
    "branches",
    [
        [INT, {"type": "number"}],
        [STR, {"type": "string", "pattern": "a"}],
        [{"const": "a"}, STR],
        [A_AND_B, {"type": "object"}],
        [{"required": ["a"]}, {"required": ["b"]}],
        [{"type": "integer", "maximum": 4}, {"type": "integer", "minimum": 4}],
        [{"enum": ["a"]}, {"enum": ["a"]}],
        [True, INT],
        [{**A_AND_B, "required": ["a"]}, A_AND_B],
    ],
)
def test_branches_that_may_overlap_are_refused(branches: list) -> None:
    schema = {"type": "object", "properties": {"v": {"oneOf": branches}}}
    with pytest.raises(InvalidRequestError, match="at #/properties/v/oneOf: "):
        accepts(schema, {})


def test_a_recursive_one_of_is_resolved() -> None:
    node = {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}]}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    assert accepts(schema, {"next": {"next": None}})
    assert not accepts(schema, {"next": 1})
