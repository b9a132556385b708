"""API keys: their text, what each may do, and the file that has their hashes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from triptych_common.rpc.security.roles import CERTIFICATE_TENANT

from triptych_gateway.redaction import KEY_ID

#: The id of the key in the setting `api_key`. Ids in files are longer, so that none of them has it.
DEFAULT_ID = "default"
#: A key names its id, so that one lookup finds its entry. Only the part behind the id is secret.
_TEXT = re.compile(rb"sk-triptych-(" + KEY_ID.encode() + rb")-[A-Za-z0-9_-]{43}")
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SECRET_BYTES = 32
_MAX_FILE_BYTES = 16 << 20
#: Errors that are named of a file at most.
_MAX_ERRORS = 5
_PerMinute = Annotated[int, Field(ge=1, le=10**12)]


class KeyFileError(ValueError):
    """A file of keys cannot be used. The message names the key by its id, and the field."""


class ApiKey(BaseModel):
    """A key in a file. It has a hash in place of the key, so that a reader of the file cannot use the key."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, Field(pattern=f"^{KEY_ID}$", description="Public. It stands in the key, and in logs.")]
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", repr=False, description="SHA-256 of the whole key.")]
    name: Annotated[str, Field(max_length=200, description="A note for people.")] = ""
    tenant: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Whose caches and responses it uses. Default: its own, by its id."),
    ] = None
    models: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None, Field(min_length=1, description="Models that it may use. Default: all.")
    ] = None
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    max_concurrent_requests: Annotated[int, Field(ge=1, le=10**6)] | None = None
    priority: Annotated[
        int | None,
        Field(ge=-(2**31), le=2**31 - 1, description="The earliest priority of its requests; null lets the client choose."),
    ] = 0
    operator: Annotated[bool, Field(description="Whether it may use the routes for operators.")] = False
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None

    @field_validator("tenant", mode="before")
    @classmethod
    def _is_of_no_certificate(cls, tenant: Any) -> Any:
        if isinstance(tenant, str) and tenant.startswith(CERTIFICATE_TENANT):
            message = "must not begin with '{prefix}': such tenants belong to client certificates"
            raise PydanticCustomError("of_a_certificate", message, {"prefix": CERTIFICATE_TENANT})
        return tenant

    def refusal(self) -> Literal["revoked", "expired"] | None:
        """Why it is not accepted now; None if it is."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= datetime.now(UTC) else None


class KeyFile(BaseModel):
    """The content of a file of keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    version: Literal[1]
    keys: list[ApiKey]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        ids = [key.id for key in self.keys]
        twice = next((one for index, one in enumerate(ids) if one in ids[:index]), None) if len(set(ids)) < len(ids) else None
        if twice is not None:
            raise PydanticCustomError("twice", "two keys have the id {id}", {"id": twice})
        return self


def key_hash(text: bytes) -> bytes:
    """The hash under which a key is known. A key has 256 random bits, so that a slow hash, as for passwords, would add nothing."""
    return hashlib.sha256(text).digest()


def new_key() -> tuple[str, str, str]:
    """The id, the text and the hash (as in a file) of a new key."""
    key_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(10))
    text = f"sk-triptych-{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    return key_id, text, f"sha256:{key_hash(text.encode()).hex()}"


def id_in(text: bytes) -> str | None:
    """The id that a key names; None if the text has not the form of a key."""
    match = _TEXT.fullmatch(text)
    return match[1].decode() if match else None


def read_key_file(path: Path) -> bytes:
    """The bytes of a file of keys. Raises OSError."""
    # Reading a pipe or a terminal would block a thread for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            raise OSError(0, f"it is no file of at most {_MAX_FILE_BYTES} bytes")
        return file.read(_MAX_FILE_BYTES)


def parse_key_file(content: bytes) -> KeyFile:
    """The keys in a file. Raises KeyFileError, whose message quotes no values: one of them may be a key in the wrong place."""
    try:
        return KeyFile.model_validate_json(content)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        ids = _ids_by_index(content)
        told = "; ".join(_problem(problem, ids) for problem in problems[:_MAX_ERRORS])
        more = f"; and {len(problems) - _MAX_ERRORS} more" if len(problems) > _MAX_ERRORS else ""
        raise KeyFileError(told + more) from None


def _problem(problem: Any, ids: dict[int, str]) -> str:
    loc, message = list(problem["loc"]), str(problem["msg"])
    if loc[:1] == ["keys"] and len(loc) > 1 and isinstance(loc[1], int):
        loc[:2] = [f"key {ids.get(loc[1], f'number {loc[1] + 1}')}"]
    return ": ".join([*map(str, loc), message])


class _Sketch(BaseModel):
    keys: list[Any] = []


def _ids_by_index(content: bytes) -> dict[int, str]:
    """The ids of a file whose rest may be wrong."""
    try:
        entries = _Sketch.model_validate_json(content).keys
    except ValidationError:
        return {}
    ids = ((index, entry.get("id")) for index, entry in enumerate(entries) if isinstance(entry, dict))
    return {index: one for index, one in ids if isinstance(one, str) and re.fullmatch(KEY_ID, one)}


def given_keys(headers: Mapping[str, str]) -> list[bytes]:
    """The keys that a request has: OpenAI's clients send a bearer token, Anthropic's a header of its own, or both."""
    keys = [headers["x-api-key"]] if "x-api-key" in headers else []
    if "authorization" in headers:
        scheme, _, key = headers["authorization"].partition(" ")
        keys.append(key if scheme.lower() == "bearer" else "")
    # HTTP's headers are Latin-1, gRPC's metadata may have any characters. No key has.
    return [key.encode("latin-1", "replace") for key in keys]
