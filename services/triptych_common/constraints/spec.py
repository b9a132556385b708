"""A constraint as a kind and a text, by which caches know it. Plain data: without protobuf and llguidance."""

from __future__ import annotations

from dataclasses import dataclass

#: The fields of `Constraint` that are honoured, see `Capabilities.constraints`.
KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What an output must match. Equal constraints have equal specs."""

    #: One of KINDS.
    kind: str
    #: The schema, the expression or the grammar; the choices as a JSON array; empty for json_object.
    text: str
