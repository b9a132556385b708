"""Media files that clients upload before the call that uses them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2

#: How long a file waits for a call that takes it, in seconds.
EXPIRES_S = 60.0
#: Longest pause between two messages of an upload, in seconds.
_MAX_PAUSE_S = 30.0
#: Longest time for the content of an upload, in seconds.
_MAX_READ_S = 600.0
#: Smaller messages are collected in one buffer: an object for each of them would take more memory than the file.
_SMALL_BYTES = 16 << 10


class Reservation(Protocol):
    """Memory of one file."""

    @property
    def ends_s(self) -> float | None:
        """Time of the event loop at which the file must have arrived, because others wait for its memory; None: none is set."""
        ...

    def complete(self) -> None:
        """The file has arrived."""
        ...

    def release(self) -> None:
        """Give the memory back. May be called twice."""
        ...


@dataclass(frozen=True)
class _Upload:
    content: bytes
    tenant: str
    reservation: Reservation
    expiry: asyncio.TimerHandle


class Uploads:
    """Receives files and keeps each one until a call takes it or its time is over.

    Args:
        reserve: takes memory for a file of a tenant. It may wait, and raise QueueFullError.
        tenant_of: the tenant of an upload, by what its sender says of itself.
        max_bytes: most bytes of one file.
    """

    def __init__(
        self,
        reserve: Callable[[str, int], Awaitable[Reservation]],
        tenant_of: Callable[[common_pb2.CallContext], str],
        max_bytes: int,
    ) -> None:
        self._reserve, self._tenant_of, self._max_bytes = reserve, tenant_of, max_bytes
        self._uploads: dict[str, _Upload] = {}  # upload id -> file

    def __len__(self) -> int:
        return len(self._uploads)

    async def receive(self, messages: AsyncIterator[generation_pb2.UploadMediaRequest]) -> generation_pb2.UploadMediaResponse:
        """Receive one file.

        Raises:
            InvalidRequestError: the file is too large, or does not have the announced length.
            ServiceUnavailableError: the upload stalled, or took too long.
            QueueFullError: there was no memory for the file in time.
        """
        parts = aiter(messages)
        first = await _next(parts)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidRequestError("the first message of an upload must be its header", field="header")
        header = first.header
        if not 0 < header.num_bytes <= self._max_bytes:
            message = f"a media file must have 1 to {self._max_bytes} bytes ; given: {header.num_bytes}"
            raise InvalidRequestError(message, field="header.num_bytes", limit=self._max_bytes, value=header.num_bytes)
        tenant = self._tenant_of(header.context)
        reservation = await self._reserve(tenant, header.num_bytes)
        try:
            async with _at_most(_MAX_READ_S, "took longer than"):
                content = await _read(parts, header.num_bytes, reservation)
            reservation.complete()
        except BaseException:
            reservation.release()
            raise
        upload_id = secrets.token_urlsafe(16)
        expiry = asyncio.get_running_loop().call_later(EXPIRES_S, self.drop, upload_id)
        self._uploads[upload_id] = _Upload(content, tenant, reservation, expiry)
        return generation_pb2.UploadMediaResponse(upload_id=upload_id, expires_s=EXPIRES_S)

    def look(self, upload_id: str, tenant: str, field: str) -> bytes:
        """The file, which stays here until `drop`.

        Raises:
            InvalidRequestError: the id is unknown, or belongs to another tenant.
        """
        upload = self._uploads.get(upload_id)
        if upload is None or upload.tenant != tenant:
            message = f"{field}.upload_id is not known here (any more); upload the file again"
            raise InvalidRequestError(message, field=f"{field}.upload_id", value=upload_id)
        return upload.content

    def drop(self, upload_id: str) -> None:
        """Forget a file, and give its memory back. Whoever still needs its content reserves it anew."""
        if upload_id in self._uploads:
            upload = self._uploads.pop(upload_id)
            upload.expiry.cancel()
            upload.reservation.release()

    def close(self) -> None:
        """Drop all files."""
        for upload_id in list(self._uploads):
            self.drop(upload_id)


@asynccontextmanager
async def _at_most(timeout_s: float, what: str) -> AsyncIterator[None]:
    """Raise ServiceUnavailableError if the block takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise ServiceUnavailableError(f"the upload {what} {timeout_s:g} s", limit=timeout_s) from None


async def _next(
    parts: AsyncIterator[generation_pb2.UploadMediaRequest], reservation: Reservation | None = None
) -> generation_pb2.UploadMediaRequest | None:
    ends_s, pause_s = reservation.ends_s if reservation is not None else None, _MAX_PAUSE_S
    if ends_s is not None:
        pause_s = min(pause_s, max(0.0, ends_s - asyncio.get_running_loop().time()))
    async with _at_most(pause_s, "stalled for"):
        return await anext(parts, None)


async def _read(parts: AsyncIterator[generation_pb2.UploadMediaRequest], num_bytes: int, reservation: Reservation) -> bytes:
    pieces, num_read = list[bytes | bytearray](), 0
    while (part := await _next(parts, reservation)) is not None:
        if part.WhichOneof("part") != "data":
            raise InvalidRequestError("an upload has one header, then data", field="header")
        data = part.data
        if not data:
            raise InvalidRequestError("a message of an upload has no data", field="data")
        if len(data) >= _SMALL_BYTES:
            pieces.append(data)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        num_read += len(data)
        if num_read > num_bytes:
            break
    if num_read != num_bytes:
        given = f"more than {num_bytes}" if num_read > num_bytes else str(num_read)
        message = f"the upload announced {num_bytes} bytes and has {given}"
        raise InvalidRequestError(message, field="data", limit=num_bytes, value=num_read)
    return b"".join(pieces)
