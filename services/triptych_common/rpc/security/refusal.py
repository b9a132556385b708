"""Why a service lets no connection in. gRPC tells a refused client only that the connection was closed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.security.watched import utc
from triptych_common.targets import parse_address

_TIMEOUT_S = 3.0


async def why_refused(address: str, role: Role, tls: Tls) -> str:
    """Why no connection to the service can be made with the current certificate; empty if TLS is not the reason.

    Args:
        address: host:port.
        role: what the service must be.
    """
    host, port = parse_address(address)
    current = tls.watched.current
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if await _lets_in(host, port, role, current.client_context):
                return ""
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused: {error.verify_message}"
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if reason == "wrong version number":
            return "it speaks no TLS, and this service does (tls_dir)"
        return f"the TLS handshake failed: {reason}"
    except (OSError, TimeoutError):
        return ""
    if time.time() > current.expiry_s:
        return f"it refused this service's certificate, which has expired: {utc(current.expiry_s)}"
    return "it refused this service's certificate; its log says why, e.g. that its ca.crt has another authority"


async def _lets_in(host: str, port: int, role: Role, context: ssl.SSLContext) -> bool:
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=role.dns_name)
    try:
        # With TLS 1.3 a client learns only after the handshake that it was refused. A gRPC server speaks first.
        return bool(await reader.read(1))
    except ConnectionResetError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
