"""Constraints are compiled, or refused with the place of what is at fault."""

from __future__ import annotations

import contextlib
import itertools
import json
import time

import pytest
from support.builders.tokenizer import IM_END_ID, VOCAB_SIZE, byte_level_tokenizer, metaspace_tokenizer
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.constraints.compiler import compile_constraint, json_rule
from triptych_common.constraints.messages import MAX_CONSTRAINT_BYTES, to_spec, to_start_tokens
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.constraints.tokenizer import constraint_tokenizer

BACKEND = byte_level_tokenizer()
TOKENIZER = constraint_tokenizer(BACKEND, VOCAB_SIZE + 7, [IM_END_ID])


def obj(required: tuple[str, ...] = (), **properties: object) -> dict:
    return {"type": "object", "properties": properties, "required": list(required)}


def accepts(kind: str, text: str | dict, output: str, tokenizer=TOKENIZER, backend=BACKEND) -> bool:
    """Whether a constraint takes an output, and may end after it."""
    spec = ConstraintSpec(kind, text if isinstance(text, str) else json.dumps(text))
    matcher = compile_constraint(spec, tokenizer, "constraint").deep_copy()
    token_ids = backend.encode(output, add_special_tokens=False).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def refusal(kind: str, text: str | dict) -> str:
    spec = ConstraintSpec(kind, text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(InvalidRequestError) as caught:
        compile_constraint(spec, TOKENIZER, "options.constraint")
    assert caught.value.field == f"options.constraint.{kind}"
    return caught.value.message


@pytest.mark.parametrize(
    ("kind", "text", "yes", "no"),
    [
        ("json_object", "", '{"a": [1, null]}', "[1]"),
        ("regex", "a+b?", "aab", "b"),
        ("choice", '["yes", "no", "\\"é\\n"]', '"é\n', "maybe"),
        ("grammar", 'start: "a" start "b" | "x"', "aaxbb", "aaxb"),
        ("grammar", "start: <|im_start|> /[0-9]+/", "<|im_start|>12", "12"),
        ("json_schema", obj(("a",), a={"type": "integer"}), '{"a":1}', '{"a":"1"}'),
        ("json_schema", {"type": "string", "format": "no-such-format"}, '"x"', "1"),
        ("json_schema", {"type": "string", "x-note": 1, "title": "t", "if": {"not": {}}, "uniqueItems": False}, '"x"', "1"),
        ("json_schema", {"items": [{"type": "null"}], "additionalItems": False, "type": "array"}, "[null]", "[null, 1]"),
        ("json_schema", {"$ref": "#n", "x": {"$anchor": "n", "type": "integer"}}, "3", '"3"'),
        ("json_schema", {"$id": "http://me/s", "$ref": "http://me/s#/x", "x": {"type": "integer"}}, "3", '"3"'),
    ],
)
def test_each_kind_takes_what_matches_and_nothing_else(kind: str, text: str | dict, yes: str, no: str) -> None:
    assert accepts(kind, text, yes)
    assert not accepts(kind, text, no)


def test_json_is_compact_with_at_most_one_space() -> None:
    schema = obj(("a", "b"), a={"type": "integer"}, b={"type": "integer"})
    assert accepts("json_schema", schema, '{"a":1,"b":2}')
    assert accepts("json_schema", schema, '{"a": 1, "b": 2}')
    for text in ('{"a":  1,"b":2}', '{\n"a":1,"b":2}', ' {"a":1,"b":2}', '{"a":1,"b":2} '):
        assert not accepts("json_schema", schema, text)
    loose = {**schema, "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": "[ \\n]*"}}
    assert not accepts("json_schema", loose, '{\n"a":1,"b":2}'), "a schema cannot loosen it"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (obj(a=obj(b={"not": {"type": "string"}})), "#/properties/a/properties/b/not: the keyword 'not' cannot"),
        (obj(a={"type": "array", "uniqueItems": True}), "#/properties/a/uniqueItems"),
        ({"if": {}, "then": {"type": "string"}}, "#/if"),
        (obj(a={"type": "string", "pattern": "(a"}), "#/properties/a: regex parse error"),
        (obj(a={"type": "string", "pattern": "^(?=a)"}), "#/properties/a: regex parse error"),
        (obj(**{"a/b": {"type": "text"}}), "#/properties/a~1b/type: must be one or several of"),
        (obj(a={"type": "string", "minLength": -1}), "#/properties/a/minLength: must be a whole number of at least 0; given: -1"),
        (obj(a={"minimum": 1e300}), "#/properties/a/minimum: must be between"),
        (obj(("a",), a={"type": "string", "minLength": 5, "maxLength": 3}), "#: Unsatisfiable schema"),
        (obj(a={"$ref": "#/$defs/none"}), "#/properties/a/$ref: the reference '#/$defs/none' leads nowhere"),
        (obj(a={"$ref": "http://x/y"}), "#/properties/a/$ref: only references inside"),
        (obj(a={"$ref": "#nowhere"}), "#/properties/a/$ref: no part of the schema has the anchor"),
        ({"$ref": "#"}, "#: the schema contains itself without end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": obj(("x",), x={"$ref": "#/$defs/a"})}}, "#/$defs/a: the schema contains itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "minItems": 1, "items": {"$ref": "#"}}}}, "without end"),
        ({"allOf": [{"minProperties": 3}]}, "#/allOf/0/minProperties: more properties"),
        ({"anyOf": []}, "#/anyOf: must be a list of at least one"),
        ({"properties": []}, "#/properties: must be an object of schemas"),
        (obj(a=3), "#/properties/a: a schema must be an object, true or false; given: 3"),
        (False, "#: Unsatisfiable schema"),
    ],
)
def test_a_schema_that_cannot_be_honoured_is_refused_with_the_path(schema: dict, path: str) -> None:
    assert f"at {path}" in refusal("json_schema", schema) or path in refusal("json_schema", schema)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "[1", "not valid JSON"),
        ("json_schema", '{"maximum": NaN}', "NaN is not a JSON value"),
        ("json_schema", "[" * 100_000, "nested more than 100 levels"),
        ("json_schema", '{"items":' * 5000 + "true" + "}" * 5000, "nested more than 100 levels"),
        ("regex", "(a", "unclosed group"),
        ("grammar", "start: other", 'unknown name: "other"'),
        ("grammar", "start: a\na: a", "NoExtension"),
        ("grammar", "start: <|none|>", "unknown special token"),
        ("grammar", '{"grammars": []}', "Lark's notation"),
    ],
)
def test_a_text_that_does_not_compile_is_refused(kind: str, text: str, message: str) -> None:
    assert message in refusal(kind, text)


