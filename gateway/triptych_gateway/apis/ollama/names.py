"""Names of models as Ollama's clients write them: with a tag, or without one, which means `latest`.

A model `m` is listed as `m:latest`, and found as `m` and `m:latest`. An adapter is `model:adapter`, so that its name is its tag.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, ClassVar

from fastapi import Request

from triptych_gateway.apis.json_body import JsonRequest, JsonRoute
from triptych_gateway.file_parts import OLLAMA_MARKS
from triptych_gateway.state import gateway_of

_LATEST = ":latest"


def served_name(given: str, known: Set[str]) -> str:
    """The name by which a model is served. A name that is known means itself; another one is tried with and without its tag."""
    if given in known:
        return given
    if given.endswith(_LATEST):
        return given.removesuffix(_LATEST)
    return given + _LATEST if given + _LATEST in known else given


def listed_name(name: str) -> str:
    """The name of a served model with its tag."""
    return name if ":" in name else name + _LATEST


def name_of(request: Request, given: str) -> str:
    """The name by which the model of a request is served."""
    return served_name(given, gateway_of(request).frontend.known_names)


class OllamaRequest(JsonRequest):
    """A request whose body names its model as Ollama's clients do."""

    file_marks: ClassVar[tuple[bytes, ...]] = OLLAMA_MARKS

    def model_named(self, value: Any) -> Any:
        """See JsonRequest. Older clients send `name`."""
        given = (value.get("model") or value.get("name")) if isinstance(value, dict) else None
        return name_of(self, given) if isinstance(given, str) else given


class OllamaRoute(JsonRoute):
    """A route that reads its body with OllamaRequest."""

    request_class: ClassVar[type[JsonRequest]] = OllamaRequest
