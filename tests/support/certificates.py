"""Certificates for tests: an authority, and directories in the layout of `tls_dir`."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import Any

import trustme
from triptych_common.rpc.security.certificates import AUTHORITIES, CHAIN, KEY
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

_NOW = datetime.datetime.now(datetime.UTC)
EXPIRED = {"not_before": _NOW - datetime.timedelta(days=2), "not_after": _NOW - datetime.timedelta(days=1)}


@functools.cache
def authority(name: str) -> trustme.CA:
    """One authority of each name for all tests: `own`, or another one."""
    return trustme.CA(organization_name=name)


@functools.cache
def _issued(role: Role, ca: str, number: int) -> trustme.LeafCert:
    return authority(ca).issue_cert(role.dns_name, common_name=f"{role}-{number}")


def write(directory: Path, certificate: trustme.LeafCert, ca: str = "own") -> Path:
    """Write a certificate, its key and the certificate of an authority. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / KEY).write_bytes(certificate.private_key_pem.bytes())
    (directory / CHAIN).write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    (directory / AUTHORITIES).write_bytes(authority(ca).cert_pem.bytes())
    return directory


def write_role(directory: Path, role: Role, ca: str = "own", number: int = 1) -> Path:
    """Write the certificate of a role. Each number is another one. Its common name is role-number."""
    return write(directory, _issued(role, ca, number), ca)


def issue(*names: str, ca: str = "own", **options: Any) -> trustme.LeafCert:
    """A certificate with these names, and options of trustme."""
    return authority(ca).issue_cert(*names, **options)


def tls(directory: Path, role: Role, ca: str = "own") -> Tls:
    """The certificate of a process with this role."""
    return Tls(write_role(directory / f"{role}-{ca}", role, ca), role)


def write_all(directory: Path, number: int = 1) -> Path:
    """Write a directory with one directory for each role. Returns it."""
    for role in Role:
        write_role(directory / role, role, number=number)
    return directory