def test_a_recursive_schema_that_can_end_is_compiled() -> None:
    tree = {"$ref": "#/$defs/t", "$defs": {"t": obj(("v",), v={"type": "integer"}, c={"type": "array", "items": {"$ref": "#"}})}}
    assert accepts("json_schema", tree, '{"v":1,"c":[{"v":2,"c":[]}]}')
    assert not accepts("json_schema", tree, '{"v":1,"c":[{"c":[]}]}')


def test_the_size_is_bounded_and_what_is_below_compiles_or_is_refused_within_a_second() -> None:
    many = {f"p{i}": {"type": "string", "maxLength": 10 + i} for i in range(1500)}
    text = json.dumps(obj(**many))
    assert len(text) < MAX_CONSTRAINT_BYTES
    start_s = time.perf_counter()
    with contextlib.suppress(InvalidRequestError):
        compile_constraint(ConstraintSpec("json_schema", text), TOKENIZER, "constraint")
    assert time.perf_counter() - start_s < 5, "about one second, where nothing else runs"
    with pytest.raises(InvalidRequestError, match="at most 262144 bytes; given: 1000000"):
        to_spec(common_pb2.Constraint(json_schema="x" * 1_000_000), "constraint")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (common_pb2.Constraint(), "c"),
        (common_pb2.Constraint(json_object=False), "c.json_object"),
        (common_pb2.Constraint(choice=common_pb2.StringList()), "c.choice"),
    ],
)
def test_a_message_without_use_is_refused_by_field(message: common_pb2.Constraint, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        to_spec(message, "c")
    assert caught.value.field == field


def chain(count: int) -> dict:
    """Definitions that refer to each other, one after the other."""
    links = {str(number): obj(x={"$ref": f"#/$defs/{number + 1}"}) for number in range(count)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(count): {"type": "integer"}}}


