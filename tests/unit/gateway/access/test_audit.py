"""The audit log as a file: rotation, a full disk, and a stop."""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson
import pytest
from triptych.errors import StartupError
from triptych_gateway.access import audit
from triptych_gateway.access.audit import AuditLog


def no_loss() -> None:
    raise AssertionError("a line was lost")


def events(path: Path) -> list[str]:
    return [orjson.loads(line)["event"] for line in path.read_bytes().splitlines()]


def wait_for(path: Path, *wanted: str) -> None:
    deadline = time.monotonic() + 10
    while not path.exists() or events(path) != list(wanted):
        assert time.monotonic() < deadline, path.read_bytes() if path.exists() else "no file"
        time.sleep(0.001)


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for start in (0, 1000):
        log = AuditLog(str(path), no_loss)
        for number in range(start, start + 1000):
            log.write(str(number))
        log.close()
        log.close()
    assert events(path) == [str(number) for number in range(2000)]


def test_a_file_that_was_moved_or_deleted_is_made_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    log = AuditLog(str(path), no_loss)
    log.write("first")
    wait_for(path, "first")
    path.rename(old)
    log.write("second")
    wait_for(path, "second")
    path.unlink()
    log.write("third")
    wait_for(path, "third")
    log.close()
    assert events(old) == ["first"]


def test_lines_wait_while_they_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_RETRY_S", 0.01)
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.jsonl"
    log = AuditLog(str(path), no_loss)
    log.write("first")
    wait_for(path, "first")
    path.unlink()
    folder.rmdir()
    for number in range(3):
        log.write(f"waits {number}")
    deadline = time.monotonic() + 10
    while not caplog.records:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    folder.mkdir()
    log.write("again")
    wait_for(path, "waits 0", "waits 1", "waits 2", "again")
    log.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"the audit log {path} cannot be written: No such file or directory; 10000 lines can wait"
    ]


def test_lines_that_were_never_written_are_counted(tmp_path: Path) -> None:
    lost = list[None]()
    log = AuditLog("/dev/full", lambda: lost.append(None))
    for _ in range(3):
        log.write("lost")
    log.close()
    assert len(lost) == 3


def test_lines_that_come_too_fast_are_lost_and_do_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_MAX_WAITING", 4)
    pipe, lost = tmp_path / "pipe", list[None]()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(str(pipe), lambda: lost.append(None))
    # A pipe takes 64 KiB. Nobody reads it, so the thread waits in a write.
    started_s = time.monotonic()
    for _ in range(100):
        log.write("x", filler="y" * 10_000)
        time.sleep(0.001)
    assert time.monotonic() - started_s < 10
    assert len(lost) >= 50
    os.set_blocking(reader, True)
    read = bytearray()
    while len(lost) + read.count(b"\n") < 100:
        read += os.read(reader, 1 << 20)
    log.close()
    os.close(reader)


def test_a_file_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot write the audit log .*No such file or directory\); see --audit-log"):
        AuditLog(str(tmp_path / "none" / "audit.jsonl"), no_loss)


def test_standard_error_is_a_target(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = AuditLog("-", no_loss)
    log.write("one", key="abc")
    log.close()
    line = orjson.loads(capfdbinary.readouterr().err)
    assert (line["event"], line["key"]) == ("one", "abc")
