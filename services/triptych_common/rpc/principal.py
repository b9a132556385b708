"""Who asks: what authentication found out, and all that caches are kept apart by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    #: Whose data the request may see; empty for callers that nobody authenticated, who share one tenant.
    tenant: str = ""


ANONYMOUS = Principal()
