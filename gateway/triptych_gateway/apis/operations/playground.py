"""GET /: the playground, a page to chat in the browser. Its files are in `playground/`. They need no build and no other server."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Self

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from triptych_gateway.access.routes import Access, AccessRouter

_FOLDER = "/playground"
_PAGE = "index.html"
_HEADERS = {
    # The page may load its own files and call this gateway. `blob:` is for previews of the files that the user attaches. Only
    # DOMPurify may make HTML of a text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",
    "permissions-policy": "camera=(self), microphone=(self), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # A browser keeps the files and asks each time whether they changed, so that a new version of the gateway has its own page.
    "cache-control": "no-cache",
}
router = AccessRouter(access=Access.OPEN, folders=(_FOLDER,), include_in_schema=False)


@dataclass(frozen=True)
class Asset:
    """A file of the playground.

    Args:
        content: the file.
        media_type: its content type.
        etag: changes with the content.
    """

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        """The file of that name."""
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return cls(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        headers = _HEADERS | {"etag": self.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


@cache
def assets() -> dict[str, Asset]:
    """The files of the playground by their paths in its folder. They are read once."""
    return {name: Asset.of(name, content) for name, content in _contents(files("triptych_gateway") / "playground")}


def _contents(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for path in folder.iterdir():
        if path.is_file():
            yield prefix + path.name, path.read_bytes()
        else:
            yield from _contents(path, f"{prefix}{path.name}/")


@router.api_route("/", methods=["GET", "HEAD"])
async def playground(request: Request) -> Response:
    """The page."""
    return assets()[_PAGE].response(request)


def mount_assets(app: FastAPI) -> None:
    """Serve the page's scripts and style sheet. A mount, so that they are one route in the metrics."""
    app.mount(_FOLDER, _serve)


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise HTTPException(404)
    request = Request(scope, receive)
    if request.method not in ("GET", "HEAD"):
        raise HTTPException(405, headers={"allow": "GET, HEAD"})
    name = scope["path"].removeprefix(f"{scope.get('root_path', '')}/")
    asset = assets().get(name)
    if asset is None or name == _PAGE:
        raise HTTPException(404)
    await asset.response(request)(scope, receive, send)
