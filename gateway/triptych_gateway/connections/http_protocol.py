"""HTTP as uvicorn reads it, with a limit on what it keeps of a request before anybody has looked at it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sys
import termios

from triptych_common.host.open_files import max_accepted_connections
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Most bytes of a request's headers. A usual request has one or two thousand.
MAX_HEADER_BYTES = 64 << 10
TOO_LARGE = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
TOO_LARGE_CODE = "request_header_fields_too_large"
#: Longest time from a connection to its first request, from a request's first byte to the end of its headers, and of a TLS
#: handshake, in seconds.
HEADER_TIMEOUT_S = 20.0
#: Most connections at once. Each takes a file descriptor, and memory before anybody has looked at what it sends.
MAX_CONNECTIONS, MAX_GRPC_CONNECTIONS = 8192, 1024


def max_connections() -> int:
    """Most connections at the HTTP port.

    Fewer where the process may open few files. Without a free one, it reaches no frontend, and libuv can spin: it closes a spare
    file to accept and close the next connection, and if another thread takes that place meanwhile, it tries again without end.
    """
    left = max_accepted_connections(MAX_CONNECTIONS + MAX_GRPC_CONNECTIONS) - max_grpc_connections()
    return max(1, min(MAX_CONNECTIONS, left))


def max_grpc_connections() -> int:
    """Most connections at the gRPC port, each of which carries many calls: an eighth of all."""
    return max(1, min(MAX_GRPC_CONNECTIONS, max_accepted_connections(MAX_CONNECTIONS + MAX_GRPC_CONNECTIONS) // 8))


def _answer(status: str, message: str, kind: str, code: str) -> bytes:
    body = f'{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return (head + body).encode()


_ANSWER = _answer("431 Request Header Fields Too Large", TOO_LARGE, "invalid_request_error", TOO_LARGE_CODE)
_SLOW = _answer("408 Request Timeout", "the headers of the request are too slow", "invalid_request_error", "request_timeout")
_FULL = _answer("503 Service Unavailable", "too many connections", "service_unavailable_error", "service_unavailable")
#: A client that takes fewer bytes of a waiting answer in this time, in seconds, loses its connection. Short answers never wait:
#: uvicorn keeps 64 KiB before it lets the application wait, and the system keeps a few megabytes more.
READ_TIMEOUT_S, MIN_READ_BYTES = 60.0, 64 << 10
#: While no headers are expected, so that nothing that is read exceeds the limit.
_NOT_COUNTED = -(1 << 62)


log = logging.getLogger(__name__)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses headers and trailers that do not end, and closes the connections of clients that do not read their answers.

    uvicorn keeps such headers in memory without limit, before any key is checked. It waits for such clients without end; their
    requests then keep places that others need.

    Headers that ended within what was read so far are left to the application, whose error has the shape of the route's API.
    """

    #: Bytes that were read since headers or trailers began, without what was read together with their beginning.
    _num_bytes = 0
    #: Ends a connection whose headers do not come.
    _patience: asyncio.TimerHandle | None = None
    #: Whether the headers of a request have begun and not ended.
    _in_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.write(_FULL)
            transport.close()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        self._stop_watching()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(HEADER_TIMEOUT_S, self._lose_patience)

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        if self._is_busy:  # the next request has begun too early
            self._expect_headers()
        elif not self.transport.is_closing():
            if self._in_headers:
                self.transport.write(_SLOW)
            self.transport.close()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    #: Looks whether the client reads; set while an answer waits for it.
    _reading: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch_reading(self) -> None:
        self._reading = asyncio.get_running_loop().call_later(READ_TIMEOUT_S, self._check_reading, self._num_unread())

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _num_unread(self) -> int:
        """Bytes that wait in this process and, on Linux, in the system. The system takes more only after it has sent a megabyte."""
        num_bytes = self.transport.get_write_buffer_size()
        with contextlib.suppress(OSError):
            in_system = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            num_bytes += int.from_bytes(in_system, sys.byteorder)
        return num_bytes

    def _check_reading(self, num_unread_before: int) -> None:
        # Nothing was written meanwhile, so that the client has read what is missing.
        if num_unread_before - self._num_unread() >= MIN_READ_BYTES:
            self._watch_reading()
            return
        log.warning("a client read less than %d bytes of its answer in %g s: it is cut off", MIN_READ_BYTES, READ_TIMEOUT_S)
        # Not `close`, which would wait for the client to read what waits.
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._num_bytes += len(data)
        if not self._is_busy:
            # Also for an empty line, which begins no message and ends uvicorn's wait for one.
            self._expect_headers()
        super().data_received(data)
        if self._num_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self._is_busy and not self.cycle.more_body:  # it is the next one's headers, read on after the answer
                self.flow.pause_reading()
                return
            self.transport.write(_ANSWER)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._num_bytes = 0
        self._in_headers = True
        self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._num_bytes = _NOT_COUNTED
        self._stop_patience()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A chunk of the body follows, or trailers."""
        self._num_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._num_bytes = _NOT_COUNTED
        super().on_body(body)
