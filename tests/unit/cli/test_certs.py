"""`triptych certs`, and what uses its directory."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from support.builders.frontend import frontend_bench
from triptych.installation import install_command
from triptych_cli.chat.command import chat
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import plan
from triptych_cli.stack.service import port_claims, spec
from triptych_common.rpc.security.certificates import load_https, load_mutual
from triptych_common.rpc.security.roles import Role
from triptych_common.settings import GrpcServiceSettings
from typer.testing import CliRunner


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, args)], catch_exceptions=False)
    return result.exit_code, result.output


def test_each_role_gets_a_certificate_that_services_accept(tmp_path: Path) -> None:
    code, output = run("certs", tmp_path, "--days", "7", "--name", "llm.example", "--name", "192.0.2.1")
    assert code == 0
    assert output.split() == [str(tmp_path / name) for name in (*Role, "https")]
    for role in Role:
        loaded = load_mutual(tmp_path / role, role)
        assert loaded.names == (role.dns_name,)
        assert abs(loaded.expiry_s - time.time() - 7 * 86400) < 600
    assert load_https(tmp_path / "https").names == ("localhost", "llm.example")
    served = x509.load_pem_x509_certificate((tmp_path / "https" / "tls.crt").read_bytes())
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "192.0.2.1"]
    for key in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not [*tmp_path.rglob("*.new")]


def test_nothing_is_overwritten_unless_forced_and_the_authority_stays(tmp_path: Path) -> None:
    run("certs", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, output = run("certs", tmp_path)
    assert code == 1
    assert f"{tmp_path / 'gateway' / 'tls.crt'} exists; --force replaces" in output
    assert {path: path.read_bytes() for path in before} == before
    assert run("certs", tmp_path, "--force")[0] == 0
    same = {path.relative_to(tmp_path) for path, content in before.items() if path.read_bytes() == content}
    assert {path.name for path in same} == {"ca.crt", "ca.key"}
    load_mutual(tmp_path / "engine", Role.ENGINE)


def test_new_certificates_have_the_owner_and_the_mode_of_the_old_ones(tmp_path: Path) -> None:
    run("certs", tmp_path)
    key = tmp_path / "engine" / "tls.key"
    key.chmod(0o640)
    if os.geteuid() == 0:  # nobody else can give files away
        os.chown(key, 10001, 10002)
    before, content = key.stat(), key.read_bytes()
    assert run("certs", tmp_path, "--force")[0] == 0
    after = key.stat()
    assert key.read_bytes() != content
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_key_whose_owner_cannot_be_kept_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("certs", tmp_path)
    key = tmp_path / "gateway" / "tls.key"
    os.chown(key, 10001, 10002)
    before = key.read_bytes()

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chown", refuse)
    code, output = run("certs", tmp_path, "--force")
    assert code == 1
    assert "cannot keep the owner" in output
    assert key.read_bytes() == before
    assert sorted(entry.name for entry in key.parent.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


def test_an_authority_that_is_no_good_is_named(tmp_path: Path) -> None:
    run("certs", tmp_path)
    (tmp_path / "ca.key").write_text("nothing")
    code, output = run("certs", tmp_path, "--force")
    assert code == 1
    assert f"the authority in {tmp_path}" in output


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    code, output = run("certs", tmp_path, "--name", "bücher.example")
    assert code == 2
    assert "--name 'bücher.example' is neither an IP address nor a host name" in output


def test_a_missing_library_is_named() -> None:
    program = "import sys; sys.modules['cryptography'] = None; from triptych_cli.main import app; app()"
    done = subprocess.run([sys.executable, "-c", program, "certs", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"run: {install_command('triptych-server', 'certs')}" in done.stderr


def test_serve_gives_each_service_its_directory_and_asks_at_a_health_port(tmp_path: Path) -> None:
    services = plan(ServeOptions("some/model", certs=tmp_path, frontends=2), {}, with_encoder=True)
    assert [service.settings.tls_dir for service in services] == [
        tmp_path / kind for kind in ("encoder", "engine", "frontend", "frontend", "gateway")
    ]
    ports = [service.settings.health_port for service in services if isinstance(service.settings, GrpcServiceSettings)]
    assert all(ports)
    assert len({*ports}) == 4
    assert [claim.service for claim in port_claims(services) if claim.port in ports] == [
        "encoder (health)", "engine (health)", "frontend-1 (health)", "frontend-2 (health)",
    ]  # fmt: skip
    for service in services:
        spec(service)


def test_the_gateways_url_tells_its_scheme(tmp_path: Path) -> None:
    *_, gateway = plan(ServeOptions("some/model", port=9000), {"gateway": ["--https-dir", str(tmp_path)]}, with_encoder=False)
    assert gateway.url == "https://127.0.0.1:9000"
    *_, gateway = plan(ServeOptions("some/model", port=9000), {}, with_encoder=False)
    assert gateway.url == "http://127.0.0.1:9000"


async def test_a_chat_with_a_clients_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("certs", tmp_path)
    async with frontend_bench(certs=tmp_path) as bench:
        address = f"127.0.0.1:{bench.frontend.server.port}"
        answer = io.StringIO()
        await asyncio.to_thread(chat, address, tls_dir=tmp_path / "client", stdin=io.StringIO("Hi\n"), stdout=answer)
        assert answer.getvalue() == "Hello there\n"
        with pytest.raises(CommandError, match="nobody answers"):
            await asyncio.to_thread(chat, address, stdin=io.StringIO("Hi\n"), stdout=answer)
        with pytest.raises(CommandError, match="role must be one of client, gateway, operator"):
            await asyncio.to_thread(chat, address, tls_dir=tmp_path / "engine", stdin=io.StringIO("Hi\n"), stdout=answer)
        with pytest.raises(CommandError, match=f"cannot read {tmp_path}"):
            await asyncio.to_thread(chat, address, tls_dir=tmp_path, stdin=io.StringIO("Hi\n"), stdout=answer)
