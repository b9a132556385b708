"""The client's names of the contract's fields, for errors of the frontend about a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from triptych.errors import TriptychError

from triptych_gateway.wire.conversation import Message
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.media import media_fields
from triptych_gateway.wire.tools import Tools

#: The contract's path of a field -> the client's path. A path also applies to all fields below it; the longest match is used. An
#: empty name means that the client's JSON lacks this level: with {"options": ""}, `options.n` is the client's `n`.
FieldNames = Mapping[str, str]
#: REST has the options at the top level.
FIELD_NAMES = {
    "options": "",
    "options.include_stop_in_output": "include_stop_str_in_output",
    "options.sampling": "",
    "options.beam_search": "use_beam_search",
    "options.beam_search.width": "best_of",
    "options.beam_search.length_penalty": "length_penalty",
    "sampling": "",
    "template_kwargs": "chat_template_kwargs",
    "reasoning": "reasoning_effort",
    "reasoning.effort": "reasoning_effort",
}
#: Fields of Constraint -> fields of structured_outputs.
_STRUCTURED = {"json_schema": "json", "json_object": "json_object", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def in_client_terms(error: TriptychError, names: FieldNames) -> TriptychError:
    """The error with its field named as the client named it, in the field and in the message."""
    paths = [path for path in _paths(error.field) if path in names]
    if not paths:
        return error
    renamed = (names[paths[0]] + error.field.removeprefix(paths[0])).removeprefix(".") or error.field
    # The message may also name what the field is a part of, and fields without their paths. Short names may be words of a sentence.
    replaced = {_leaf(path): _leaf(name) for path, name in names.items() if "_" in _leaf(path)}
    replaced |= {path: names[path] for path in paths} | {error.field: renamed}
    message = _replace_names(error.message, replaced)
    return type(error)(message, field=renamed, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _replace_names(text: str, names: Mapping[str, str]) -> str:
    """The text with whole names replaced, the longest that fits. An empty name replaces nothing."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{alternatives})(?!\w)", lambda match: names[match[0]] or match[0], text)


def _paths(field: str) -> Iterator[str]:
    """The field and all its parents, longest first: a.b[1].c, a.b[1], a.b, a."""
    while field:
        yield field
        field = field[: max(field.rfind("."), field.rfind("["), 0)]


def generation_fields(body: GenerationRequest, logprobs_name: str = "logprobs") -> dict[str, str]:
    """The names for the fields that requests for generated text share."""
    constraint = "options.constraint"
    if body.structured_outputs is None:
        names = {constraint: "response_format", f"{constraint}.json_schema": "response_format.json_schema.schema"}
    else:
        names = {constraint: "structured_outputs"}
        names |= {f"{constraint}.{kind}": f"structured_outputs.{name}" for kind, name in _STRUCTURED.items()}
    for sampling in ("options.sampling", "sampling"):
        names |= {f"{sampling}.logprobs": logprobs_name, f"{sampling}.max_tokens": body.token_limit_name}
    return FIELD_NAMES | names


def conversation_fields(messages: Sequence[Message], tools: Tools | None) -> dict[str, str]:
    """The names for messages and tools."""
    names = media_fields(messages)
    for number, message in enumerate(messages):
        if message.thoughts is not None:
            given = "reasoning_content" if message.reasoning_content is not None else "reasoning"
            names[f"messages[{number}].reasoning"] = f"messages[{number}].{given}"
        for call in range(len(message.tool_calls or ())):
            path = f"messages[{number}].tool_calls[{call}]"
            names |= {f"{path}.{name}": f"{path}.function.{name}" for name in ("name", "arguments")}
    for number in range(len(tools or ())):
        names |= {f"tools[{number}].{name}": f"tools[{number}].function.{name}" for name in ("name", "description", "strict")}
        names[f"tools[{number}].parameters_json_schema"] = f"tools[{number}].function.parameters"
    return names
