"""Roles: what a certificate says of its owner, and the owner of the connection that a call came on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from triptych.v1 import common_pb2

#: A certificate's role is a DNS name in its SAN: `<role>.triptych.internal`. The name is never looked up.
DOMAIN = "triptych.internal"
#: Before the tenant of a caller that is its own tenant: `cert:<common name>`.
CERTIFICATE_TENANT = "cert:"


class Role(StrEnum):
    """What a process or a person with a certificate is."""

    GATEWAY = "gateway"
    FRONTEND = "frontend"
    ENCODER = "encoder"
    ENGINE = "engine"
    #: Control ports.
    OPERATOR = "operator"
    #: People's own gRPC clients of the frontend.
    CLIENT = "client"

    @property
    def dns_name(self) -> str:
        """The role's name in a certificate."""
        return f"{self}.{DOMAIN}"


_BY_NAME = {role.dns_name: role for role in Role}


def roles_of(names: Iterable[str]) -> frozenset[Role]:
    """The roles among a certificate's names."""
    return frozenset(_BY_NAME[name] for name in names if name in _BY_NAME)


@dataclass(frozen=True, slots=True)
class Peer:
    """The owner of the certificate at the other end of a connection."""

    roles: frozenset[Role]
    common_name: str
    #: All DNS names in the certificate, for messages.
    names: tuple[str, ...]

    @classmethod
    def of(cls, auth_context: Mapping[str, Iterable[bytes]]) -> Peer:
        """The peer of a call.

        Args:
            auth_context: of gRPC's servicer context.
        """
        # Not x509_subject_alternative_name, which has URIs and e-mail addresses as well. Those give no role.
        names = tuple(name.decode(errors="replace") for name in auth_context.get("peer_dns", ()))
        common_names = [name.decode(errors="replace") for name in auth_context.get("x509_common_name", ())]
        return cls(roles_of(names), common_names[0] if common_names else "", names)

    def __str__(self) -> str:
        roles = " and ".join(sorted(self.roles)) or f"no role ({', '.join(self.names) or 'no names'})"
        return f"{roles}, common name {self.common_name!r}" if self.common_name else roles


#: The peer of the current call; None without TLS.
current_peer: ContextVar[Peer | None] = ContextVar("current_peer", default=None)


def trusted_context(given: common_pb2.CallContext | None) -> common_pb2.CallContext | None:
    """The call's context, with a tenant that its sender may speak for.

    Only a gateway authenticates people, so only its word is taken. Any other caller with a certificate is its own tenant.
    Without TLS the sender is trusted.
    """
    peer = current_peer.get()
    if peer is None or Role.GATEWAY in peer.roles:
        return given
    context = common_pb2.CallContext()
    if given is not None:
        context.CopyFrom(given)
    context.tenant = f"{CERTIFICATE_TENANT}{peer.common_name or ','.join(peer.names)}"
    return context


def trusted_tenant(given: common_pb2.CallContext | None) -> str:
    """The tenant of `trusted_context`; empty for anonymous callers."""
    context = trusted_context(given)
    return context.tenant if context is not None else ""
