"""The servers that the cases name: mocks with and without TLS and keys, or gateways in front of a mock, in this process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trustme
from pydantic import SecretStr
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_gateway.connections.https import Https
from triptych_gateway.rpc.server import GrpcServer
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway
from triptych_mock.service import MockServer
from triptych_mock.settings import MockSettings

API_KEY = "secret-key"


#: Where the mock is that sees the calls, among the places.
MOCK = "$MOCK"


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
        places[MOCK] = places[""]
        places["$CLOSED"] = stack.enter_context(_closed_port())
        yield places


@asynccontextmanager
async def gateway_servers(folder: Path) -> AsyncIterator[dict[str, str]]:
    """The same with a gateway of each kind in front of one mock. The default one asks for `API_KEY`; none asks for certificates."""
    places = _certificates(folder)
    https = folder / "https"
    https.mkdir()
    for source, name in (("server.pem", "tls.crt"), ("server.key", "tls.key")):
        (https / name).write_bytes((folder / source).read_bytes())
    async with AsyncExitStack() as stack:
        mock = MockServer(MockSettings(port=0, shutdown_grace_s=0.1))
        await mock.start()
        stack.push_async_callback(mock.server.stop)
        places[MOCK] = f"127.0.0.1:{mock.server.port}"
        for name, has_key, has_tls in (("", True, False), ("$KEY", True, False), ("$TLS", False, True), ("$TLS_KEY", True, True)):
            gateway = Gateway(
                GatewaySettings(
                    grpc_port=0,
                    frontend_addresses=(places[MOCK],),
                    api_key=SecretStr(API_KEY) if has_key else None,
                    https_dir=https if has_tls else None,
                    max_body_bytes=MAX_MESSAGE_BYTES // 2,
                )
            )
            gateway.grpc_server = grpc_server = GrpcServer(gateway, Https(https) if has_tls else None)
            places[name] = f"localhost:{grpc_server.listen()}"
            await gateway.open()
            stack.push_async_callback(gateway.close)
            await gateway.pool.until_ready()
        places["$CLOSED"] = stack.enter_context(_closed_port())
        yield places


@contextmanager
def _closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{closed.getsockname()[1]}"


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
