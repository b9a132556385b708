"""The servers that the cases name: mocks with and without TLS and keys, in this process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trustme
from triptych_mock.service import MockServer
from triptych_mock.settings import MockSettings

API_KEY = "secret-key"


@asynccontextmanager
async def mock_servers(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Start a mock of each kind. Yields `$NAME` -> address or path of a file.

    Args:
        folder: for certificates and keys.
    """
    places = _certificates(folder)
    tls = {"tls_certificate": folder / "server.pem", "tls_private_key": folder / "server.key"}
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        "$TLS": tls,
        "$MTLS": {**tls, "tls_client_ca": folder / "ca.pem"},
        "$TLS_KEY": {**tls, "api_key": API_KEY},
        "$KEY": {"api_key": API_KEY},
    }
    async with AsyncExitStack() as stack:
        for name, options in kinds.items():
            mock = MockServer(MockSettings(port=0, shutdown_grace_s=0.1, **options))
            await mock.start()
            stack.push_async_callback(mock.server.stop)
            # The name in the certificate, which a client of another machine would use too.
            places[name] = f"localhost:{mock.server.port}"
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))  # never listens
        places["$CLOSED"] = f"127.0.0.1:{closed.getsockname()[1]}"
        yield places


def _certificates(folder: Path) -> dict[str, str]:
    """Write the authority's, the server's and the client's files. Returns `$NAME` -> path."""
    ca, other = trustme.CA(), trustme.CA()
    server, client = ca.issue_cert("localhost", "127.0.0.1"), ca.issue_cert("client@example.org")
    blobs = {
        "ca.pem": ca.cert_pem,
        "other.pem": other.cert_pem,
        "server.pem": server.cert_chain_pems[0],
        "server.key": server.private_key_pem,
        "client.pem": client.cert_chain_pems[0],
        "client.key": client.private_key_pem,
    }
    for name, blob in blobs.items():
        blob.write_to_path(str(folder / name))
    names = {"$CA": "ca.pem", "$OTHER_CA": "other.pem", "$CLIENT_CERTIFICATE": "client.pem", "$CLIENT_KEY": "client.key"}
    return {name: str(folder / file) for name, file in names.items()}
