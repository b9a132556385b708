"""`triptych certs`: an authority and certificates for development, in the layout of `tls_dir`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from triptych.installation import install_command
from triptych_common.rpc.security.certificates import AUTHORITIES, CHAIN, KEY
from triptych_common.rpc.security.roles import Role

from triptych_cli.errors import CommandError
from triptych_cli.replacing import keep_owner_and_mode

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("cryptography"):
        raise
    message = f"triptych certs needs cryptography, which is not installed; run: {install_command('triptych-server', 'certs')}"
    raise CommandError(message) from error

_HTTPS = "https"
_AUTHORITY_KEY = "ca.key"
_AUTHORITY_DAYS = 3650
#: Clocks of other machines may be late by this much.
_CLOCK_DIFFERENCE = timedelta(minutes=5)
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def certs(directory: Path, *, days: int, names: Sequence[str], force: bool) -> list[Path]:
    """Write an authority, and a directory with a certificate for each role and for HTTPS. Returns these directories.

    Args:
        directory: may exist. An authority in it is used again.
        days: how long the certificates are valid.
        names: host names and IP addresses of the HTTPS certificate, in addition to those of this machine's loopback.
        force: replace certificates that are there.

    Raises:
        CommandError: there are certificates already, a file cannot be written, or the authority there cannot be used.
    """
    folders = {directory / role: [role.dns_name] for role in Role} | {directory / _HTTPS: [*_LOCAL_NAMES, *names]}
    existing = [folder / name for folder in folders for name in (CHAIN, KEY, AUTHORITIES) if (folder / name).exists()]
    if existing and not force:
        raise CommandError(f"{existing[0]} exists; --force replaces the certificates, and keeps the authority")
    try:
        authority, authority_key = _authority(directory)
        for folder, own_names in folders.items():
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _issue(folder.name, own_names, key, authority, authority_key, days)
            # The key first: whoever reads in between finds that it does not belong to the certificate, and reads again.
            _write(folder / KEY, _pem_of_key(key), is_secret=True)
            _write(folder / CHAIN, certificate.public_bytes(serialization.Encoding.PEM))
            _write(folder / AUTHORITIES, authority.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from error
    return [*folders]


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority in the directory, which is made if there is none."""
    certificate_file, key_file = directory / AUTHORITIES, directory / _AUTHORITY_KEY
    if certificate_file.exists() or key_file.exists():
        try:
            found = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise CommandError(f"the authority in {directory} ({AUTHORITIES}, {_AUTHORITY_KEY}) cannot be used: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != found.public_key():
            raise CommandError(f"{key_file} is not the key of {certificate_file}")
        if found.not_valid_after_utc < datetime.now(UTC):
            raise CommandError(f"{certificate_file} has expired; remove {directory} and make new certificates")
        return found, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Triptych development authority")])
    builder = _builder(name, name, key, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    made = builder.sign(key, hashes.SHA256())
    _write(key_file, _pem_of_key(key), is_secret=True)
    _write(certificate_file, made.public_bytes(serialization.Encoding.PEM))
    return made, key


def _issue(
    common_name: str,
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    uses = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(subject, authority.subject, key, days)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return builder.add_extension(identifier, critical=False).sign(authority_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCK_DIFFERENCE).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name)
        except ValueError as error:
            raise CommandError(f"--name {name!r} is neither an IP address nor a host name: {error}", exit_code=2) from error


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    encryption = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _write(path: Path, content: bytes, *, is_secret: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_secret else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        keep_owner_and_mode(temporary, path)
        temporary.replace(path)
    finally:
        # Is not there any more, if all went well. No key must be left behind.
        temporary.unlink(missing_ok=True)
