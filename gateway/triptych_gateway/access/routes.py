"""Which routes need an API key. A route needs the key unless its router is declared open."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from fastapi import APIRouter


class Access(Enum):
    """Which callers may use a route."""

    #: Any caller that can reach the port.
    OPEN = "open"
    #: Callers with the API key, if the gateway has one.
    KEY = "key"


class AccessRouter(APIRouter):
    """A router that declares the access to its routes. There is no default.

    Args:
        access: applies to all its routes. Paths of open routes have no parameters, because they are compared literally.
        folders: path prefixes of static files, with the same access as the routes.
    """

    def __init__(self, *, access: Access, folders: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(**options)
        self.access = access
        self.folders = folders


class OpenPaths:
    """The paths that need no key. Every other path is closed, also the path of a route that no router declares.

    Args:
        routers: the open routers among them are used.
        further: open paths that are in no router.
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
