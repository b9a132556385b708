"""Which service this process is: what it says of itself to others."""

from __future__ import annotations

import re
import secrets
import socket
from typing import Any

from triptych_common import __version__
from triptych_common.pb import common_pb2
from triptych_common.settings import GrpcServiceSettings

_WILDCARDS = ("0.0.0.0", "::", "[::]", "*")  # noqa: S104 - compared with, not listened on
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s]*:)[^/@\s]*(?=@)")


class Identity:
    """Says who this process is.

    Args:
        service: frontend, encoder or engine.
        settings: of the service; its advertised address, or else what can be told from where it listens.
    """

    def __init__(self, service: str, settings: GrpcServiceSettings) -> None:
        self._service = service
        self._settings = settings
        #: Unique to this process, so that nobody takes a service that was started again for the one that went away.
        self.id = secrets.token_hex(8)
        #: Port in force; it differs from the setting where that is 0.
        self.port = settings.port

    @property
    def address(self) -> str:
        """host:port by which others should reach this service."""
        if self._settings.advertised_address is not None:
            return self._settings.advertised_address
        host = self._settings.host
        if host in _WILDCARDS:
            host = socket.gethostname()
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def describe(self, state: common_pb2.ServerState) -> common_pb2.Instance:
        """This service, in the given state of its life."""
        return common_pb2.Instance(id=self.id, address=self.address, state=state, service=self._service, version=__version__)


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that can be shown: the passwords in URLs are replaced by stars. Secret types have hidden themselves."""
    return {name: _URL_PASSWORD.sub(r"\1***", value) if isinstance(value, str) else value for name, value in settings.items()}
