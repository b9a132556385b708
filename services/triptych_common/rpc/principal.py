"""Who makes a request, and which caches its request may share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    #: Whose data the request may see. Empty for callers that nobody authenticated, who share one tenant.
    tenant: str = ""

    def scoped_salt(self, salt: str) -> str:
        """The salt under which this principal's cache entries and media names are kept.

        Two principals never have the same one, whatever salts their clients choose. Without tenant and salt it is empty.

        Args:
            salt: the client's own choice. It divides what the principal may share.
        """
        if not self.tenant and not salt:
            return ""
        # The length keeps tenant and salt apart: no choice of a salt can complete another tenant's name.
        return f"{len(self.tenant)}:{self.tenant}{salt}"


ANONYMOUS = Principal()
