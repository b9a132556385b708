"""Reads the text of a PDF file, in a process of its own.

pypdf is Python throughout: a large file takes seconds, and one that was made for it hours and all memory.
"""

from __future__ import annotations

import importlib.util
import io
import sys

from triptych.errors import ServiceUnavailableError

from triptych_gateway.file_process import BusyError, Limits, UnreadableError, read_in_process, serve_file

#: Longest time for a file, in seconds, and most memory, in bytes.
_TIMEOUT_S, _MAX_MEMORY = 30, 1 << 30
#: Longest text, in characters. No model here takes as much.
_MAX_CHARS = 16 << 20
#: What Python runs in the process.
_COMMAND = ("-m", "triptych_gateway.pdf")


class PdfError(Exception):
    """The file cannot be read. The message continues a sentence that begins with its name."""


async def text_of_pdf(content: bytes) -> str:
    """The text of a PDF file, page by page.

    Raises:
        PdfError: it cannot be read.
        ServiceUnavailableError: the gateway had no time for it.
    """
    if importlib.util.find_spec("pypdf") is None:
        raise PdfError("is a PDF file, which this gateway cannot read: pypdf is not installed (triptych-server[pdf])")
    try:
        return (await read_in_process(_COMMAND, content, Limits(_TIMEOUT_S, _MAX_MEMORY))).decode()
    except BusyError as error:
        raise ServiceUnavailableError(f"a PDF file: {error}; try again later") from None
    except UnreadableError as error:
        raise PdfError(f"is a PDF file that cannot be read: {error}") from None


def extracted(content: bytes) -> bytes:
    """The text of a PDF file in UTF-8. Raises UnreadableError; or what pypdf does of a damaged file."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableError("it needs a password")
    pages: list[str] = []
    num_chars = 0
    for page in reader.pages:
        pages.append(page.extract_text())
        num_chars += len(pages[-1])
        if num_chars > _MAX_CHARS:
            raise UnreadableError(f"it has more than {_MAX_CHARS} characters")
    text = "\n\n".join(pages).strip()
    if not text:
        raise UnreadableError("it has no text; send pictures of its pages as images")
    return text.encode(errors="replace")


def main() -> int:
    """Read standard input, write its text. Returns the exit code."""
    return serve_file(extracted, Limits(_TIMEOUT_S, _MAX_MEMORY))


if __name__ == "__main__":
    sys.exit(main())
