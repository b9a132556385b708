"""Files that requests have as documents, or name by the ids of /v1/files: they are read before the request is converted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import pybase64
from fastapi import Request
from triptych.errors import InvalidRequestError
from triptych_common.media.data_url import decode_data_url
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES

from triptych_gateway.body_budget import BodyHold
from triptych_gateway.file_parts import FileParts
from triptych_gateway.pdf import PdfError, text_of_pdf
from triptych_gateway.state import Gateway, gateway_of
from triptych_gateway.stores.files import StoredFile
from triptych_gateway.wire.documents import Document, as_prompt
from triptych_gateway.wire.errors import NotFoundError

_PDF = b"%PDF-"
#: What the files of a request may add to it: as much as the largest body that a gateway can be set to take.
_MAX_SENT_BYTES = MAX_MESSAGE_BYTES // 2


@dataclass
class FileInputs:
    """What a conversation has of such files, with the client's name of the field that has each."""

    documents: list[tuple[Document, str]] = field(default_factory=list)
    #: Ids of files that are media.
    media: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.documents or self.media)


class FileLoader:
    """Reads the files of one request.

    Args:
        tenant: whose files they must be.
        grow: waits for memory for so many bytes.
        request: whose client may go away; None if the loader's task is cancelled then.
    """

    def __init__(
        self, gateway: Gateway, tenant: str, grow: Callable[[int], Awaitable[None]], request: Request | None = None
    ) -> None:
        self._gateway, self._tenant, self._grow, self._request = gateway, tenant, grow, request
        self._limit = gateway.settings.max_body_bytes
        self._num_bytes = self._num_sent = 0

    @classmethod
    def of(cls, request: Request) -> FileLoader:
        """For a request whose body was read: its reservation grows by the files."""
        hold: BodyHold = request.state.body_hold
        return cls(gateway_of(request), request.state.principal.tenant, hold.grow, request)

    async def load(self, inputs: FileInputs, parts: FileParts) -> None:
        """Put contents of media and texts of documents into `parts`.

        Raises:
            NotFoundError: a file is not there, or it is another tenant's.
            InvalidRequestError: a document is no text, or the files are larger than a body may be, or make the request too large.
            QueueFullError: there is no memory for them.
            ClientDisconnectedError: the client went away. PDF files take long to read.
        """
        work = self._load(inputs, parts)
        await (work if self._request is None else self._gateway.until_disconnect(self._request, work))

    async def _load(self, inputs: FileInputs, parts: FileParts) -> None:
        for file_id, place in inputs.media:
            if file_id not in parts.stored:
                parts.stored[file_id] = (await self._content(file_id, place))[1]
            self._count_sent(len(parts.stored[file_id]), place)
        for document, place in inputs.documents:
            if document.key not in parts.texts:
                parts.texts[document.key] = await self._text(document, place)
            num_bytes = len(parts.texts[document.key])
            self._count_sent(num_bytes, place)
            await self._grow(num_bytes)

    def _count_sent(self, num_bytes: int, place: str) -> None:
        """A body of a few bytes names one file ten thousand times, and the text of a PDF file may be much larger than the file."""
        self._num_sent += num_bytes
        if self._num_sent > (limit := _MAX_SENT_BYTES):
            message = f"{place}: the contents of files, each as often as the request has it, have at most {limit} bytes together"
            raise InvalidRequestError(message, field=place, limit=limit, value=self._num_sent)

    async def _text(self, document: Document, place: str) -> str:
        if document.file_id is not None:
            place = f"{place}.file_id"
            file, content = await self._content(document.file_id, place)
            name = document.filename or file.filename
        else:
            place, name = f"{place}.file_data", document.filename or "file"
            content = _decoded(document.file_data or "", place)
        try:
            if content.startswith(_PDF):
                async with self._gateway.pdf_readers.held(self._tenant):
                    text = await text_of_pdf(content)
            else:
                text = await asyncio.to_thread(_plain_text, content)
        except (PdfError, ValueError) as error:
            raise InvalidRequestError(f"{place}: {name[:100]!r} {error}", field=place) from error
        return as_prompt(name, text)

    async def _content(self, file_id: str, place: str) -> tuple[StoredFile, bytes]:
        stores = self._gateway.files
        file = await stores.files.get(self._tenant, file_id) if stores is not None else None
        missing = NotFoundError(f"{place}: no file {file_id[:64]!r}", field=place)
        if stores is None or file is None:
            raise missing
        self._num_bytes += file.num_bytes
        if self._num_bytes > self._limit:
            message = f"{place}: the files of a request have at most {self._limit} bytes together (max_body_bytes)"
            raise InvalidRequestError(message, field=place, limit=self._limit, value=self._num_bytes)
        await self._grow(file.num_bytes)
        try:
            return file, await asyncio.to_thread(stores.files.content(file).read_bytes)
        except FileNotFoundError:
            raise missing from None


def document_inputs(documents: Iterable[tuple[Document, str]]) -> FileInputs:
    """Those of a conversation with no other files."""
    return FileInputs([*documents])


def _decoded(data: str, place: str) -> bytes:
    """The file of base64 or of a data: URL. Raises InvalidRequestError."""
    try:
        if data[:5].lower() == "data:":
            return decode_data_url(data, len(data))
        return pybase64.b64decode(data, validate=True)
    except ValueError as error:
        message = f"{place}: {error}" if data[:5].lower() == "data:" else f"{place}: must be a string in base64, or a data: URL"
        raise InvalidRequestError(message, field=place) from None


def _plain_text(content: bytes) -> str:
    """The text of a file. Raises ValueError, whose message continues a sentence that begins with the file's name."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError("is neither text in UTF-8 nor a PDF file; other documents are not read")
    return text
