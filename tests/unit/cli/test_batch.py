"""`triptych batch`: what is refused before anything is sent, and the journal."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.run_dir import run_dir
from triptych_cli.batch.lines import check_input, read_lines
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_common.batch.journal import Journal, JournalError
from typer.testing import CliRunner


def line(custom_id: object = "a", **fields: Any) -> str:
    known = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
    return json.dumps({**known, **fields})


def write(directory: Path, *lines: str) -> Path:
    path = directory / "in.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_lines_are_read_in_order_and_blank_ones_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, line("a"), "", line("b", body={"model": "n"}), line("c", body={}), "  ")
    wanted = check_input(path)
    assert wanted.custom_ids == {"a", "b", "c"}
    assert wanted.models == {"m": 1, "n": 3}
    assert [(one.number, one.custom_id, one.url) for one in read_lines(path)] == [
        (1, "a", "/v1/completions"),
        (3, "b", "/v1/completions"),
        (4, "c", "/v1/completions"),
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: must be an object"),
        (line("a"), "line 2: custom_id 'a' is that of line 1 already"),
        (line(7), "line 2: custom_id must be a string"),
        (line(""), "line 2: custom_id must be a string"),
        (line("b", method="GET"), "line 2: method must be POST"),
        (line("b", url="/v1/files"), "line 2: url must be one of /v1/chat/completions"),
        (line("b", body=[]), "line 2: body must be an object"),
        (line("b", body={"stream": True}), r"line 2: body\.stream must be false"),
        (line("b", colour="red"), "line 2: unknown field 'colour'"),
        ("[" * 100_000, "line 2: is nested too deeply"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, bad: str, message: str) -> None:
    path = write(tmp_path, line("a"), bad, line("c"))
    with pytest.raises(CommandError, match=message):
        check_input(path)
    # By the command, too, which makes no output then.
    output = tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["batch", str(path), "-o", str(output)])
    assert done.exit_code == 2
    assert "nothing was sent" in done.stderr
    assert not output.exists()


def test_a_refusal_names_ten_lines(tmp_path: Path) -> None:
    path = write(tmp_path, *["{"] * 30)
    with pytest.raises(CommandError, match=r"line 10: .*\n  and 20 more") as raised:
        check_input(path)
    assert "line 11" not in str(raised.value)


def test_a_pipe_is_refused_because_it_cannot_be_read_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # With a reader and a writer, opening it does not block.
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        with pytest.raises(CommandError, match="is not a regular file") as raised:
            check_input(pipe)
        assert raised.value.exit_code == 2
        with pytest.raises(JournalError, match="is not a regular file"):
            Journal(pipe)
    finally:
        os.close(descriptor)


def test_a_file_without_requests_or_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has no requests"):
        check_input(write(tmp_path, ""))
    with pytest.raises(CommandError, match=r"cannot read .*No such file"):
        check_input(tmp_path / "none")


def entry(custom_id: str, status: int = 200) -> dict:
    return {"id": "batch_req_x", "custom_id": custom_id, "response": {"status_code": status, "body": "ä\n"}, "error": None}


_NAMES = iter(range(10**6))


@given(st.integers(0, 3), st.integers(0, 200))
def test_a_torn_last_line_is_cut_off(num_whole: int, num_torn_bytes: int) -> None:
    """Wherever a kill cut the last line, it is done again, and no other."""
    path = run_dir(f"journal-{next(_NAMES)}") / "out.jsonl"
    journal = Journal(path)
    for number in range(num_whole):
        journal.write(str(number), 200, entry(str(number)))
    journal.close()
    whole = path.read_bytes()
    torn = json.dumps(entry("torn"), ensure_ascii=False).encode()[:-1][:num_torn_bytes]
    with path.open("ab") as file:
        file.write(torn)
    journal = Journal(path)
    assert [*journal.done] == [str(number) for number in range(num_whole)]
    assert path.read_bytes() == whole
    journal.write("last", 400, entry("last", 400))
    journal.close()
    again = Journal(path)
    assert again.done == {**{str(number): 200 for number in range(num_whole)}, "last": 400}
    again.close()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = Journal(path)
    with pytest.raises(JournalError, match="another run writes to"):
        Journal(path)
    first.close()
    Journal(path).close()


def test_what_is_no_output_is_left_as_it_is(tmp_path: Path) -> None:
    answer = '{"custom_id": %s, "response": {"status_code": %s}}\n'
    for text in (
        *("hello\n", '{"custom_id": "a"}\n', line("a") + "\n", "[1]\n", "[" * 100_000 + "\n"),
        *(answer % ("[]", 200), answer % ('""', 200), answer % ('"a"', '"200"')),
        # A last line without its end, which would be cut off if it were a batch's.
        *("hello", line("a"), line("a")[:9], '{"custom'),
    ):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(JournalError, match=r"line 1 of .* is not the output of a batch"):
            Journal(path)
        assert path.read_text() == text
    with pytest.raises(JournalError, match="cannot write"):
        Journal(tmp_path)


def test_an_output_that_an_editor_saved(tmp_path: Path) -> None:
    """The last line has lost its end, and a blank line has come in; no answer is lost."""
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(entry("a")) + "\n\n" + json.dumps(entry("b")))
    journal = Journal(path)
    assert [*journal.done] == ["a", "b"]
    journal.write("c", 200, entry("c"))
    journal.close()
    again = Journal(path)
    assert [*again.done] == ["a", "b", "c"]
    again.close()


@pytest.mark.parametrize("text", ["ä", "a\u2028b\u2029c\x85d", "\ud83d", "\U0001f600"])
def test_any_text_becomes_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    journal = Journal(path)
    journal.write(text, 200, {**entry(text), "body": text})
    journal.close()
    (whole,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(whole)["body"] == text
    # Readable where it can be.
    assert text in whole or text not in ("ä", "\U0001f600")


def test_a_full_disk_ends_the_run_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "out.jsonl")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError, match=r"cannot write .*out\.jsonl: No space left on device"):
        journal.write("a", 200, entry("a"))
    assert not journal.done
    journal.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://a", "http://", "http://a:b"])
def test_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    done = CliRunner().invoke(app, ["batch", str(write(tmp_path, line("a"))), "-o", str(tmp_path / "out.jsonl"), "--url", url])
    assert done.exit_code == 2
    assert "--url must be" in done.stderr


def test_names_of_files_are_not_markup(tmp_path: Path) -> None:
    (tmp_path / "x[").mkdir()
    output = tmp_path / "x[" / "red]out.jsonl"
    journal = Journal(output)
    journal.write("a", 200, entry("a"))
    journal.close()
    done = CliRunner().invoke(app, ["batch", str(write(tmp_path, line("a"))), "-o", str(output)])
    assert done.exit_code == 0
    assert "x[/red]out.jsonl" in done.stderr


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a\nb"])
def test_a_file_that_is_no_key(tmp_path: Path, key: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(key)
    path = write(tmp_path, line("a"))
    done = CliRunner().invoke(app, ["batch", str(path), "-o", str(tmp_path / "out"), "--api-key-file", str(file)])
    assert done.exit_code == 2
    assert "holds no key" in done.stderr


def test_the_output_of_another_input(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    journal.write("other", 200, entry("other"))
    journal.close()
    before = os.stat(output).st_mtime_ns
    done = CliRunner().invoke(app, ["batch", str(write(tmp_path, line("a"))), "-o", str(output)])
    assert done.exit_code == 1
    assert "has an answer to 'other', which is not in" in done.stderr.replace("\n", "")
    assert os.stat(output).st_mtime_ns == before


def test_a_batch_that_is_done_starts_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    journal.write("a", 200, entry("a"))
    journal.write("b", 400, entry("b", 400))
    journal.close()
    path = write(tmp_path, line("a"), line("b"))
    done = CliRunner().invoke(app, ["batch", str(path), "-o", str(output), "--model", "no-such-model"])
    assert done.exit_code == 1
    assert "1 requests failed" in done.stderr
