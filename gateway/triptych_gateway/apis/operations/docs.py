"""GET /docs: Swagger UI for /openapi.json. The gateway serves its scripts, so it works without internet access."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles

from triptych_gateway.access.routes import Access, AccessRouter

_ASSETS = "/docs/assets"
router = AccessRouter(access=Access.OPEN, folders=(_ASSETS,), include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The Swagger UI page."""
    root = request.scope.get("root_path", "")
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title=request.app.title,
        swagger_js_url=f"{root}{_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{root}{_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{root}{_ASSETS}/favicon.png",
    )


def mount_assets(app: FastAPI) -> None:
    """Serve the page's script and style sheet from the package fastapi-offline."""
    app.mount(_ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))
