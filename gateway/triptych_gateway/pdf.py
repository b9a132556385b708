"""Reads the text of a PDF file, in a process of its own.

pypdf is Python throughout: a large file takes seconds, and one that was made for it hours and all memory. So the gateway starts a
process with limits for each file.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import logging
import resource
import sys

#: Longest time for a file, in seconds, and most memory, in bytes.
_TIMEOUT_S, _MAX_MEMORY = 30, 1 << 30
#: Longest text, in characters. No model here takes as much.
_MAX_CHARS = 16 << 20
#: What Python runs in the process.
_COMMAND = ("-m", "triptych_gateway.pdf")
#: The exit code with which the process says on standard error why the file has no text.
_REFUSED = 3


class PdfError(Exception):
    """The file cannot be read. The message continues a sentence that begins with its name."""


async def text_of_pdf(content: bytes) -> str:
    """The text of a PDF file, page by page. Raises PdfError."""
    if importlib.util.find_spec("pypdf") is None:
        raise PdfError("is a PDF file, which this gateway cannot read: pypdf is not installed (triptych-server[pdf])")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *_COMMAND, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            text, errors = await process.communicate(content)
    except TimeoutError:
        raise PdfError(f"is a PDF file that takes longer than {_TIMEOUT_S} s to read") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return text.decode()
    reason = errors.decode(errors="replace").strip() if process.returncode == _REFUSED else "it is damaged or too large"
    raise PdfError(f"is a PDF file that cannot be read: {reason}")


def extracted(content: bytes) -> str:
    """The text of a PDF file. Raises PdfError; or what pypdf does of a damaged file."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise PdfError("it needs a password")
    pages: list[str] = []
    num_chars = 0
    for page in reader.pages:
        pages.append(page.extract_text())
        num_chars += len(pages[-1])
        if num_chars > _MAX_CHARS:
            raise PdfError(f"it has more than {_MAX_CHARS} characters")
    text = "\n\n".join(pages).strip()
    if not text:
        raise PdfError("it has no text; send pictures of its pages as images")
    return text


def main() -> int:
    """Read standard input, write its text. Returns the exit code."""
    logging.disable()  # standard error is for the reason
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_TIMEOUT_S, _TIMEOUT_S))
    try:
        text = extracted(sys.stdin.buffer.read())
    except PdfError as error:
        sys.stderr.write(str(error))
        return _REFUSED
    sys.stdout.buffer.write(text.encode(errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
