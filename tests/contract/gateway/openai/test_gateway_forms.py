"""Bodies that are forms, whole and damaged."""

from __future__ import annotations

import time

import pytest
from starlette.exceptions import HTTPException
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.audio.form import parse_form

ROUTE = "/v1/audio/transcriptions"
PART = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nfake/model\r\n'
UPLOAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cut short or damaged"),
        (PART, "cut short or damaged"),
        (PART + b"--b", "cut short or damaged"),
        (PART + b"--b--", "file: this field is required"),
        (b"--b\r\n\r\nx\r\n--b--", "a field without a name"),
        (PART.replace(b"fake", b"\xff") + b"--b--", "not UTF-8"),
        (PART + PART + b"--b--", "twice"),
        (PART.replace(b"model", b"keywords[]") * 2000, "more than 1024 fields"),
        (PART + UPLOAD % (b"a.wav", b"") + b"--b--", "file: is empty"),
        (PART + (UPLOAD % (b"", b"x")).replace(b'; filename=""', b"") + b"--b--", "file: must be a file"),
        (UPLOAD % (b"a", b"5") + PART.replace(b'="model"', b'="temperature"; filename="a"') + b"--b--", "temperature: "),
        (PART.replace(b'="model"', b'="model') + b"--b--", "a damaged header"),
        (b"--b\r\n" + b"x" * 9000 + b"\r\n\r\n\r\n--b--", "cut short or damaged"),
    ],
)
async def test_bad_forms(body: bytes, said: str) -> None:
    async with gateway_client() as client:
        response = await client.post(ROUTE, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/mixed; boundary=b", ""])
async def test_other_bodies(kind: str) -> None:
    async with gateway_client() as client:
        response = await client.post(ROUTE, content=PART + b"--b--", headers={"content-type": kind})
    assert response.status_code == 400
    assert "multipart/form-data" in response.json()["error"]["message"]


async def test_odd_names_and_contents_of_files() -> None:
    frontend = FakeFrontend()
    content = b"\r\n--a\r\n\r\n--" + bytes(range(256)) + b"\r\n"
    body = b"preamble\r\n" + PART + UPLOAD % ('Ä \\"speech\\".WAV'.encode(), content) + b"--b--\r\nepilogue"
    async with gateway_client(frontend) as client:
        response = await client.post(ROUTE, content=body, headers={"content-type": 'multipart/form-data; boundary="b"'})
    assert response.status_code == 200, response.text
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    item = frontend.request.messages[0].content[0].media
    assert (item.data, item.format) == (content, "wav")


@pytest.mark.parametrize(
    ("header", "name", "filename"),
    [
        ('form-data; name="a"', "a", None),
        ("form-data; name=a", "a", None),
        ('FORM-DATA ;Name = "a" ; FileName="b.wav"', "a", "b.wav"),
        ('form-data; filename="x; name=y"; name="a"', "a", "x; name=y"),
        (r'form-data; name="a"; filename="say \"b\""', "a", 'say "b"'),
        ("form-data; name=\"a\"; filename*=UTF-8''%C3%84.wav", "a", "Ä.wav"),
        ('form-data; name="a"; filename="A.wav"; filename*=UTF-8\'\'%C3%84.wav', "a", "Ä.wav"),
    ],
)
def test_headers_of_fields(header: str, name: str, filename: str | None) -> None:
    body = f"--b\r\nContent-Type: audio/wav\r\ncontent-disposition: {header}\r\n\r\nx\r\n--b--".encode()
    [(given, value)] = parse_form(body, "multipart/form-data; boundary=b")
    assert (given, getattr(value, "name", None)) == (name, filename)


def test_no_header_takes_long_to_read() -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="keywords[]"; x="' + b";" * 2000 + b"\r\n\r\na\r\n"
    start_s = time.process_time()
    with pytest.raises(HTTPException, match="damaged header"):
        list(parse_form(field * 1000 + b"--b--", "multipart/form-data; boundary=b"))
    whole = field.replace(b"\r\n\r\na", b'"\r\n\r\na')
    assert len(list(parse_form(whole * 1000 + b"--b--", "multipart/form-data; boundary=b"))) == 1000
    assert time.process_time() - start_s < 0.5
