"""The identity of this process, as it reports it to other services."""

from __future__ import annotations

import secrets
import socket
from typing import Any

from triptych.v1 import common_pb2

from triptych_common import __version__
from triptych_common.settings import GrpcServiceSettings
from triptych_common.targets import URL_PASSWORD

_WILDCARDS = ("0.0.0.0", "::", "[::]", "*")  # noqa: S104 - only compared with, no socket listens on them


class Identity:
    """The identity of this process.

    Args:
        service: frontend, encoder or engine.
        settings: the service's settings. They give its advertised address; by default it is derived from the listen address.
    """

    def __init__(self, service: str, settings: GrpcServiceSettings) -> None:
        self._service = service
        self._settings = settings
        #: Unique to this process, so that a restarted service is not mistaken for its predecessor.
        self.id = secrets.token_hex(8)
        #: The actual port. It differs from the setting if that is 0.
        self.port = settings.port

    @property
    def address(self) -> str:
        """host:port where other services reach this service."""
        if self._settings.advertised_address is not None:
            return self._settings.advertised_address
        host = self._settings.host
        if host in _WILDCARDS:
            host = socket.gethostname()
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def describe(self, state: common_pb2.ServerState) -> common_pb2.Instance:
        """This service, in the given state."""
        return common_pb2.Instance(id=self.id, address=self.address, state=state, service=self._service, version=__version__)


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without secrets: passwords in URLs become stars. Fields of secret types are already masked."""
    return {name: _masked(value) for name, value in settings.items()}


def _masked(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_masked, value))
    return URL_PASSWORD.sub(r"\1\2***", value) if isinstance(value, str) else value
