"""/v1/files: what is kept, how much of it, for whom, and how long."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.batches import error_of, upload
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import client_of, gateway_app, gateway_client, gateway_server
from support.keys import KeyStore
from support.sdk import openai_client
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych_gateway.apis.files.service import new_file
from triptych_gateway.stores import disk
from triptych_gateway.stores.opening import FileStores
from triptych_gateway.stores.uploads import StoredUpload


@asynccontextmanager
async def files_client(directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway_client(FakeFrontend(), files_dir=directory / "files", **settings) as client:
        yield client


async def test_a_file_with_openais_client(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as client:
        before = int(time.time())
        file = await client.files.create(
            file=("ä b.bin", content), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 7200}
        )
        assert (file.filename, file.bytes, file.purpose, file.status) == ("ä b.bin", len(content), "user_data", "processed")
        assert before <= file.created_at <= time.time()
        assert file.expires_at == file.created_at + 7200
        assert await client.files.retrieve(file.id) == file
        assert (await client.files.content(file.id)).content == content
        kept = await client.files.create(file=b"x", purpose="vision")
        assert kept.expires_at is None
        batch = await client.files.create(file=b"{}", purpose="batch")
        assert batch.expires_at == batch.created_at + 30 * 86400
        assert (await client.files.delete(file.id)).deleted
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match=f"no file '{file.id}'"):
                await call(file.id)
    assert sorted(path.name for path in (tmp_path / "contents").iterdir()) == sorted([kept.id, batch.id])
    assert not [*(tmp_path / "incoming").iterdir()]


async def test_files_are_listed_in_pages(tmp_path: Path) -> None:
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as client:
        ids = [(await client.files.create(file=b"x", purpose=purpose)).id for purpose in ("batch", "vision", "batch", "user_data")]
        assert [file.id async for file in client.files.list(limit=1)] == ids[::-1]
        assert [file.id async for file in client.files.list(limit=3, order="asc")] == ids
        assert [file.id async for file in client.files.list(purpose="batch")] == [ids[2], ids[0]]
        page = await client.files.list(limit=2, after=ids[3])
        assert ([file.id for file in page.data], page.has_more) == ([ids[2], ids[1]], True)
        with pytest.raises(openai.BadRequestError, match="after: no file 'file-none'"):
            await client.files.list(after="file-none")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (upload(b"x", "fine-tune"), "purpose: the purpose 'fine-tune' is not served; send batch, user_data or vision"),
        (upload(b"x", "games"), "purpose: should be 'batch', 'user_data' or 'vision'"),
        (upload(b""), "file: is empty"),
        (upload(b"x", colour="red"), "colour: unknown field"),
        (upload(b"x", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}), "expires_after.seconds: "),
        (upload(b"x", **{"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "7200"}), "expires_after.anchor: "),
        ({"files": {"file": ("a", b"x")}}, "purpose: this field is required"),
        ({"data": {"purpose": "batch", "file": "x"}, "files": {"x": (None, b"")}}, "file: must be a file"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"y"))], "data": {"purpose": "batch"}}, "more than one file"),
        ({"json": {"purpose": "batch"}}, "the body must be a form"),
        ({"content": b"--b\r\n", "headers": {"content-type": "multipart/form-data; boundary=b"}}, "cut short or damaged"),
        ({"content": b"nothing", "headers": {"content-type": "multipart/form-data; boundary=b"}}, "cut short or damaged"),
        (upload(b"x", **{str(number): "1" for number in range(70)}), "more than 64 fields"),
        (upload(b"x", note="n" * 70_000), "beside its file"),
    ],
)
async def test_what_is_no_file_is_refused_by_name_and_not_kept(tmp_path: Path, sent: dict[str, Any], message: str) -> None:
    async with files_client(tmp_path) as client:
        assert message in error_of(await client.post("/v1/files", **sent), 400)
        assert (await client.get("/v1/files")).json()["data"] == []
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file() and not path.name.startswith("files.sqlite")]


async def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    async with files_client(tmp_path, max_file_bytes=5000) as client:
        assert (await client.post("/v1/files", **upload(b"x" * 5000))).status_code == 200
        assert "larger than 5000 bytes" in error_of(await client.post("/v1/files", **upload(b"x" * 5001)), 413)
        # Refused by what it announces, before it is read.
        assert "the body is larger than 70536 bytes" in error_of(await client.post("/v1/files", **upload(b"x" * 100_000)), 413)

        async def body() -> AsyncIterator[bytes]:
            yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(100):
                yield b"x" * 1000

        chunked = {"content": body(), "headers": {"content-type": "multipart/form-data; boundary=b"}}
        assert "larger than 5000 bytes" in error_of(await client.post("/v1/files", **chunked), 413)
        refused = await client.post("/v1/uploads", json={"bytes": 5001, "filename": "a", "mime_type": "b", "purpose": "vision"})
        assert "bytes: at most 5000 are kept" in error_of(refused, 400)
    assert not [*(tmp_path / "files" / "incoming").iterdir()]


async def test_tenants_share_the_room(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    for name in ("one", "other"):
        keys.add(name)
    async with files_client(tmp_path, api_keys_file=keys.path, files_max_bytes=100_000) as client:
        one, other = keys.headers("one"), keys.headers("other")
        first = await client.post("/v1/files", **upload(b"x" * 40_000), headers=one)
        assert (await client.post("/v1/files", **upload(b"x" * 10_000), headers=one)).status_code == 200
        refused = error_of(await client.post("/v1/files", **upload(b"x" * 20_000), headers=one), 400)
        assert "file: your files have no room for it: 0 bytes are left for you of 100000 of all (files_max_bytes)" in refused
        assert (await client.post("/v1/files", **upload(b"x" * 50_000), headers=other)).status_code == 200
        assert (await client.delete(f"/v1/files/{first.json()['id']}", headers=one)).status_code == 200
        assert (await client.post("/v1/files", **upload(b"x" * 20_000), headers=one)).status_code == 200


async def test_small_files_count_what_they_take_on_a_disk(tmp_path: Path) -> None:
    async with files_client(tmp_path, files_max_bytes=10_000) as client:
        answers = [await client.post("/v1/files", **upload(b"x")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400]
    assert "your files have no room for it: 0 bytes are left" in error_of(answers[-1], 400)


async def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with files_client(tmp_path) as client:
        monkeypatch.setattr(disk, "MIN_FREE_BYTES", 1 << 60)
        answer = await client.post("/v1/files", **upload(b"x"))
        assert "the directory of files cannot be used (its disk is full)" in error_of(answer, 503)
        assert answer.headers["retry-after"] == "60"
        monkeypatch.undo()
        assert (await client.get("/v1/files")).json()["data"] == []
        assert (await client.post("/v1/files", **upload(b"x"))).status_code == 200
    assert len([*(tmp_path / "files" / "contents").iterdir()]) == 1
    assert not [*(tmp_path / "files" / "incoming").iterdir()]


async def test_no_tenant_sees_anothers_files_and_uploads(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    for name in ("one", "other"):
        # A key for some models may keep files, too.
        keys.add(name, models=["some/model"])
    keys.add("second of one", tenant=keys.id("one"))
    async with files_client(tmp_path, api_keys_file=keys.path) as client:
        one, other = keys.headers("one"), keys.headers("other")
        file_id = (await client.post("/v1/files", **upload(b"secret"), headers=one)).json()["id"]
        announced = {"bytes": 3, "filename": "a", "mime_type": "b", "purpose": "vision"}
        upload_id = (await client.post("/v1/uploads", json=announced, headers=one)).json()["id"]
        part = {"files": {"data": ("a", b"abc")}}
        for method, path, sent in (
            ("GET", f"/v1/files/{file_id}", {}),
            ("GET", f"/v1/files/{file_id}/content", {}),
            ("DELETE", f"/v1/files/{file_id}", {}),
            ("POST", f"/v1/uploads/{upload_id}/parts", part),
            ("POST", f"/v1/uploads/{upload_id}/complete", {"json": {"part_ids": ["a"]}}),
            ("POST", f"/v1/uploads/{upload_id}/cancel", {}),
        ):
            answer = await client.request(method, path, headers=other, **sent)
            assert "no file" in error_of(answer, 404) or "no upload" in error_of(answer, 404)
            # What is another's looks like what is not there.
            missing = path.replace(file_id, "file-none").replace(upload_id, "upload_none")
            text = (await client.request(method, missing, headers=other, **sent)).text
            assert answer.text == text.replace("file-none", file_id).replace("upload_none", upload_id)
        assert (await client.get("/v1/files", headers=other)).json()["data"] == []
        assert (await client.get("/v1/files", params={"after": file_id}, headers=other)).status_code == 400
        assert (await client.get(f"/v1/files/{file_id}/content", headers=keys.headers("second of one"))).content == b"secret"


async def test_files_that_began_to_arrive_together_have_room_together(tmp_path: Path) -> None:
    """Each of them saw the same room at its beginning."""
    stores = FileStores(tmp_path, 1 << 20, 50_000, lambda: 1)
    part_of = StoredUpload("upload_a", "", "a", "vision", 30_000, 0, 1 << 40, None, "pending")
    await stores.uploads.add(part_of)
    async with stores.files.arriving("", "file") as late:
        async with stores.files.arriving("", "file") as first:
            await first.write(b"x" * 30_000)
            await stores.files.add(file := new_file("", "a", "vision", 30_000, None), first)
        await late.write(b"x" * 30_000)
        with pytest.raises(InvalidRequestError, match="file: your files have no room for it: 20000 bytes are left"):
            await stores.files.add(new_file("", "b", "vision", 30_000, None), late)
        with pytest.raises(InvalidRequestError, match="data: your files have no room for it: 20000 bytes are left"):
            await stores.uploads.add_part(part_of, "part_a", late)
    assert [one.id for one in await stores.files.page("", None, None, 10, oldest_first=True) or ()] == [file.id]
    await stores.close()
    assert [path.name for path in (tmp_path / "contents").iterdir()] == [file.id]


async def test_what_has_expired_is_gone_and_swept(tmp_path: Path) -> None:
    """Also what a process that was killed has left."""
    now = time.time()
    async with gateway_app(FakeFrontend(), files_dir=tmp_path) as app, client_of(app) as client:
        short = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        gone = (await client.post("/v1/files", **upload(b"x", **short))).json()["id"]
        kept = (await client.post("/v1/files", **upload(b"y"))).json()["id"]
        announced = {"bytes": 3, "filename": "a", "mime_type": "b", "purpose": "vision"}
        upload_id = (await client.post("/v1/uploads", json=announced)).json()["id"]
        part = (await client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("a", b"a")})).json()["id"]
    for folder, name in (("contents", "file-orphan"), ("incoming", "orphan"), ("batches", "batch_orphan.jsonl")):
        (tmp_path / folder / name).write_bytes(b"x")
        os.utime(tmp_path / folder / name, (0, 0))
    later = FileStores(tmp_path, 1 << 20, 1 << 20, lambda: 1, clock=lambda: now + 3700)
    assert await later.files.get("", gone) is None
    assert [file.id for file in await later.files.page("", None, None, 10, oldest_first=True) or ()] == [kept]
    assert {path.name for path in (tmp_path / "contents").iterdir()} == {gone, kept, part, "file-orphan"}
    await later.sweep()
    assert [path.name for path in (tmp_path / "contents").iterdir()] == [kept]
    assert not [path for folder in ("incoming", "batches") for path in (tmp_path / folder).iterdir()]
    expired = await later.uploads.get("", upload_id)
    assert expired is not None
    assert expired.status == "expired"
    await later.close()


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/files/a", "/v1/batches/a"])
async def test_without_a_directory_files_are_refused(path: str) -> None:
    async with gateway_client() as client:
        assert "this gateway keeps no files, because its operator has set no directory" in error_of(await client.get(path), 404)


async def test_a_directory_that_cannot_be_made_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot keep files in .*/file/files .*see --files-dir"):
        async with gateway_app(FakeFrontend(), files_dir=tmp_path / "file" / "files"):
            pass


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/files/a/content"])
async def test_unknown_parameters_of_the_query_are_refused(tmp_path: Path, path: str) -> None:
    async with files_client(tmp_path) as client:
        assert "colour: unknown parameter of the query" in error_of(await client.get(path, params={"colour": "red"}), 400)


async def test_a_page_of_another_site_cannot_send_files(tmp_path: Path) -> None:
    """A browser sends forms without asking first."""
    async with files_client(tmp_path) as client:
        foreign = await client.post("/v1/files", **upload(b"x"), headers={"origin": "https://evil.example"})
        assert "pages of this origin may not call this server" in error_of(foreign, 403)
        for origin in ("http://gateway", "http://localhost:3000"):
            assert (await client.post("/v1/files", **upload(b"x"), headers={"origin": origin})).status_code == 200


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    incoming = tmp_path / "incoming"
    async with gateway_server(FakeFrontend(), files_dir=tmp_path) as (host, port):
        _, writer = await asyncio.open_connection(host, port)
        head = (
            "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\ncontent-type: multipart/form-data; boundary=b"
        )
        body = '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nthe beginning'
        writer.write(f"{head}\r\n\r\n{body}".encode())
        await until(lambda: bool([*incoming.iterdir()]))
        writer.close()
        await until(lambda: not [*incoming.iterdir()])
    assert "unexpected error" not in caplog.text
