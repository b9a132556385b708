"""/v1/responses and all below it."""

from triptych_gateway.routes.responses.router import router

__all__ = ["router"]
