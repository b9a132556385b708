"""HTTP as uvicorn reads it, with a limit on what it keeps of a request before anybody has looked at it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Most bytes of a request's headers. A usual request has one or two thousand.
MAX_HEADER_BYTES = 64 << 10
TOO_LARGE = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
TOO_LARGE_CODE = "request_header_fields_too_large"
_BODY = f'{{"error":{{"message":"{TOO_LARGE}","type":"invalid_request_error","param":null,"code":"{TOO_LARGE_CODE}"}}}}'
_ANSWER = (
    "HTTP/1.1 431 Request Header Fields Too Large\r\n"
    f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\nconnection: close\r\n\r\n{_BODY}"
).encode()
#: While no headers are expected, so that nothing that is read exceeds the limit.
_NOT_COUNTED = -(1 << 62)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses headers and trailers that do not end. uvicorn keeps them in memory without limit, before any key is checked.

    Headers that ended within what was read so far are left to the application, whose error has the shape of the route's dialect.
    """

    #: Bytes that were read since headers or trailers began, without what was read together with their beginning.
    _num_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._num_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._num_bytes = _NOT_COUNTED
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A chunk of the body follows, or trailers."""
        self._num_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._num_bytes = _NOT_COUNTED
        super().on_body(body)
