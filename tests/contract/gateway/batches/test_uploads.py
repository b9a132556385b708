"""/v1/uploads: files in parts."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from pathlib import Path

import openai
import pytest
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_client
from support.sdk import openai_client
from triptych.errors import InvalidRequestError
from triptych_gateway.apis.files.service import new_file
from triptych_gateway.stores.opening import FileStores
from triptych_gateway.stores.uploads import MAX_PARTS, StoredUpload


async def test_an_upload_in_parts(tmp_path: Path) -> None:
    async with openai_client(FakeFrontend(), files_dir=tmp_path) as client:
        made = await client.uploads.create(
            bytes=6,
            filename="a.bin",
            mime_type="text/plain",
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (made.status, made.file, made.expires_at) == ("pending", None, made.created_at + 3600)
        second, first = [await client.uploads.parts.create(made.id, data=data) for data in (b"def", b"abc")]
        with pytest.raises(openai.BadRequestError, match="data: the parts have 7 bytes; the upload was made for 6"):
            await client.uploads.parts.create(made.id, data=b"g")
        for part_ids, message in (
            ([first.id], "these parts have 3 bytes; the upload was made for 6"),
            ([first.id, first.id], "is named twice"),
            ([first.id, "part_none"], "'part_none' is not a part of this upload"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                await client.uploads.complete(made.id, part_ids=part_ids)
        digest = hashlib.md5(b"abcdef", usedforsecurity=False).hexdigest()
        with pytest.raises(openai.BadRequestError, match=f"md5: the content has {digest}"):
            await client.uploads.complete(made.id, part_ids=[first.id, second.id], md5="0" * 32)
        done = await client.uploads.complete(made.id, part_ids=[first.id, second.id], md5=digest)
        assert done.status == "completed"
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == b"abcdef"
        assert await client.files.retrieve(done.file.id) == done.file
        for late in (client.uploads.cancel(made.id), client.uploads.parts.create(made.id, data=b"x")):
            with pytest.raises(openai.BadRequestError, match="this upload is completed"):
                await late
        other = await client.uploads.create(bytes=6, filename="a", mime_type="b", purpose="vision")
        await client.uploads.parts.create(other.id, data=b"abc")
        assert (await client.uploads.cancel(other.id)).status == "cancelled"
    assert [path.name for path in (tmp_path / "contents").iterdir()] == [done.file.id]


async def test_an_upload_that_is_completed_many_times_at_once_is_completed_once(tmp_path: Path) -> None:
    """Few are joined at once: each takes a thread, and space for the whole file."""
    async with gateway_client(FakeFrontend(), files_dir=tmp_path / "files") as client:
        announced = {"bytes": 20 << 20, "filename": "a", "mime_type": "b", "purpose": "vision"}
        path = f"/v1/uploads/{(await client.post('/v1/uploads', json=announced)).json()['id']}"
        part = (await client.post(f"{path}/parts", files={"data": ("a", bytes(20 << 20))})).json()["id"]
        asked = [asyncio.create_task(client.post(f"{path}/complete", json={"part_ids": [part]})) for _ in range(20)]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, len([*(tmp_path / "files" / "incoming").iterdir()]))
            await asyncio.sleep(0.001)
        answers = [await task for task in asked]
        assert most <= 2
        assert sorted(answer.status_code for answer in answers) == [200] + [400] * 19
        assert {answer.json()["error"]["message"] for answer in answers if answer.is_error} == {
            "upload_id: this upload is completed"
        }
        assert len((await client.get("/v1/files")).json()["data"]) == 1


async def test_ten_thousand_parts_do_not_stop_the_gateway(tmp_path: Path) -> None:
    stores = FileStores(tmp_path, 1 << 20, 1 << 20, lambda: 1)
    upload_of_many = StoredUpload("upload_a", "", "a", "vision", MAX_PARTS + 1, 0, 1 << 40, None, "pending")
    await stores.uploads.add(upload_of_many)
    part_ids = [f"part_{number:024x}" for number in range(MAX_PARTS)]
    with sqlite3.connect(tmp_path / "files.sqlite") as database:
        database.executemany("INSERT INTO parts VALUES (?, 'upload_a', '', 1, 0)", [(one,) for one in part_ids])
    begin_s = time.thread_time()
    with pytest.raises(InvalidRequestError, match="these parts have 10000 bytes; the upload was made for 10001"):
        await stores.uploads.complete(upload_of_many, part_ids, None, new_file("", "a", "vision", MAX_PARTS + 1, None))
    assert time.thread_time() - begin_s < 0.2
    await stores.close()
