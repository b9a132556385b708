"""Which routes anybody may call. A route is closed unless its router is declared open."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from fastapi import APIRouter


class Access(Enum):
    """Who may call a route."""

    #: Whoever reaches the port.
    OPEN = "open"
    #: Whoever has a key, where keys are asked for.
    KEY = "key"


class AccessRouter(APIRouter):
    """A router that says who may call its routes; there is no default.

    Args:
        access: of all its routes. The paths of open ones have no parameters, as they are compared as they are.
        folders: path prefixes that are as open as the routes, for static files.
    """

    def __init__(self, *, access: Access, folders: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(**options)
        self.access = access
        self.folders = folders


class OpenPaths:
    """The paths that anybody may call; all others are closed, also those of routes that nobody thought of.

    Args:
        routers: the open ones among them count.
        further: paths that are in no router.
    """

    def __init__(self, routers: Iterable[AccessRouter], further: Iterable[str] = ()) -> None:
        open_routers = [router for router in routers if router.access is Access.OPEN]
        self._paths = frozenset(further).union(
            str(getattr(route, "path", "")) for router in open_routers for route in router.routes
        )
        self._folders = tuple(f"{folder.rstrip('/')}/" for router in open_routers for folder in router.folders)
        for path in self._paths:
            if "{" in path:
                raise ValueError(f"the open route {path} has a parameter; its router cannot be open")

    def __contains__(self, path: str) -> bool:
        return path in self._paths or path.startswith(self._folders)
