"""Certificates in a directory, as cert-manager lays them out: `tls.crt`, `tls.key`, and `ca.crt` for mutual TLS.

They are checked as a peer checks them: by a TLS handshake in memory. So no other library is needed to read certificates.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from triptych.errors import StartupError

from triptych_common.rpc.security.roles import Role, roles_of

CHAIN, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_MAX_FILE_BYTES = 1 << 20
#: Attempts to read files that are replaced meanwhile.
_MAX_ATTEMPTS = 5
_HINTS = {
    "unable to get local issuer certificate": f"it was not issued by an authority in {AUTHORITIES}",
    "self-signed certificate": f"it was not issued by an authority in {AUTHORITIES}",
    "unsuitable certificate purpose": "its extended key usage must allow both server auth and client auth",
}


@dataclass(frozen=True)
class PemFiles:
    """The content of a directory."""

    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes = b""


@dataclass(frozen=True)
class Certificates:
    """A certificate that was checked, its key, and the authorities of its peers."""

    files: PemFiles
    #: When the certificate expires, as Unix time in seconds.
    expiry_s: float
    #: Its DNS names.
    names: tuple[str, ...]
    #: With this certificate, for Python's own TLS. Clients check host names.
    server_context: ssl.SSLContext = field(repr=False)
    client_context: ssl.SSLContext = field(repr=False)


def read_pem(directory: Path, *, mutual: bool) -> PemFiles:
    """The files of a directory. Raises StartupError, which names the file, when one cannot be read.

    Args:
        mutual: with the authorities of clients.
    """
    chain = _read(directory / CHAIN, b"CERTIFICATE-----")
    key = _read(directory / KEY, b"PRIVATE KEY-----")
    return PemFiles(chain, key, _read(directory / AUTHORITIES, b"CERTIFICATE-----") if mutual else b"")


def load_mutual(directory: Path, role: Role) -> Certificates:
    """The certificate of a service for mutual TLS.

    Raises:
        StartupError: a file is missing, certificate and key are no pair, or the certificate is expired, is of another authority, or
            does not name the role.
    """
    certificates = _load(directory, mutual=True)
    if role not in roles_of(certificates.names):
        names = ", ".join(certificates.names) or "none"
        raise StartupError(f"{directory / CHAIN}: the {role} needs a certificate for the DNS name {role.dns_name}; it has: {names}")
    return certificates


def load_https(directory: Path) -> Certificates:
    """The certificate of an HTTPS server. Raises StartupError: a file is missing, the files are no pair, or it has expired."""
    return _load(directory, mutual=False)


def _load(directory: Path, *, mutual: bool) -> Certificates:
    for attempt in range(_MAX_ATTEMPTS):
        files = read_pem(directory, mutual=mutual)
        try:
            certificates = _checked(directory, files, mutual=mutual)
        except StartupError:
            # The files may have been replaced between two reads.
            if attempt + 1 == _MAX_ATTEMPTS or read_pem(directory, mutual=mutual) == files:
                raise
        else:
            if read_pem(directory, mutual=mutual) == files:
                return certificates
    raise StartupError(f"{directory}: the files changed while they were read")


def _read(path: Path, marker: bytes) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror or error}") from None
    if marker not in content:
        what = "certificate" if marker.startswith(b"CERT") else "private key"
        raise StartupError(f"{path}: there is no {what} in PEM format in this file")
    return content


def _checked(directory: Path, files: PemFiles, *, mutual: bool) -> Certificates:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_pair(server, directory)
    if not mutual:  # gRPC sets its own
        server.set_alpn_protocols(["http/1.1"])
    if mutual:
        _load_pair(client, directory)
        for context in (server, client):
            try:
                context.load_verify_locations(cadata=files.authorities.decode("ascii", errors="replace"))
            except ssl.SSLError as error:
                raise StartupError(f"{directory / AUTHORITIES}: {_reason(error)}") from None
        server.verify_mode = ssl.CERT_REQUIRED
    else:
        # The authority is not known here, so the certificate itself stands for it.
        _trust_itself(client, directory)
    client.check_hostname = False
    try:
        peer = _certificate_in_handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        why = next((hint for text, hint in _HINTS.items() if text in error.verify_message), error.verify_message)
        raise StartupError(f"{directory / CHAIN}: peers would refuse this certificate: {why}") from None
    except ssl.SSLError as error:
        raise StartupError(f"{directory / CHAIN}: no TLS connection can be made with it: {_reason(error)}") from None
    client.check_hostname = True
    client.set_alpn_protocols(["h2"])  # gRPC servers refuse others
    names = tuple(str(value) for kind, value in peer.get("subjectAltName", ()) if kind == "DNS")
    return Certificates(files, ssl.cert_time_to_seconds(str(peer["notAfter"])), names, server, client)


def _load_pair(context: ssl.SSLContext, directory: Path) -> None:
    def refuse() -> NoReturn:
        # Without this, OpenSSL would ask for the password on the terminal.
        raise StartupError(f"{directory / KEY}: the key is encrypted; services need one without a password")

    try:
        context.load_cert_chain(directory / CHAIN, directory / KEY, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StartupError(f"{directory / KEY}: the key does not belong to the certificate in {CHAIN}") from None
        raise StartupError(f"{directory}: {CHAIN} and {KEY} cannot be used: {_reason(error)}") from None
    except OSError as error:
        raise StartupError(f"{directory}: {error.strerror or error}") from None


def _trust_itself(context: ssl.SSLContext, directory: Path) -> None:
    try:
        context.load_verify_locations(directory / CHAIN)
    except ssl.SSLError as error:
        raise StartupError(f"{directory / CHAIN}: {_reason(error)}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _certificate_in_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """The server's certificate, after a handshake in memory. Raises SSLError if one of the sides refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_side=False)
    waiting = [client_side, server.wrap_bio(to_server, to_client, server_side=True)]
    while waiting:
        for side in [*waiting]:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return client_side.getpeercert() or {}


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
