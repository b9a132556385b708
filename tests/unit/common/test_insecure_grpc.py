"""gRPC on an address that other machines reach: with TLS, or by an explicit setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from triptych_cli.errors import CommandError
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import plan
from triptych_cli.stack.service_flags import parse_settings
from triptych_common.targets import is_loopback

SERVICES = ["frontend", "encoder", "engine", "mock"]
OUTSIDE = ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7", "0", ""]


@pytest.mark.parametrize("flag", ["--host", "--control-host"])
@pytest.mark.parametrize("service", SERVICES)
def test_plaintext_stays_on_this_machine(service: str, flag: str, tmp_path: Path) -> None:
    for host in OUTSIDE:
        with pytest.raises(CommandError) as caught:
            parse_settings(service, [flag, host])
        message = str(caught.value)
        assert "\n" not in message
        assert f"{flag[2:].replace('-', '_')} {host} lets other machines reach a gRPC port" in message
        assert "tls_dir" in message
        assert "insecure_grpc" in message
        parse_settings(service, [flag, host, "--insecure-grpc"])
        parse_settings(service, [flag, host, "--tls-dir", str(tmp_path)])
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"):
        parse_settings(service, [flag, host])


def test_the_mocks_own_certificate_is_of_its_own_port(tmp_path: Path) -> None:
    tls = ["--tls-certificate", str(tmp_path / "a"), "--tls-private-key", str(tmp_path / "b")]
    parse_settings("mock", ["--host", "0.0.0.0", *tls])
    with pytest.raises(CommandError, match=r"control_host 0\.0\.0\.0"):
        parse_settings("mock", ["--control-host", "0.0.0.0", *tls])


@pytest.mark.parametrize("service", ["frontend", "encoder", "engine"])
def test_serve_refuses_before_anything_starts(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TRIPTYCH_{service.upper()}_HOST", "0.0.0.0")
    with pytest.raises(CommandError, match=f"{service}: .*insecure_grpc"):
        plan(ServeOptions("some/model"), {}, with_encoder=True)
    plan(ServeOptions("some/model", certs=tmp_path), {}, with_encoder=True)
    monkeypatch.setenv(f"TRIPTYCH_{service.upper()}_INSECURE_GRPC", "true")
    plan(ServeOptions("some/model"), {}, with_encoder=True)


def test_the_gateways_http_port_has_no_such_rule() -> None:
    plan(ServeOptions("some/model", host="0.0.0.0"), {}, with_encoder=True)


def test_names_are_looked_up() -> None:
    assert is_loopback("localhost")
    assert not is_loopback("nobody.invalid")
    assert not is_loopback("a" * 300)
