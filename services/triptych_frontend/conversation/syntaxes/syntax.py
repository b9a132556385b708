"""How one call is written: `CallRules` are the grammar that forces such calls, and a `CallSyntax` makes their reader, too."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from triptych_common.constraints.compiler import json_rule

from triptych_frontend.conversation.syntaxes.call_reader import CallReader

#: Keywords beside which the properties of a schema are not all that an object may have.
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref")


class CallableTool(NamedTuple):
    """A tool that may be called."""

    name: str
    #: JSON Schema of its arguments, and the path of that schema in the request, for errors.
    parameters: Mapping[str, Any]
    field: str


#: name of a tool -> JSON Schema of its arguments
Tools = Mapping[str, Mapping[str, Any]]


class Literals:
    """Writes texts into a grammar in llguidance's dialect of Lark. Special tokens in them are tokens.

    Args:
        special_ids: text -> id of the special tokens.
    """

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.special_ids = special_ids
        contents = sorted(filter(None, special_ids), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, contents)) or r"(?!)")

    def __call__(self, text: str) -> str:
        """A text; empty for an empty one."""
        parts, end = [], 0
        for match in self._special.finditer(text):
            parts += [json.dumps(text[end : match.start()]), f"<[{self.special_ids[match[0]]}]>"]
            end = match.end()
        return " ".join(part for part in (*parts, json.dumps(text[end:])) if part != '""')

    def has_special(self, text: str) -> bool:
        """Whether a special token is in the text."""
        return self._special.search(text) is not None

    def until(self, rule: str, marker: str, bodies: Sequence[str] = ("(?s:.*)",), but: str = "") -> list[str]:
        """A rule for text up to the marker, and the marker. The text does not have it.

        Args:
            bodies: regular expressions, each of which the text matches.
            but: regular expression that the text and the marker together do not match.
        """
        special = self._special.search(marker)
        # Special tokens are no text, so that a marker with one can only be at the end.
        text, rest = (marker, "") if special is None else (marker[: special.start()], marker[special.start() :])
        terminal = rule.upper()
        parts = [f"/{body}{regex_of(text)}/" for body in bodies]
        if special is None and list(bodies) != ["(?s:.*)"]:
            parts.append(f"~/(?s:.*){regex_of(text)}(?s:.+)/")
        if but:
            parts.append(f"~/{but}/")
        head = f"{rule}: {terminal} {self(rest)}" if rest else f"{rule}[lazy]: {terminal}"
        return [head, f"{terminal}: {' & '.join(parts)}"]


class CallRules(ABC):
    """How one call is written when it is forced."""

    @abstractmethod
    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        """The rule `call_{number}`, which is a call of the tool, and the rules that it uses.

        Raises:
            InvalidRequestError: the tool's schema cannot be honoured.
        """


class CallSyntax(CallRules):
    """How one call is written, and read in the midst of text."""

    @abstractmethod
    def reader(self, tools: Tools) -> CallReader:
        """A reader of calls of these tools."""


def sequence(*parts: str) -> str:
    """Parts of a rule one after the other; empty parts are left out."""
    return " ".join(filter(None, parts))


def regex_of(text: str) -> str:
    """A regular expression for exactly this text, as it stands between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def in_slashes(pattern: str) -> str:
    """A regular expression as it stands between slashes."""
    return re.sub(r"\\.|/|\n", lambda match: {"/": r"\/", "\n": r"\n"}.get(match[0], match[0]), pattern, flags=re.DOTALL)


def json_value(schema: Any, field: str) -> str:
    """A JSON value that matches the schema, as part of a rule. Raises InvalidRequestError."""
    return json_rule(json.dumps(schema), field)


def json_call_rules(number: int, tool: CallableTool, before: str, after: str = "") -> list[str]:
    """The rules of a call whose arguments are a JSON object, between two parts of a rule. Raises InvalidRequestError."""
    arguments = f"arguments_{number}"
    return [f"call_{number}: {sequence(before, arguments, after)}", f"{arguments}: {json_value(tool.parameters, tool.field)}"]


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, whose objects have no properties but those that it names. A function has no other parameters either."""
    closed = dict(schema)
    properties = closed.get("properties")
    if isinstance(properties, dict):
        closed["properties"] = {name: closed_schema(item) if isinstance(item, dict) else item for name, item in properties.items()}
        if not any(keyword in closed for keyword in _OPEN_KEYWORDS):
            closed["additionalProperties"] = False
    if isinstance(closed.get("items"), dict):
        closed["items"] = closed_schema(closed["items"])
    return closed
