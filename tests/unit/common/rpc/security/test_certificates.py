"""Certificates of a directory: what is accepted, and what an error says."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.certificates import EXPIRED, authority, issue, write, write_role
from triptych.errors import StartupError
from triptych_common.rpc.security.certificates import load_https, load_mutual
from triptych_common.rpc.security.roles import Role

ENGINE = Role.ENGINE.dns_name


def test_a_good_certificate_tells_its_names_and_its_end(tmp_path: Path) -> None:
    end = datetime.datetime(2999, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    write(tmp_path, issue(ENGINE, "engine-0.engines", not_after=end))
    loaded = load_mutual(tmp_path, Role.ENGINE)
    assert loaded.names == (ENGINE, "engine-0.engines")
    assert loaded.expiry_s == end.timestamp()
    assert loaded.files.key == (tmp_path / "tls.key").read_bytes()


def test_a_chain_with_an_authority_between_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, authority("own").create_child_ca().issue_cert(ENGINE))
    assert load_mutual(tmp_path, Role.ENGINE).names == (ENGINE,)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_role(tmp_path, Role.ENGINE)
    (tmp_path / name).unlink()
    with pytest.raises(StartupError, match=f"{name}: No such file or directory"):
        load_mutual(tmp_path, Role.ENGINE)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("content", [b"", b"hello"])
def test_a_file_with_something_else_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_role(tmp_path, Role.ENGINE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartupError, match=f"{name}: there is no (certificate|private key) in PEM"):
        load_mutual(tmp_path, Role.ENGINE)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_broken_file_is_an_error(tmp_path: Path, name: str) -> None:
    write_role(tmp_path, Role.ENGINE)
    first, *rest = (tmp_path / name).read_text().splitlines()
    (tmp_path / name).write_text("\n".join([first, "AAAA", *rest]))
    with pytest.raises(StartupError, match=str(tmp_path)):
        load_mutual(tmp_path, Role.ENGINE)


def test_a_key_of_another_certificate_is_refused_without_its_bytes(tmp_path: Path) -> None:
    write_role(tmp_path, Role.ENGINE)
    key = issue(ENGINE).private_key_pem.bytes()
    (tmp_path / "tls.key").write_bytes(key)
    with pytest.raises(StartupError, match=r"tls\.key: the key does not belong to the certificate in tls\.crt") as caught:
        load_mutual(tmp_path, Role.ENGINE)
    assert key.splitlines()[1].decode() not in str(caught.value)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    write_role(tmp_path, Role.ENGINE)
    key = serialization.load_pem_private_key((tmp_path / "tls.key").read_bytes(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "tls.key").write_bytes(key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(StartupError, match=r"tls\.key: the key is encrypted"):
        load_mutual(tmp_path, Role.ENGINE)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    write(tmp_path, issue(ENGINE, **EXPIRED))
    with pytest.raises(StartupError, match=r"tls\.crt: peers would refuse this certificate: certificate has expired"):
        load_mutual(tmp_path, Role.ENGINE)
    with pytest.raises(StartupError, match="certificate has expired"):
        load_https(tmp_path)


def test_a_certificate_of_the_future_is_refused(tmp_path: Path) -> None:
    write(tmp_path, issue(ENGINE, not_before=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)))
    with pytest.raises(StartupError, match="certificate is not yet valid"):
        load_mutual(tmp_path, Role.ENGINE)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    write(tmp_path, issue(ENGINE, ca="other"), ca="own")
    with pytest.raises(StartupError, match=r"it was not issued by an authority in ca\.crt"):
        load_mutual(tmp_path, Role.ENGINE)


def test_a_certificate_of_another_role_is_refused_with_both_names(tmp_path: Path) -> None:
    write_role(tmp_path, Role.ENCODER)
    with pytest.raises(StartupError, match=r"needs .* engine\.triptych\.internal; it has: encoder\.triptych\.internal"):
        load_mutual(tmp_path, Role.ENGINE)


def test_a_certificate_without_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path, issue(common_name="engine"))
    with pytest.raises(StartupError, match="it has: none"):
        load_mutual(tmp_path, Role.ENGINE)


def test_https_needs_no_authority(tmp_path: Path) -> None:
    write(tmp_path, issue("localhost"))
    (tmp_path / "ca.crt").unlink()
    assert load_https(tmp_path).names == ("localhost",)


def test_no_representation_shows_the_key(tmp_path: Path) -> None:
    write_role(tmp_path, Role.ENGINE)
    loaded = load_mutual(tmp_path, Role.ENGINE)
    secret = loaded.files.key.splitlines()[1].decode()
    assert secret not in repr(loaded) + repr(loaded.files) + str(loaded.files)
