"""A disk that takes no more bytes. The limit on the size of files stands for it: it needs no rights and no mount."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
from support.fakes.frontend import MODEL
from support.fakes.gateway import gateway_client
from triptych_common.batch.journal import Journal, JournalError, output_line
from triptych_gateway.access.audit import AuditLog

_BIG = "x" * 300_000


@contextlib.contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond this size in the block. Python ignores the signal, so that a write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def _create(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await client.post("/v1/responses", json={"model": MODEL.name, "input": "Hi"} | fields)


async def test_stored_responses_survive_it_and_further_ones_say_that_they_are_not_stored(tmp_path: Path) -> None:
    async with gateway_client(response_store=f"sqlite:{tmp_path}/responses.db") as client:
        before = (await _create(client)).json()
        assert before["store"] is True
        with full_disk(200_000):
            cut = await _create(client, input=_BIG)
            assert (cut.status_code, cut.json()["status"], cut.json()["store"]) == (200, "completed", False)
            background = await _create(client, input=_BIG, background=True)
            assert background.status_code == 503
            assert "disk is full" in background.json()["error"]["message"]
            assert (await client.get(f"/v1/responses/{before['id']}")).json()["output"] == before["output"]
            assert (await client.get("/live")).status_code == 200
        after = (await _create(client, input=_BIG, previous_response_id=before["id"])).json()
        assert after["store"] is True
        for one in (before, after):
            assert (await client.get(f"/v1/responses/{one['id']}")).status_code == 200
        assert (await client.get(f"/v1/responses/{cut.json()['id']}")).status_code == 404


def test_no_line_of_the_audit_log_is_lost_or_broken(tmp_path: Path) -> None:
    path, lost = tmp_path / "audit.jsonl", list[None]()
    log = AuditLog(str(path), lambda: lost.append(None))
    with full_disk(1000):
        for number in range(100):
            log.write("one", number=number)
        deadline_s = time.monotonic() + 10
        while path.stat().st_size < 1000:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    log.close()
    assert not lost
    assert [orjson.loads(line)["number"] for line in path.read_bytes().splitlines()] == list(range(100))


def test_a_line_of_a_journal_that_was_cut_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """Answers of a batch are written one after the other, and some of them may be smaller than what is left."""
    path, written = tmp_path / "journal.jsonl", []
    journal = Journal(path)
    with full_disk(1200):
        for number, size in enumerate((300, 300, 300, 10, 300, 10)):
            with contextlib.suppress(JournalError):
                journal.write(str(number), 200, output_line(str(number), 200, "id", "x" * size))
                written.append(str(number))
    assert written == ["0", "1", "3"]
    journal.write("last", 200, output_line("last", 200, "id", None))
    journal.close()
    again = Journal(path)
    assert [*again.done] == [*written, "last"]
    again.close()
