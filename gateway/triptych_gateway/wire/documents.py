"""Documents in conversations: files whose text the model reads."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from triptych.errors import InvalidRequestError

from triptych_gateway.file_parts import FileParts
from triptych_gateway.wire.schema import HistorySchema, optional, refuse

DocumentKey = tuple[str | None, str | None, str | None]


class Document(HistorySchema):
    """A document: text in UTF-8, or a PDF file with text."""

    file_id: str | None = optional("Of a file that was sent to /v1/files.", min_length=1, max_length=64)
    file_data: str | None = optional("The file in base64, or as a data: URL.", min_length=1)
    filename: str | None = optional("Its name, which the model sees; that of the file, if file_id is given.", max_length=512)

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.file_id is None) == (self.file_data is None):
            raise refuse("exactly one of file_id and file_data is required")
        return self

    @property
    def key(self) -> DocumentKey:
        """Tells it apart from all others of a request."""
        return self.file_id, self.file_data, self.filename


def document_text(document: Document, parts: FileParts, field: str) -> str:
    """What the model reads of a document. Raises InvalidRequestError where documents are not read."""
    text = parts.texts.get(document.key)
    if text is None:
        message = f"{field}: documents are only read in /v1/chat/completions and /v1/responses"
        raise InvalidRequestError(message, field=field)
    return text


def as_prompt(name: str, text: str) -> str:
    """A document between marks, so that the model can tell it from what is said about it."""
    return f'<file name="{name.replace(chr(34), chr(39))}">\n{text}\n</file>'
