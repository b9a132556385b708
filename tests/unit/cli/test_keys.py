"""`triptych keys`: a file that the gateway takes, written in one step by one writer at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.keys import secret_of
from triptych_cli.main import app
from triptych_gateway.access.key_ring import Key, KeyRing
from triptych_gateway.access.keys import parse_key_file
from typer.testing import CliRunner, Result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def run(path: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["keys", args[0], "--file", str(path), *args[1:]], catch_exceptions=False)


def create(path: Path, *args: str) -> str:
    """The text of a new key."""
    done = run(path, "create", *args)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_a_key_is_printed_once_and_accepted(path: Path) -> None:
    text = create(
        path, "--name", "Ada's [laptop]", "--tenant", "acme", "--model", "a/b", "--model", "c", "--requests-per-minute", "60",
        "--tokens-per-minute", "5000", "--max-concurrent-requests", "4", "--priority", "-2", "--expires", "90d", "--operator",
    )  # fmt: skip
    found = KeyRing(None, path).find(text.encode())
    assert isinstance(found, Key)
    assert found.entry is not None
    assert (found.principal.tenant, found.models, found.is_operator, found.priority) == ("acme", {"a/b", "c"}, True, -2)
    assert (found.requests_per_minute, found.tokens_per_minute, found.max_concurrent_requests) == (60, 5000, 4)
    assert found.entry.name == "Ada's [laptop]"
    assert found.entry.expires is not None
    assert timedelta(days=89) < found.entry.expires - datetime.now(UTC) <= timedelta(days=90)
    assert secret_of(text) not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_are_listed_without_secrets(path: Path) -> None:
    texts = [
        create(path, "--name", "first", "--requests-per-minute", "7"),
        create(path, "--operator"),
        create(path, "--model", "m"),
    ]
    first_id = texts[0].split("-")[2]
    assert run(path, "revoke", first_id).exit_code == 0
    listed = run(path, "list").stdout
    head, first, operator, third = listed.splitlines()
    assert head.split()[:3] == ["ID", "STATE", "TENANT"]
    assert first.split() == [first_id, "revoked", first_id, "7", "-", "-", "0", "-", "all", "first"]
    assert operator.split()[1] == "operator"
    assert third.split()[-1] == "m"
    assert not any(secret_of(text) in listed for text in texts)
    assert "sha256" not in listed


def test_a_revoked_key_is_refused_and_stays_in_the_file(path: Path) -> None:
    text, other = create(path), create(path)
    key_id = text.split("-")[2]
    assert run(path, "revoke", key_id).exit_code == 0
    ring = KeyRing(None, path)
    assert ring.find(text.encode()) == "revoked"
    assert isinstance(ring.find(other.encode()), Key)
    again = run(path, "revoke", key_id)
    assert (again.exit_code, "was revoked at" in again.output) == (1, True)


def test_a_client_may_be_let_choose_its_priority(path: Path) -> None:
    """`null` is not the default of the field, so a change of the file must keep it."""
    create(path)
    path.write_text(path.read_text().replace('"created"', '"priority": null, "created"'))
    create(path)
    assert [key.priority for key in parse_key_file(path.read_bytes()).keys] == [None, 0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tenant", "a b"], "--tenant: String should match pattern"),
        (["--tenant", "cert:ada"], "--tenant: must not begin with 'cert:': such tenants belong to client certificates"),
        (["--expires", "soon"], "--expires: must be a time from now, as 90d, 12h or 30m, or a date, as 2031-12-31; given: 'soon'"),
        (["--expires", "2020-01-01"], "--expires: must be in the future; given: '2020-01-01'"),
        (["--requests-per-minute", "0"], "--requests-per-minute': Input should be greater than or equal to 1"),
        (["--priority", "99999999999"], "--priority: Input should be less than or equal to 2147483647"),
        (["--model", ""], "--model: String should have at least 1 character"),
    ],
)
def test_wrong_options_are_refused_and_change_nothing(path: Path, args: list[str], said: str) -> None:
    done = run(path, "create", *args)
    assert done.exit_code == 2
    assert said in done.output
    assert not path.exists()


def test_a_wrong_file_is_told_and_left_alone(path: Path) -> None:
    for args in (["list"], ["revoke", "abcdefgh"]):
        done = run(path, *args)
        assert (done.exit_code, f"there is no file {path}" in done.output) == (1, True)
    path.write_text('{"version": 1, "keys": [{"id": "abcdefgh"}]}')
    for args in (["list"], ["create"], ["revoke", "abcdefgh"]):
        done = run(path, *args)
        assert (done.exit_code, "key abcdefgh: hash: Field required" in done.output) == (1, True)
    assert path.read_text() == '{"version": 1, "keys": [{"id": "abcdefgh"}]}'


def test_an_unknown_id_is_not_repeated(path: Path) -> None:
    text = create(path)
    done = run(path, "revoke", text)
    assert done.exit_code == 1
    assert secret_of(text) not in done.output


def test_writers_wait_for_each_other(path: Path) -> None:
    program = [sys.executable, "-m", "triptych_cli", "keys", "create", "--file", str(path)]
    running = [subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(6)]
    texts = [process.communicate(timeout=120)[0].strip() for process in running]
    ring = KeyRing(None, path)
    assert all(isinstance(ring.find(text.encode()), Key) for text in texts)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".keys.json.lock", "keys.json"], "no half-written file"


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path.symlink_to(tmp_path / "real" / "keys.json")
    create(path)
    assert path.is_symlink()
    assert (tmp_path / "real" / "keys.json").stat().st_mode & 0o777 == 0o600


def test_the_file_keeps_its_owner_and_mode(path: Path) -> None:
    text = create(path)
    path.chmod(0o640)
    if os.geteuid() == 0:  # nobody else can give files away
        os.chown(path, 10001, 10002)
    before = path.stat()
    assert run(path, "revoke", text.split("-")[2]).exit_code == 0
    after = path.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


def test_a_folder_that_cannot_be_written_is_told(path: Path) -> None:
    path.write_text("no folder")
    done = run(path / "keys.json", "create")
    assert (done.exit_code, f"cannot write to {path}: Not a directory" in done.output) == (1, True)


def test_the_file_may_be_named_by_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_GATEWAY_API_KEYS_FILE", str(path))
    done = CliRunner().invoke(app, ["keys", "create"], catch_exceptions=False)
    assert re.fullmatch(r"sk-triptych-[a-z0-9]{10}-\S{43}\n", done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_whose_owner_cannot_be_kept_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(path)
    os.chown(path, 10001, 10002)
    before = path.read_bytes()

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chown", refuse)
    done = run(path, "create")
    assert done.exit_code == 1
    assert f"cannot keep the owner of {path} (user 10001, group 10002)" in done.output
    assert "sk-triptych-" not in done.output
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".keys.json.lock", "keys.json"]
