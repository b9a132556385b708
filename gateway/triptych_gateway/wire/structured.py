"""What the output must look like: OpenAI's `response_format`, and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from triptych_gateway.wire.schema import JsonSchema, NoOp, Schema, at, optional, refuse

MAX_CHOICES = 4096
#: Fields of StructuredOutputs of which one is given, as clients name them.
KINDS = ("json", "regex", "choice", "grammar", "json_object")

_SPACES = "JSON always has at most one space between its tokens, so that they are not filled with newlines"


class JsonSchemaFormat(Schema):
    """A JSON Schema, and labels for it."""

    name: str | None = optional("A label; the model does not see it.", max_length=256)
    description: str | None = optional("A label; the model does not see it.")
    json_schema: Annotated[JsonSchema, Field(alias="schema", description="The schema that the output follows.")]
    strict: bool | None = optional("The output follows the schema in any case, also with false.")


class ResponseFormat(Schema):
    """The format of the answer."""

    type: Annotated[Literal["text", "json_object", "json_schema"], Field(description="structural_tag is refused.")]
    json_schema: JsonSchemaFormat | None = optional("Required with the type json_schema, and only with it.")

    @model_validator(mode="before")
    @classmethod
    def _no_structural_tag(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "structural_tag":
            raise refuse("structural tags are not supported; send json_schema, or structured_outputs.grammar", "unsupported")
        return value

    @model_validator(mode="after")
    def _schema_if_it_is_one(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            needs = "is required" if self.json_schema is None else "is not allowed"
            raise at("response_format.json_schema", f"{needs} with the type {self.type}")
        return self


class StructuredOutputs(Schema):
    """One constraint on the output. The tokens that would break it are never generated."""

    json_: JsonSchema | str | None = optional(
        "A JSON Schema, as an object or as JSON text.", alias="json", union_mode="left_to_right"
    )
    regex: str | None = optional("A regular expression that the whole output matches.", min_length=1)
    choice: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)] | None
    ) = optional("The output is one of these strings.")
    grammar: str | None = optional("A context-free grammar in Lark's notation.", min_length=1)
    json_object: bool | None = optional("true: any JSON object.")
    disable_any_whitespace: Annotated[Any, NoOp(True, because=_SPACES)] = None
    disable_fallback: Annotated[Any, NoOp(True, False, because="there is one backend")] = None
    disable_additional_properties: Annotated[Any, NoOp(False, because="write additionalProperties into the schema")] = None
    whitespace_pattern: Annotated[Any, NoOp(because=_SPACES)] = None
    structural_tag: Annotated[Any, NoOp(because="send a grammar")] = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.given) != 1:
            raise refuse(f"send exactly one of {', '.join(KINDS)}; given: {', '.join(self.given) or 'none'}")
        return self

    @property
    def given(self) -> list[str]:
        """The kinds that are given. json_object: false asks for nothing."""
        values = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        return [name for name, value in zip(KINDS, values, strict=True) if value is not None]
