"""/v1/files and /v1/uploads: requests and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, InstanceOf, WithJsonSchema

from triptych_gateway.stores.files import StoredFile
from triptych_gateway.wire.schema import ExpiresAfter, Schema, optional, refuse

MAX_NAME_CHARS = 512
#: Purposes that OpenAI knows and that nothing here has.
_ELSEWHERE = ("assistants", "evals", "fine-tune")


def _served(value: Any) -> Any:
    if value in _ELSEWHERE:
        raise refuse(f"the purpose {value!r} is not served; send batch, user_data or vision", "unsupported")
    return value


_Served = Literal["batch", "user_data", "vision"]
Purpose = Annotated[_Served, BeforeValidator(_served, json_schema_input_type=_Served)]


@dataclass(frozen=True)
class ReceivedFile:
    """A file of a form, which is in the store of files already."""

    name: str
    num_bytes: int


def _file(value: Any) -> Any:
    if not isinstance(value, ReceivedFile):
        raise refuse("must be a file, so its part of the form needs a filename")
    if not value.num_bytes:
        raise refuse("is empty (0 bytes)")
    if not 0 < len(value.name) <= MAX_NAME_CHARS:
        raise refuse(f"its name must have 1 to {MAX_NAME_CHARS} characters; it has {len(value.name)}")
    return value


FormFile = Annotated[InstanceOf[ReceivedFile], BeforeValidator(_file), WithJsonSchema({"type": "string", "format": "binary"})]


class FileForm(Schema):
    """A file."""

    file: Annotated[FormFile, Field(description="The file, with a name.")]
    purpose: Annotated[Purpose, Field(description="batch: the requests of a batch; user_data and vision: for requests to a model.")]
    expires_after: ExpiresAfter | None = optional(
        "Default: 30 days for the purpose batch; other files stay until they are deleted."
    )


class UploadRequest(Schema):
    """A file that will come in parts."""

    bytes: Annotated[int, Field(ge=1, description="Size of the whole file.")]
    filename: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    mime_type: Annotated[str, Field(min_length=1, max_length=256, description="A label; it changes nothing.")]
    purpose: Purpose
    expires_after: ExpiresAfter | None = optional("Of the file, from its completion on; as in POST /v1/files.")


class PartForm(Schema):
    """A part of an upload."""

    data: Annotated[FormFile, Field(description="The bytes, up to 64 MiB.")]


class CompleteUploadRequest(Schema):
    """The parts of a file, in order."""

    part_ids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=10_000, fail_fast=True)]
    md5: str | None = optional("Of the whole content, in hex. Another content is refused.", max_length=32)


class FileObject(BaseModel):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output", "user_data", "vision"]
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: StoredFile) -> FileObject:
        """The object of a file."""
        return cls(
            id=file.id,
            bytes=file.num_bytes,
            created_at=file.created_s,
            expires_at=file.expires_s,
            filename=file.filename,
            purpose=file.purpose,  # type: ignore[arg-type]
        )


class FileList(BaseModel):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedFile(BaseModel):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class UploadObject(BaseModel):
    """An upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: Annotated[int, Field(description="When it must be complete, in seconds since 1970.")]
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: Annotated[FileObject | None, Field(description="The file, once it is complete.")] = None


class UploadPart(BaseModel):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
