"""Messages between the processes of one engine, over a socket that nobody else can reach."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from typing import Any

_LENGTH = struct.Struct("<Q")
#: Messages up to this size are copied once more, to be sent with one system call.
_SMALL = 1 << 16


class Channel:
    """Sends and receives Python objects: the length as 8 bytes, then a pickle. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the socket for the process at its other end."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def send(self, message: Any, timeout_s: float | None = None) -> None:
        """Send a message; nothing is sent if it cannot be pickled. With a timeout, no other thread may use the channel.

        Raises:
            TimeoutError: the other end did not take it in time. The channel is of no use then.
            OSError: the other end is gone.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._socket.settimeout(timeout_s)
            try:
                if len(data) <= _SMALL:
                    self._socket.sendall(_LENGTH.pack(len(data)) + data)
                else:
                    self._socket.sendall(_LENGTH.pack(len(data)))
                    self._socket.sendall(data)
            except TimeoutError as error:
                if _is_own(error):
                    raise
                raise ConnectionAbortedError(*error.args) from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message. With a timeout, no other thread may use the channel.

        Raises:
            TimeoutError: none came in time. The channel is of no use then.
            EOFError: the other end is gone, or this one was closed.
        """
        try:
            self._socket.settimeout(timeout_s)
            header = self._read(_LENGTH.size)
            data = self._read(*_LENGTH.unpack(header))
        except OSError as error:
            if isinstance(error, TimeoutError) and _is_own(error):
                raise
            raise EOFError from error
        return pickle.loads(data)  # noqa: S301 - from a process of this engine

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            num_read = self._socket.recv_into(view)
            if num_read == 0:
                raise EOFError
            view = view[num_read:]
        return data

    def fileno(self) -> int:
        """A file descriptor that is readable when a message, or its end, has come."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the conversation; the other end sees EOFError. A thread that receives here does as well."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _is_own(error: TimeoutError) -> bool:
    """Whether the time was up that this end had set. Otherwise the other host is gone: ETIMEDOUT is a TimeoutError, too."""
    return error.errno is None
