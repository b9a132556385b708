"""The caller of a request, and the caches that the request may share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    #: Whose data the request may see. Empty for unauthenticated callers, who share one tenant.
    tenant: str = ""

    def scoped_salt(self, salt: str) -> str:
        """The salt under which this principal's cache entries and media names are kept.

        Two principals never have the same salt, whatever salts their clients choose. Without tenant and salt it is empty.

        Args:
            salt: the client's own salt. It separates caches within one principal.
        """
        if not self.tenant and not salt:
            return ""
        # The length keeps tenant and salt apart: no salt can turn one tenant's name into another's.
        return f"{len(self.tenant)}:{self.tenant}{salt}"


ANONYMOUS = Principal()


def tenant_of_salt(scoped_salt: str) -> str:
    """The tenant of a salt that `Principal.scoped_salt` made. Any other text is of no tenant."""
    length, _, rest = scoped_salt.partition(":")
    return rest[: int(length)] if length.isascii() and length.isdecimal() and len(length) < 6 else ""
