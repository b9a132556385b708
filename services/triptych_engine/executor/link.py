"""Connections between the hosts of one engine, over which pickles come: who has not the common key gets none through."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from pathlib import Path

from triptych.errors import StartupError

from triptych_engine.executor.channel import Channel

#: Longest time to connect, and to prove that one has the key, in seconds.
TIMEOUT_S = 5.0
#: A host that does not acknowledge data or probes for so long is gone, in seconds.
_GONE_S = 15
_NONCE_BYTES, _DIGEST_BYTES, _LEAST_SECRET_BYTES = 32, 32, 32
#: What the two ends prove differs, so that neither can send back what it got.
_DIALLED, _LISTENED = b"triptych node: dialled", b"triptych node: listened"


def read_secret(file: Path | None) -> bytes:
    """What the hosts share, and strangers do not have. Raises StartupError."""
    if file is None:
        raise StartupError("nnodes needs node_key_file: the nodes send each other code, so they must know each other")
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise StartupError(f"node_key_file: {file}: {error.strerror}") from error
    if len(secret) < _LEAST_SECRET_BYTES:
        raise StartupError(f"node_key_file: {file} has {len(secret)} bytes; at least {_LEAST_SECRET_BYTES} are needed")
    return secret


def dial(host: str, port: int, secret: bytes) -> Channel:
    """Connect to who listens there. Raises OSError, of which PermissionError says that the other end has another secret."""
    return _proven(socket.create_connection((host, port), TIMEOUT_S), secret, _DIALLED, _LISTENED)


def answer(sock: socket.socket, secret: bytes) -> Channel:
    """The channel to who has connected. Raises OSError like `dial`; the socket is closed then."""
    return _proven(sock, secret, _LISTENED, _DIALLED)


def _proven(sock: socket.socket, secret: bytes, own: bytes, other: bytes) -> Channel:
    """Prove to each other that both have the secret, by an HMAC of both ends' random numbers. The dialling one is first."""
    try:
        deadline = time.monotonic() + TIMEOUT_S
        sock.settimeout(TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_loss(sock)
        ours = secrets.token_bytes(_NONCE_BYTES)
        sock.sendall(ours)
        theirs = _read(sock, _NONCE_BYTES, deadline)
        nonces = b"".join(sorted((ours, theirs)))
        if own == _DIALLED:
            sock.sendall(_proof(secret, own, nonces))
        if not hmac.compare_digest(_read(sock, _DIGEST_BYTES, deadline), _proof(secret, other, nonces)):
            raise PermissionError("the node at the other end has another key")
        if own == _LISTENED:
            sock.sendall(_proof(secret, own, nonces))
    except BaseException:
        sock.close()
        raise
    return Channel(sock)


def _notice_loss(sock: socket.socket) -> None:
    """Let a connection fail when the other host is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 1000 * _GONE_S}
    for name, value in options.items():
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _proof(secret: bytes, end: bytes, nonces: bytes) -> bytes:
    return hmac.new(secret, end + nonces, hashlib.sha256).digest()


def _read(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        if (left_s := deadline - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left_s)
        part = sock.recv(size - len(data))
        if not part:  # as an end with another secret does
            raise PermissionError("the node at the other end has another key, or is none")
        data += part
    return data
