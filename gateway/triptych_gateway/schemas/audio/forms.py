"""Field types of multipart/form-data requests, whose values are strings and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from pydantic import BeforeValidator, InstanceOf, WithJsonSchema

from triptych_gateway.schemas.common import Schema, refuse


@dataclass(frozen=True)
class UploadedFile:
    """A file of a form."""

    name: str
    content: bytes = field(repr=False)


def _file(value: Any) -> Any:
    if not isinstance(value, UploadedFile):
        raise refuse("must be a file, so its part of the form needs a filename")
    if not value.content:
        raise refuse("is empty (0 bytes)")
    return value


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _flag(value: Any) -> Any:
    return {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}.get(value, value)


FormFile = Annotated[InstanceOf[UploadedFile], BeforeValidator(_file), WithJsonSchema({"type": "string", "format": "binary"})]
FormNumber = Annotated[float, BeforeValidator(_number)]
FormFlag = Annotated[bool, BeforeValidator(_flag)]


def takes_list(schema: type[Schema], name: str) -> bool:
    """Whether a field of a form may have several values."""
    info = schema.model_fields.get(name)
    return info is not None and any(get_origin(kind) is list for kind in (info.annotation, *get_args(info.annotation)))
