"""Files as parts of conversations: documents as text, and images by id."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import psutil
import pytest
import websockets
from support.batches import error_of, upload
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client, gateway_server
from support.keys import KeyStore
from support.pdf import pdf
from support.sdk import openai_client
from support.waiting import until
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway import pdf as pdf_module

#: The reader of PDF files, with less memory than a page needs.
_SMALL = "from triptych_gateway import pdf; pdf._MAX_MEMORY = 20 << 20; import sys; sys.exit(pdf.main())"
PNG = b"\x89PNG\r\n\x1a\n not really"
TEXT = "Grüße: 42".encode()


def parts_of(frontend: FakeFrontend, message: int = 0) -> list[str]:
    """The texts of a message that the frontend got."""
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    return [part.text for part in frontend.request.messages[message].content]


async def test_documents_in_a_response(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        file = await client.files.create(file=("notes.txt", TEXT), purpose="user_data")
        data = base64.b64encode(b"inline").decode()
        content: Any = [
            {"type": "input_file", "file_id": file.id},
            {"type": "input_file", "file_data": f"data:text/plain;base64,{data}", "filename": 'a"b.txt'},
            {"type": "input_file", "file_data": data},
            {"type": "input_text", "text": "Sum up."},
        ]
        first = await client.responses.create(model=MODEL.name, input=[{"role": "user", "content": content}])
        expected = [
            '<file name="notes.txt">\nGrüße: 42\n</file>',
            '<file name="a\'b.txt">\ninline\n</file>',
            '<file name="file">\ninline\n</file>',
            "Sum up.",
        ]
        assert parts_of(frontend) == expected
        # The conversation goes on with them, as long as they are there.
        await client.responses.create(model=MODEL.name, input="And now?", previous_response_id=first.id)
        assert parts_of(frontend) == expected
        await client.files.delete(file.id)
        with pytest.raises(openai.NotFoundError, match=f"previous_response_id.file_id: no file '{file.id}'"):
            await client.responses.create(model=MODEL.name, input="And now?", previous_response_id=first.id)


async def test_documents_in_a_chat(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        file = await client.files.create(file=("notes.txt", TEXT), purpose="user_data")
        content: Any = [{"type": "file", "file": {"file_id": file.id}}, {"type": "text", "text": "Sum up."}]
        await client.chat.completions.create(model=MODEL.name, messages=[{"role": "user", "content": content}])
    assert parts_of(frontend) == ['<file name="notes.txt">\nGrüße: 42\n</file>', "Sum up."]


async def test_an_image_by_id(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        file = await client.files.create(file=("a.png", PNG), purpose="vision")
        content: Any = [{"type": "input_image", "file_id": file.id, "detail": "low"}, {"type": "input_text", "text": "What?"}]
        await client.responses.create(model=MODEL.name, input=[{"role": "user", "content": content}])
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    item = frontend.request.messages[0].content[0].media
    assert (item.data, item.modality, item.detail) == (PNG, common_pb2.MODALITY_IMAGE, "low")


async def test_over_a_websocket(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend, files_dir=tmp_path) as (host, port):
        async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any") as client:
            file = await client.files.create(file=("notes.txt", TEXT), purpose="user_data")
        content = [{"type": "input_file", "file_id": file.id}]
        async with websockets.connect(f"ws://{host}:{port}/v1/responses") as connection:
            turn = {"type": "response.create", "model": MODEL.name, "input": [{"role": "user", "content": content}]}
            await connection.send(orjson.dumps(turn).decode())
            while orjson.loads(await connection.recv())["type"] != "response.completed":
                pass
    assert parts_of(frontend) == ['<file name="notes.txt">\nGrüße: 42\n</file>']


@pytest.mark.skipif(importlib.util.find_spec("pypdf") is None, reason="pypdf is not installed")
async def test_a_pdf_file_as_text(tmp_path: Path) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend, files_dir=tmp_path) as client:
        file = await client.files.create(file=("a.pdf", pdf("Total: 42 EUR")), purpose="user_data")
        content: Any = [{"type": "input_file", "file_id": file.id}]
        await client.responses.create(model=MODEL.name, input=[{"role": "user", "content": content}])
        assert parts_of(frontend) == ['<file name="a.pdf">\nTotal: 42 EUR\n</file>']
        misplaced = pdf("").replace(b"startxref\n", b"startxref\n1")  # pypdf warns of it, and reads it
        for damaged, message in (
            (pdf(""), "it has no text; send pictures of its pages"),
            (misplaced, "it has no text; send pictures of its pages"),
            (b"%PDF-1.4 x", "it is damaged"),
        ):
            data = base64.b64encode(damaged).decode()
            content = [{"type": "input_file", "file_data": data, "filename": "b.pdf"}]
            with pytest.raises(openai.BadRequestError, match=f"'b.pdf' is a PDF file that cannot be read: {message}"):
                await client.responses.create(model=MODEL.name, input=[{"role": "user", "content": content}])


@pytest.mark.skipif(importlib.util.find_spec("pypdf") is None, reason="pypdf is not installed")
async def test_a_pdf_file_that_takes_too_long_or_too_much_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(content: bytes) -> dict[str, Any]:
        part = {"type": "input_file", "file_data": base64.b64encode(content).decode()}
        return {"json": {"model": MODEL.name, "input": [{"role": "user", "content": [part]}]}}

    async with gateway_client() as client:
        monkeypatch.setattr(pdf_module, "_TIMEOUT_S", 0.01)
        busy = "a PDF file: it was not read within 0.02 s; try again later"
        assert busy in error_of(await client.post("/v1/responses", **body(pdf("x"))), 503)
        monkeypatch.undo()
        # The process itself has less memory than Python needs.
        monkeypatch.setattr(pdf_module, "_COMMAND", ("-c", _SMALL))
        assert "it is damaged or too large" in error_of(await client.post("/v1/responses", **body(pdf("x"))), 400)
    assert not [child for child in psutil.Process().children() if "triptych_gateway.pdf" in " ".join(child.cmdline())]


@pytest.mark.skipif(importlib.util.find_spec("pypdf") is None, reason="pypdf is not installed")
async def test_pdf_files_of_a_client_that_leaves_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_module, "_COMMAND", ("-c", "'triptych_gateway.pdf'; import time; time.sleep(60)"))

    def readers() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if "triptych_gateway.pdf" in " ".join(child.cmdline())]

    part = {"type": "file", "file": {"file_data": base64.b64encode(pdf("x")).decode()}}
    body = {"model": MODEL.name, "messages": [{"role": "user", "content": [part] * 2}]}
    async with gateway_server(FakeFrontend()) as (host, port), httpx.AsyncClient() as client:
        asked = asyncio.create_task(client.post(f"http://{host}:{port}/v1/chat/completions", json=body))
        await until(lambda: bool(readers()))
        asked.cancel()
        await until(lambda: not readers())
        await asyncio.sleep(0.2)
        assert not readers()


async def test_without_pypdf_a_pdf_file_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    part = {"type": "input_file", "file_data": base64.b64encode(pdf("x")).decode()}
    async with gateway_client() as client:
        body = {"model": MODEL.name, "input": [{"role": "user", "content": [part]}]}
        assert "pypdf is not installed (triptych-server[pdf])" in error_of(await client.post("/v1/responses", json=body), 400)


@pytest.mark.parametrize(
    ("part", "status", "message"),
    [
        ({"file_id": "file-none"}, 404, "input[0].content[0].file_id: no file 'file-none'"),
        ({}, 400, "exactly one of file_id and file_data is required"),
        ({"file_id": "a", "file_data": "b"}, 400, "exactly one of file_id and file_data is required"),
        ({"file_url": "https://example.com/a.pdf"}, 400, "file_url: not supported (send file_data, or file_id)"),
        ({"file_data": "!"}, 400, "file_data: must be a string in base64, or a data: URL"),
        ({"file_data": "data:text/plain;base64,!"}, 400, "file_data: "),
        ({"file_data": base64.b64encode(b"PK\x03\x04\xff").decode()}, 400, "is neither text in UTF-8 nor a PDF file"),
        ({"file_data": base64.b64encode(b"a\0b").decode()}, 400, "is neither text in UTF-8 nor a PDF file"),
        ({"type": "input_image"}, 400, "exactly one of image_url and file_id is required"),
        ({"type": "input_image", "file_id": "file-none"}, 404, "input[0].content[0].file_id: no file 'file-none'"),
    ],
)
async def test_what_is_no_document_is_refused_by_name(tmp_path: Path, part: dict[str, Any], status: int, message: str) -> None:
    async with gateway_client(files_dir=tmp_path) as client:
        body = {"model": MODEL.name, "input": [{"role": "user", "content": [{"type": "input_file", **part}]}]}
        assert message in error_of(await client.post("/v1/responses", json=body), status)


async def test_files_of_others_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    for name in ("one", "other"):
        keys.add(name)
    async with gateway_client(files_dir=tmp_path / "files", api_keys_file=keys.path, max_body_bytes=4000) as client:
        one = keys.headers("one")
        ids = [
            (await client.post("/v1/files", **upload(b"x" * 3000, name=f"{number}.txt"), headers=one)).json()["id"]
            for number in range(2)
        ]

        def body(*file_ids: str) -> dict[str, Any]:
            content = [{"type": "input_file", "file_id": one} for one in file_ids]
            return {"json": {"model": MODEL.name, "input": [{"role": "user", "content": content}]}}

        assert (await client.post("/v1/responses", **body(ids[0], ids[0]), headers=one)).status_code == 200
        answer = await client.post("/v1/responses", **body(*ids), headers=one)
        assert "input[0].content[1].file_id: the files of a request have at most 4000 bytes together" in error_of(answer, 400)
        foreign = await client.post("/v1/responses", **body(ids[0]), headers=keys.headers("other"))
        assert f"no file '{ids[0]}'" in error_of(foreign, 404)


# A document is a little larger than its file.
@pytest.mark.parametrize(("kind", "first_refused"), [("input_file", 31), ("input_image", 32)])
async def test_one_file_many_times_takes_no_memory(tmp_path: Path, kind: str, first_refused: int) -> None:
    async with gateway_client(files_dir=tmp_path) as client:
        file_id = (await client.post("/v1/files", **upload(b"x" * (1 << 20)))).json()["id"]
        content = [{"type": kind, "file_id": file_id}] * 1000
        before = psutil.Process().memory_info().rss
        answer = await client.post("/v1/responses", json={"model": MODEL.name, "input": [{"role": "user", "content": content}]})
        assert f"input[0].content[{first_refused}]" in error_of(answer, 400)
        assert "each as often as the request has it, have at most 33554432 bytes together" in answer.text
        assert psutil.Process().memory_info().rss < before + (100 << 20)


async def test_other_routes_read_no_documents(tmp_path: Path) -> None:
    part = {"type": "file", "file": {"file_data": base64.b64encode(b"x").decode()}}
    async with gateway_client(files_dir=tmp_path) as client:
        answer = await client.post("/tokenize", json={"messages": [{"role": "user", "content": [part]}]})
        assert "documents are only read in /v1/chat/completions and /v1/responses" in error_of(answer, 400)
