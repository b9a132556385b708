"""Values of Python as fields of the contracts, and the errors of those that do not fit."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from google.protobuf.message import Message

from triptych.errors import InvalidRequestError

#: A JSON Schema: a dictionary, JSON text, or a pydantic model class.
JsonSchema = str | Mapping[str, Any] | type


#: Longest part of a value in an error, in characters.
_MAX_SHOWN = 200


def assign(message: Message, name: str, value: Any, path: str = "") -> None:
    """Set a field, unless the value is None.

    Args:
        path: of the value in what the caller gave, for errors. Default: the field's name.

    Raises:
        InvalidRequestError: the field cannot hold the value. It names both.
    """
    if value is None:
        return
    field = message.DESCRIPTOR.fields_by_name[name]
    of_type = field.message_type
    try:
        if of_type is not None and (of_type.GetOptions().map_entry or of_type.full_name == "google.protobuf.Struct"):
            getattr(message, name).update(value)
        elif isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        elif field.is_repeated:
            if isinstance(value, str | bytes | Mapping):  # its letters or keys are not what is meant
                raise TypeError("a list is needed")
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise refused(path or name, value, error) from error


def refused(path: str, value: object, why: object) -> InvalidRequestError:
    """The error of a value that a request cannot hold."""
    shown, whole = reprlib.repr(value), str(value)
    cut = whole if len(whole) <= _MAX_SHOWN else f"{whole[:_MAX_SHOWN]}..."
    return InvalidRequestError(f"{path} cannot be {shown}: {str(why)[:_MAX_SHOWN]}", field=path, value=cut)


def json_text(schema: JsonSchema, path: str) -> str:
    """A JSON Schema as JSON text; the order of properties is kept.

    Args:
        path: of the schema in what the caller gave, for errors.

    Raises:
        InvalidRequestError: it is no schema.
    """
    if isinstance(schema, str):
        return schema
    try:
        schema = cast(Any, schema).model_json_schema() if isinstance(schema, type) else schema
        if not isinstance(schema, Mapping | bool):
            raise TypeError("a JSON Schema is a dictionary, JSON text or a pydantic model class")
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, AttributeError) as error:
        raise refused(path, schema, error) from error


def listed(values: Any, path: str) -> list[Any]:
    """The elements of a list, a tuple, an array or an iterator. One string or one dictionary is no list of its letters or keys.

    Raises:
        InvalidRequestError: it is something else.
    """
    if isinstance(values, str | bytes | Mapping | Message) or not isinstance(values, Iterable):
        raise refused(path, values, "a list is needed")
    return [*values]
