"""Strings that are written without quotation marks, up to a marker, as rules of a grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema
from triptych_frontend.conversation.syntaxes.syntax import Literals, in_slashes

_KEYWORDS = {"type", "pattern", "minLength", "maxLength"}


def string_rules(
    rule: str, schema: Mapping[str, Any], end: str, whole: ToolSchema, literals: Literals, space: str = ""
) -> list[str]:
    """The rule for a string and the marker behind it, and the rules that it uses.

    Args:
        space: what stands between the two, and does not belong to the string.

    Raises:
        InvalidRequestError: the schema has a keyword that cannot be enforced there.
    """
    whole.check_keywords(schema, _KEYWORDS)
    least, most, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if least is None and most is None and pattern is None:
        return literals.until(rule, end)
    bodies = []
    if least is not None or most is not None:
        bodies.append(f"(?s:.){{{int(least or 0)},{'' if most is None else int(most)}}}")
    if pattern is not None:
        body = _whole_pattern(str(pattern))
        if body is None:
            whole.refuse("pattern")
        bodies.append(str(body))
    return literals.until(rule, end, [f"{body}{in_slashes(space)}" for body in bodies])


def _whole_pattern(pattern: str) -> str | None:
    """A regular expression for the whole value, from one that may match anywhere in it. None if that cannot be told."""
    parts = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    starts, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
    body = parts[1 if starts else 0 : len(parts) - 1 if ends else len(parts)]
    if "^" in body or "$" in body or ((starts or ends) and _has_bare_alternative(body)):
        return None
    return f"{'' if starts else '(?s:.*)'}({in_slashes(''.join(body))}){'' if ends else '(?s:.*)'}"


def _has_bare_alternative(parts: list[str]) -> bool:
    depth = 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            return True
    return False
