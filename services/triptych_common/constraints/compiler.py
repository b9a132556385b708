"""Compiles constraints with llguidance.

`grammar` takes llguidance's dialect of Lark (its docs/syntax.md): the start rule is `start`, rules are lower case and terminals are
upper case, `<|name|>` is a special token of the tokenizer, `<[123]>` a token by its id, `%json {...}` a JSON value that matches a
schema, `%regex {...}` a substring of a text, and `rule[max_tokens=9]` bounds a part. `json_rule` writes the schema of a `%json`
with the same rules as `json_schema` has: compact, checked, with `oneOf` as the specification says.

JSON is compact: no line breaks, and at most one space after `{`, `[`, `,` and `:` and before `}`, `]` and `,`. Small models would
otherwise fill their tokens with white space. One optional space, rather than none, lets a model write as it was trained to.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from triptych.errors import InvalidRequestError

from triptych_common.constraints.deep_stack import with_deep_stack
from triptych_common.constraints.json_schema import ReadSchema, Schema, SchemaError, check_ends, children, read_schema
from triptych_common.constraints.one_of import resolve_one_of
from triptych_common.constraints.spec import ConstraintSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

#: Options of every JSON grammar. A schema's own `x-guidance` is left out when it is read, so it cannot change them.
_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "whitespace_pattern": " ?",
    "coerce_one_of": False,
    "lenient": False,
}
#: Bounds of a grammar, so that it compiles within a second. llguidance takes 50,000 units of fuel per millisecond.
_LIMITS: dict[str, Any] = {"initial_lexer_fuel": 1_000_000, "max_grammar_size": 200_000, "verbose_errors": False}
#: Seconds in which the part of a schema is looked for that cannot be compiled.
_SEARCH_S = 0.2
_MAX_REASON = 300


def compile_constraint(spec: ConstraintSpec, tokenizer: LLTokenizer, field: str) -> LLMatcher:
    """A matcher in its first state. It may take a second, so call it in a thread; it releases the interpreter lock.

    Args:
        field: path of the constraint in the request, for errors.

    Raises:
        InvalidRequestError: the constraint cannot be honoured. The message names the place in the schema or grammar.
    """
    return with_deep_stack(lambda: _compile(spec, tokenizer, f"{field}.{spec.kind}"))


def _compile(spec: ConstraintSpec, tokenizer: LLTokenizer, own: str) -> LLMatcher:
    """own: path of the constraint's text in the request."""
    from llguidance import LLMatcher, LLParserLimits

    read = None
    try:
        if spec.kind in ("json_schema", "json_object"):
            read = _read(spec.text or '{"type": "object"}')
        matcher = LLMatcher(tokenizer, _grammar(spec, read), log_level=0, limits=LLParserLimits(**_LIMITS))
        if not matcher.is_error():
            trial = matcher.deep_copy()
            trial.compute_bitmask()  # some grammars fail only at their first token
        if error := matcher.get_error() or trial.get_error():
            if read is not None:
                raise SchemaError(_failing_part(read, error), _reason(error))
            raise ValueError(_reason(error))
    except SchemaError as failure:
        raise InvalidRequestError(f"{own} cannot be honoured: at {failure}", field=own) from failure
    except RecursionError as failure:
        raise InvalidRequestError(f"{own} cannot be honoured: it is nested too deeply", field=own) from failure
    except ValueError as failure:
        raise InvalidRequestError(f"{own} cannot be honoured: {failure}", field=own) from failure
    return matcher


def json_rule(text: str, field: str) -> str:
    """`%json {...}` for a Lark grammar, from a JSON Schema. Raises InvalidRequestError, which names the place in the schema.

    Args:
        field: path of the schema in the request, for errors.
    """
    try:
        read = _read(text)
    except RecursionError as error:
        raise InvalidRequestError(f"{field} cannot be honoured: it is nested too deeply", field=field) from error
    except SchemaError as error:
        raise InvalidRequestError(f"{field} cannot be honoured: at {error}", field=field) from error
    return "%json " + json.dumps({**json.loads(read.text()), "x-guidance": _JSON_OPTIONS})


def _read(text: str) -> ReadSchema:
    read = read_schema(text)
    check_ends(read)
    resolve_one_of(read)
    return read


def _grammar(spec: ConstraintSpec, read: ReadSchema | None) -> str:
    from llguidance import LLMatcher

    if read is not None:
        return LLMatcher.grammar_from_json_schema(read.text(), overrides=_JSON_OPTIONS)
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.text)
    if spec.kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(spec.text))))
    if spec.text.lstrip().startswith("{"):
        raise ValueError("a grammar is written in Lark's notation, not in JSON")  # llguidance would take its own JSON format too
    return LLMatcher.grammar_from_lark(spec.text)


def _reason(error: str) -> str:
    """llguidance's error in one line, without the excerpt of the grammar and the state of its parser."""
    first, *others = error.strip().split("<state>")[0].strip().splitlines() or ["unknown error"]
    detail = next((line.removeprefix("error: ") for line in others if line.startswith("error: ")), "")
    return f"{first} {detail}".strip()[:_MAX_REASON]


def _failing_part(read: ReadSchema, error: str) -> str:
    """The path of the smallest part of a schema that has the same error as the whole."""
    from llguidance import LLMatcher, LLParserLimits

    limits, end_s = LLParserLimits(**_LIMITS), time.perf_counter() + _SEARCH_S

    def fails(part: Schema) -> bool:
        grammar = LLMatcher.grammar_from_json_schema(read.text(part), overrides=_JSON_OPTIONS)
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits)
        return failed and _reason(messages[0]) == _reason(error)

    part, seen = read.root, set[int]()
    while True:
        parts = children(part)
        if isinstance(part, dict) and "$ref" in part:
            parts.append(read.defs[part["$ref"].removeprefix("#/$defs/")])
        seen.add(id(part))
        left = (one for one in parts if isinstance(one, dict) and id(one) not in seen and time.perf_counter() < end_s)
        smaller = next((one for one in left if fails(one)), None)
        if smaller is None:
            return read.path(part)
        part = smaller
