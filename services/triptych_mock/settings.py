"""Settings of the mock server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict
from triptych_common.settings import GrpcServiceSettings, Port


class MockSettings(GrpcServiceSettings):
    """Flags of `triptych mock`; environment variables TRIPTYCH_MOCK_*."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_MOCK_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 50051
    served_model_name: Annotated[str, Field(min_length=1, description="Name of the model that it pretends to serve.")] = "mock"
    address_file: Annotated[
        Path | None, Field(description="Write host:port into this file once the server is ready; for port 0.")
    ] = None
    api_key: Annotated[SecretStr | None, Field(description="Refuse calls without this key; by default all are let in.")] = None
    tls_certificate: Annotated[Path | None, Field(description="Certificate chain of the server, PEM; by default no TLS.")] = None
    tls_private_key: Annotated[Path | None, Field(description="Private key of the certificate, PEM.")] = None
    tls_client_ca: Annotated[Path | None, Field(description="Ask clients for a certificate of one of these authorities, PEM.")] = (
        None
    )

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key must be given together")
        if self.tls_dir and self.tls_certificate:
            raise ValueError("tls_dir and tls_certificate exclude each other: the first is TLS as services have it, with roles")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate and tls_private_key")
        return self

    @model_validator(mode="after")
    def _no_traces(self) -> Self:
        if self.otlp_traces_endpoint is not None:
            raise ValueError("the mock makes no traces: otlp_traces_endpoint cannot be set")
        return self

    @property
    def has_tls(self) -> bool:
        return self.tls_dir is not None or self.tls_certificate is not None