def test_long_chains_of_definitions_and_rules_do_not_end_the_process() -> None:
    assert accepts("json_schema", chain(900), '{"x": {}}')
    assert "may refer to at most 1000 parts" in refusal("json_schema", chain(2000))
    rules = "\n".join(f'r{number}: "a" r{number + 1}' for number in range(10_000))
    assert not accepts("grammar", f'start: r0\n{rules}\nr10000: "b"', "b")
    assert not accepts("grammar", f"start: %json {json.dumps(chain(3000))}", "b")


def test_what_would_take_long_is_refused() -> None:
    start_s = time.perf_counter()
    assert "at #/properties: may have at most 1500" in refusal("json_schema", obj(**{f"p{n}": {} for n in range(9000)}))
    branches = [{"type": "object", "properties": {f"p{n}": {}}, "required": [f"p{n}"]} for n in range(1500)]
    assert "too many branches" in refusal("json_schema", {"oneOf": branches})
    lists = [{"enum": list(range(n, n + 1000)), "minimum": 0} for n in range(0, 9000, 300)]
    assert "at #/oneOf: a value may match" in refusal("json_schema", {"oneOf": lists})
    names = [f"n{number * 7919 % 900}" for number in range(901)]
    loop = {name: obj(("x",), x={"$ref": f"#/$defs/{after}"}) for name, after in itertools.pairwise(names)}
    assert "without end" in refusal("json_schema", {"$ref": "#/$defs/n0", "$defs": loop})
    assert time.perf_counter() - start_s < 10, "each takes a fraction of a second where nothing else runs"


def test_start_tokens_are_bounded_and_in_the_vocabulary() -> None:
    assert to_start_tokens(common_pb2.Constraint(starts_after_token_ids=[3, 4]), "c", 5) == (3, 4)
    for token_ids in ([5], [0] * 65):
        with pytest.raises(InvalidRequestError) as caught:
            to_start_tokens(common_pb2.Constraint(starts_after_token_ids=token_ids), "c", 5)
        assert caught.value.field == "c.starts_after_token_ids"


def test_a_json_rule_stands_in_a_grammar() -> None:
    rule = json_rule(json.dumps(obj(("a",), a={"type": "integer"})), "tools[0].parameters")
    grammar = f'start: "<t>" args "</t>"\nargs: {rule}'
    assert accepts("grammar", grammar, '<t>{"a": 1}</t>')
    assert not accepts("grammar", grammar, '<t>{\n"a": 1}</t>')
    with pytest.raises(InvalidRequestError, match=r"tools\[0\].parameters cannot be honoured: at #/not"):
        json_rule('{"not": {}}', "tools[0].parameters")


def test_a_tokenizer_like_sentencepieces_works() -> None:
    backend = metaspace_tokenizer()
    tokenizer = constraint_tokenizer(backend, backend.get_vocab_size(), [2])
    matcher = compile_constraint(ConstraintSpec("choice", '["the end"]'), tokenizer, "c").deep_copy()
    ids = backend.encode("the end", add_special_tokens=False).ids[1:]  # without the space that it adds
    assert matcher.consume_tokens(ids)
    assert matcher.is_stopped()


def test_an_end_has_a_logit_even_if_the_tokenizer_is_wider_than_the_logits() -> None:
    backend = byte_level_tokenizer(("<x>",))
    backend.add_special_tokens(["</s>"])
    num_logits = backend.token_to_id("</s>")
    for named in ([], [num_logits]):
        tokenizer = constraint_tokenizer(backend, num_logits, named)
        assert tokenizer.eos_tokens == [backend.token_to_id("<x>")], "llguidance would guess </s>, which has no logit"
        assert accepts("regex", "a+", "aa", tokenizer, backend)
    assert constraint_tokenizer(backend, num_logits + 1, [num_logits]).eos_tokens == [num_logits]
    with pytest.raises(ValueError, match="no special token"):
        constraint_tokenizer(byte_level_tokenizer(()), VOCAB_SIZE, [])


def test_padding_and_truncation_of_the_backend_stay_as_they_are() -> None:
    backend = byte_level_tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding(length=4)
    tokenizer = constraint_tokenizer(backend, VOCAB_SIZE, [IM_END_ID])
    assert accepts("regex", "a+b", "aaaaab", tokenizer, byte_level_tokenizer())
    assert len(tokenizer.tokenize_str("abcdefgh")) > 4
    assert (backend.truncation["max_length"], backend.padding["length"]) == (2, 4)
