"""What routers declare for their routes: who may use them, and the body of their errors.

A route needs an API key unless its router is declared open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from fastapi import APIRouter

from triptych_gateway.access.keys import given_keys
from triptych_gateway.wire.errors import ErrorBody


class Access(Enum):
    """Which callers may use a route."""

    #: Any caller that can reach the port.
    OPEN = "open"
    #: Callers with an API key, if the gateway has keys.
    KEY = "key"
    #: Callers with the API key of an operator, if the gateway has keys. These routes tell about the requests of all tenants.
    OPERATOR = "operator"
    #: Callers without a key, to whom the route shows less, and operators.
    OPEN_OR_OPERATOR = "open or operator"


class AccessRouter(APIRouter):
    """A router that declares the access to its routes. There is no default.

    Args:
        access: applies to all its routes. Paths of open routes and of those for operators have no parameters, because they are
            compared literally.
        folders: path prefixes of static files, with the same access as the routes.
        error_body: writes the errors of its routes; None means OpenAI's body.
        error_folder: a path prefix, whose unknown paths have such errors too.
    """

    def __init__(
        self,
        *,
        access: Access,
        folders: tuple[str, ...] = (),
        error_body: ErrorBody | None = None,
        error_folder: str = "",
        **options: Any,
    ) -> None:
        # A body without a content-type header is read as JSON.
        super().__init__(strict_content_type=False, **options)
        self.access = access
        self.folders = folders
        self.error_body = error_body
        self.error_folder = error_folder


class AccessPaths:
    """The access to each path. A path that no router declares open needs a key, also the path of a route that no router has.

    Args:
        routers: the routers of the application.
        further: open paths that are in no router.
    """

    def __init__(self, routers: Iterable[AccessRouter], further: Iterable[str] = ()) -> None:
        self._paths: dict[str, Access] = dict.fromkeys(further, Access.OPEN)
        folders = []
        for router in routers:
            if router.access is Access.KEY:
                continue
            if router.access is Access.OPEN:
                folders += [f"{folder.rstrip('/')}/" for folder in router.folders]
            for route in router.routes:
                path = str(getattr(route, "path", ""))
                if "{" in path:
                    raise ValueError(f"the route {path} has a parameter; the access to its router cannot be {router.access.value}")
                self._paths[path] = router.access
        self._open_folders = tuple(folders)

    def of(self, path: str, headers: Mapping[str, str]) -> Access:
        """The access to a path, for a request with these headers: OPEN, KEY or OPERATOR."""
        access = self._paths.get(path) or (Access.OPEN if path.startswith(self._open_folders) else Access.KEY)
        if access is Access.OPEN_OR_OPERATOR:
            return Access.OPERATOR if given_keys(headers) else Access.OPEN
        return access


class ErrorBodies:
    """The writers of errors by path. A path is known before its route is, for example when the key is wrong.

    Args:
        routers: those with an `error_body` are used.
    """

    def __init__(self, routers: Iterable[AccessRouter]) -> None:
        paths = (
            (path.partition("{")[0], router.error_body)
            for router in routers
            if router.error_body is not None
            for path in (router.error_folder, *(str(getattr(route, "path", "")) for route in router.routes))
            if path
        )
        #: Start of a path -> writer, the longest first. A path with parameters counts up to the first of them.
        self._bodies = sorted(paths, key=lambda entry: -len(entry[0]))

    def of(self, path: str) -> ErrorBody | None:
        """The writer for the routes of a path; None means OpenAI's body."""
        return next(
            (write for start, write in self._bodies if path == start or (start[-1:] == "/" and path.startswith(start))), None
        )
